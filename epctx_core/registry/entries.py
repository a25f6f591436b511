"""Entry points of other things than EPs: finding one by its name, importing it, and
attributing its faults to its package; and host plugins, which may be entry points.

Host plugins are objects whose methods wrap hooks of EPs, to trace, time, count, change
or refuse, or that transform models before EPs are asked. Nothing that is merely
installed wraps anything: an entry point of the group `epctx.host_plugins` is used only
where a host names it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pluggy

from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    PackageMissing,
    PluginError,
    describe,
    suggestion,
)
from epctx_core.forwarding import import_installed, missing_package
from epctx_core.frozen import dataclass
from epctx_core.installing import (
    ENGINE,
    PROVIDED_BY,
    install_engine_command,
)
from epctx_core.options.table import split_names
from epctx_core.plugin.hookspecs import HOOKS, PROJECT, HookSpecs, HostHookSpecs
from epctx_core.registry.installed import EntryPoint, list_entries
from epctx_core.registry.lookup import NAMES_VARIABLE, TRACE_VARIABLE

TRANSFORM = "transform_model"
GROUP = "epctx.host_plugins"
"""One entry for each plugin: its value is the object, or a class to call without
arguments.
"""
_KIND = "host plugin"


@dataclass(frozen=True, kw_only=True, eq=False)
class HostPlugin:
    """A host's plugin that was checked.

    Attributes:
        name: its class; that of its entry point if it has one.
        label: its name for messages, with the distribution and version of its entry
            point.
        plugin: the object.
        hooks: the hooks that it wraps.
        transform: its hook `transform_model`, if it has one.
    """

    name: str
    label: str
    plugin: Any
    hooks: frozenset[str]
    transform: pluggy.HookImpl | None = None

    def transform_model(self, arguments: Mapping[str, Any]) -> Any:
        """Return what the hook gives for those of the arguments that it takes.

        Raises:
            InvalidArgument: it raised something else than an error of epctx.
        """
        assert self.transform is not None  # noqa: S101 - asked before
        values = [arguments[name] for name in self.transform.argnames]
        try:
            return self.transform.function(*values)
        except (EpctxError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self.blame(f"raised {describe(error)}") from error

    def blame(self, fault: str) -> InvalidArgument:
        """Return the error for a fault of `transform_model`; the text completes "it
        ...".
        """
        return InvalidArgument(
            f"host plugin {self.label}: its {TRANSFORM} {fault}.",
            hint="This is a mistake in that plugin of the host.",
        )


def check_host_plugin(plugin: object, name: str = "", package: str = "") -> HostPlugin:
    """Return a host's plugin, checked by pluggy.

    Args:
        plugin: the object.
        name: that of its entry point.
        package: its distribution and version, to follow the name in messages.

    Raises:
        InvalidArgument: it wraps no hook, transforms no model and has no `span`; wraps
            a hook that does not exist or with unknown arguments, or implements one
            instead; or has no `version` and transforms models.
    """
    name = name or f"{type(plugin).__module__}.{type(plugin).__qualname__}"
    label = f"{name}{package}"
    if plugin is None or inspect.isclass(plugin):
        raise _wrong_plugin_error(label, f"it is {plugin!r:.80}, not an object")
    manager = pluggy.PluginManager(PROJECT)
    try:
        manager.add_hookspecs(HookSpecs)
        manager.add_hookspecs(HostHookSpecs)
        manager.register(plugin)
        manager.check_pending()
        callers = {
            caller.name: caller.get_hookimpls()
            for caller in manager.get_hookcallers(plugin) or ()
        }
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of pluggy, or of the plugin's own attributes
        raise _wrong_plugin_error(label, describe(error)) from error
    finally:
        # A manager is a cycle, and would keep the plugin.
        vars(manager.hook).clear()

    if not callers and not hasattr(plugin, "span"):
        raise _wrong_plugin_error(
            label, "it has no method with @hookimpl(wrapper=True)"
        )
    transforms = callers.pop(TRANSFORM, [None])
    if transforms[0] is not None:
        if transforms[0].wrapper:
            raise _wrong_plugin_error(label, f"its {TRANSFORM} is a wrapper")
        if not isinstance(getattr(plugin, "version", None), str):
            raise _wrong_plugin_error(
                label,
                f"it has {TRANSFORM} and no text `version`, by which caches tell what "
                "it made",
            )
    for hook, methods in callers.items():
        if not all(method.wrapper for method in methods):
            raise _wrong_plugin_error(
                label, f"its {hook} is not marked with @hookimpl(wrapper=True)"
            )

    return HostPlugin(
        name=name,
        label=label,
        plugin=plugin,
        hooks=frozenset(callers),
        transform=transforms[0],
    )


def _wrong_plugin_error(name: str, fault: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name} is not a plugin of a host: {fault}.",
        hint=(
            "A plugin has methods with the names of hooks, marked with "
            f"@hookimpl(wrapper=True), which yield once. Hooks: {', '.join(HOOKS)}. "
            f"{TRANSFORM} alone is marked with @hookimpl."
        ),
    )


def list_host_plugins(
    registered: Iterable[HostPlugin], plugins: Iterable[object]
) -> list[HostPlugin]:
    """Return the plugins of a session, the outermost first: those that the environment
    names, those of the registry, and those of the session's options, where a text is
    the name of an entry point.

    Raises:
        EpctxError: see `load_host_plugin` and `check_host_plugin`.
    """
    checked = (
        load_host_plugin(plugin)
        if isinstance(plugin, str)
        else check_host_plugin(plugin)
        for plugin in plugins
    )
    return [*_load_named_plugins(), *registered, *checked]


def _load_named_plugins() -> Iterator[HostPlugin]:
    """Yield the plugins that the environment names.

    Raises:
        PackageMissing: EPCTX_TRACE is set, and epctx-conformance is not installed.
        EpctxError: see `load_host_plugin`.
    """
    if os.environ.get(TRACE_VARIABLE, "").strip() not in ("", "0"):
        yield load_host_plugin("trace", needed_by=TRACE_VARIABLE)
    yield from map(load_host_plugin, split_names(os.environ.get(NAMES_VARIABLE, "")))


def load_host_plugin(name: str, needed_by: str = "") -> HostPlugin:
    """Return the plugin of an entry point of an installed package.

    Args:
        name: the entry's.
        needed_by: what needs it; empty for the host, which named it.

    Raises:
        PackageMissing: no package has one of that name.
        PluginError: it could not be imported or made.
        InvalidArgument: several packages have one of that name; or see
            `check_host_plugin`.
    """
    entry, target = import_entry(GROUP, name, _KIND, needed_by=needed_by)
    with blame_entry(entry, _KIND):
        plugin = target() if inspect.isclass(target) else target
    return check_host_plugin(plugin, name, describe_package(entry))


def find_entry(
    group: str, name: str, kind: str, *, named_by: str = "", needed_by: str = ""
) -> EntryPoint:
    """Return the one entry of a group that has a name.

    Args:
        group: the group.
        name: the entry's, or `<distribution>:<name>`.
        kind: a noun for what the group has, for messages.
        named_by: what has the name, for messages; empty for the host.
        needed_by: what needs the entry, where its package is one of epctx that is not
            installed; by default `named_by`.

    Raises:
        PackageMissing: no installed package has it.
        InvalidArgument: several have it.
    """
    entries = list_entries(group)
    candidates = {
        entry.package.name: entry
        for entry in reversed(entries)
        if name in (entry.name, f"{entry.package.name}:{entry.name}")
    }
    if not candidates:
        package = PROVIDED_BY.get((group, name.rpartition(":")[2]))
        if package and group != ENGINE[0]:
            needed_by = needed_by or named_by or f"the {kind} {name!r}"
            raise missing_package(f"the package {package}", needed_by, package)
        names = sorted({entry.name for entry in entries})
        hint = (
            "Install the package that has it. Installed are: "
            f"{', '.join(names) or 'none'}."
        )
        if (group, name) == ENGINE:
            hint = install_engine_command()
        naming = f", named by {named_by}," if named_by else ""
        raise PackageMissing(
            f"the {kind} {name!r}{naming} is not installed.{suggestion(name, names)}",
            hint=hint,
        )

    if len(candidates) > 1:
        raise InvalidArgument(
            f"the {kind} {name!r} is ambiguous: {' and '.join(sorted(candidates))} "
            "have it.",
            hint=f"Name the package, too: {min(candidates)}:{name}",
        )

    return next(iter(candidates.values()))


def import_entry(
    group: str, name: str, kind: str, *, needed_by: str
) -> tuple[EntryPoint, Any]:
    """Return the one entry of a group that has a name, and its object.

    Args:
        group: the group.
        name: the entry's, or `<distribution>:<name>`.
        kind: a noun for what the group has, for messages.
        needed_by: the option or file that needs it.

    Raises:
        PackageMissing: no installed package has it, or a library of its package is
            missing.
        InvalidArgument: several packages have it.
        PluginError: it cannot be imported.
    """
    entry = find_entry(group, name, kind, needed_by=needed_by)
    with blame_entry(entry, kind):
        # For an error that names the package; it is there then.
        package = entry.package.name
        import_installed(entry.module, needed_by=needed_by, distribution=package)
        return entry, entry.load()


@contextmanager
def blame_entry(entry: EntryPoint, kind: str) -> Iterator[None]:
    """Attribute untyped exceptions, `SystemExit` and `GeneratorExit` included, to the
    package of an entry point.

    Raises:
        PluginError: something else than an error of epctx was raised.
    """
    try:
        yield
    except (EpctxError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        problem = f"failed: {describe(error)}"
        hint = "This is a fault of that package; its own exception is the cause."
        raise entry_error(entry, kind, problem, hint) from error


def entry_error(entry: EntryPoint, kind: str, problem: str, hint: str) -> PluginError:
    """Return the error for a fault of the package of an entry point.

    Args:
        entry: the entry point.
        kind: a noun for what its group has.
        problem: completes "the <kind> 'x' of package 1.0 ...".
        hint: what to do next.
    """
    return PluginError(
        f"{describe_entry(entry, kind)} {problem}.",
        distribution=entry.package.name,
        version=entry.package.version,
        hint=hint,
    )


def describe_entry(entry: EntryPoint, kind: str) -> str:
    """Return kind, name, distribution and version of an entry point, for messages."""
    return f"the {kind} {entry.name!r}{describe_package(entry)}"


def describe_package(entry: EntryPoint) -> str:
    """Return distribution and version of an entry point, to follow its name."""
    return f" of {entry.package.name} {entry.package.version}"
