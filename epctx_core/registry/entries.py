"""Entry points of other things than EPs: finding one by its name, importing it, and
attributing its faults to its package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    PackageMissing,
    PluginError,
    suggestion,
)
from epctx_core.forwarding import import_installed, missing_package
from epctx_core.installing import (
    ENGINE,
    PROVIDED_BY,
    install_command,
    install_engine_command,
)
from epctx_core.registry.guard import describe
from epctx_core.registry.installed import EntryPoint, list_entries


def find_entry(group: str, name: str, kind: str, *, named_by: str = "") -> EntryPoint:
    """Return the one entry of a group that has a name.

    Args:
        group: the group.
        name: the entry's, or `<distribution>:<name>`.
        kind: a noun for what the group has, for messages.
        named_by: the option or variable that has the name, for messages.

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
        names = sorted({entry.name for entry in entries})
        hint = (
            "Install the package that has it. Installed are: "
            f"{', '.join(names) or 'none'}."
        )
        if (group, name) == ENGINE:
            hint = install_engine_command()
        elif package := PROVIDED_BY.get((group, name)):
            hint = install_command(package)
        named = f", named by {named_by}," if named_by else ""
        raise PackageMissing(
            f"the {kind} {name!r}{named} is not installed.{suggestion(name, names)}",
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
    try:
        entry = find_entry(group, name, kind)
    except PackageMissing as error:
        package = PROVIDED_BY.get((group, name.rpartition(":")[2]))
        if package is None:
            raise
        raise missing_package(f"the package {package}", needed_by, package) from error
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
