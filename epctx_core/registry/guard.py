"""Border to plugins: import of a class and its check against the contract, and typed
errors for exceptions of plugins and of the host's callbacks, and for wrong results.
"""

from __future__ import annotations

import builtins
import inspect
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from epctx_core.errors import (
    EpctxError,
    EPFail,
    Fail,
    PluginError,
    concealed,
    describe,
    suggestion,
)
from epctx_core.plugin import (
    PLUGIN_API,
    ExecutionProvider,
    ProviderOption,
)
from epctx_core.plugin.hookspecs import CLASS_METHODS, HOOKS, PROJECT, Hook
from epctx_core.registry.discovery import EP_NAME
from epctx_core.registry.installed import load_object
from epctx_core.registry.records import PluginRecord, PluginState

_log = logging.getLogger("epctx.providers")

_watches: list[Callable[..., Any]] = []


def watch_calls(watch: Callable[..., Any]) -> None:
    """Have a function watch every call of a plugin in this process from now on, such as
    to say whose fault it is that the process dies.

    Args:
        watch: a `contextmanager`; `watch(record, hook, arguments)` is entered around a
            call.
    """
    _watches.append(watch)


def watched(record: PluginRecord, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return an EP's `run`, with its calls watched if any are."""
    return _watches[-1](record, "run", ())(run) if _watches else run


def mark_broken(
    record: PluginRecord, error: BaseException, prefix: str
) -> PluginRecord:
    """Return a record in state BROKEN, with an exception as reason and traceback.

    Args:
        record: the EP's record.
        error: the exception that the plugin raised.
        prefix: the beginning of the reason, such as `acme:Acme failed to import`.
    """
    text = concealed("".join(traceback.format_exception(error)))
    reason = f"{prefix}: {describe(error)}"
    return replace(record, state=PluginState.BROKEN, reason=reason, traceback=text)


@contextmanager
def blame(record: PluginRecord, hook: str, *arguments: object) -> Iterator[None]:
    """Attribute every exception of a block that calls a hook or a class method to the
    plugin.

    Args:
        record: the plugin's.
        hook: the hook, or the method.
        arguments: what it is called with, for a watch; see `watch_calls`.

    Raises:
        EpctxError: raised by the plugin; passed on with the EP filled in.
        EPFail: any other exception of `compile`.
        PluginError: any other exception of another hook, `SystemExit` and
            `GeneratorExit` included.
    """
    try:
        with _watches[-1](record, hook, arguments) if _watches else nullcontext():
            yield
    except EpctxError as error:
        # Its texts may be older than a secret's first use.
        error.message = concealed(error.message)
        error.hint = error.hint and concealed(error.hint)
        error.ep = record.name if error.ep is None else error.ep
        if isinstance(error, PluginError):
            error.hook = error.hook or hook
            error.distribution = error.distribution or record.distribution
            error.version = error.version or record.version
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        message = f"{record.label} failed in {hook}: {describe(error)}"
        if hook == "compile":
            raise EPFail(message, ep=record.name, hint=FAULT_HINT) from error
        raise plugin_error(message, record, hook=hook, hint=FAULT_HINT) from error


@contextmanager
def blame_host(
    callback: str,
    *,
    passing: tuple[type[BaseException], ...] = (EpctxError, SystemExit),
    caught: tuple[type[BaseException], ...] = (Exception, SystemExit),
) -> Iterator[None]:
    """Turn an exception of a block that calls a callback of the host into Fail.

    Args:
        callback: what raised and at what, such as "the progress callback raised at
            stage 'compile'".
        passing: exceptions that pass, by which a callback may end the work.
        caught: exceptions that are turned. Others pass, too, such as those of test
            frameworks, which are no `Exception`.

    Raises:
        Fail: the callback raised; that is the cause, and its text is part of the
            message.
    """
    try:
        yield
    except passing:
        raise
    except caught as error:
        hint = "The callback's own exception is the cause of this error (`__cause__`)."
        raise Fail(f"{callback}: {describe(error)}.", hint=hint) from error


def close_quietly(close: Callable[[], object], doing: str) -> None:
    """Call a `close` of a plugin; log its exception, so that everything else is closed,
    too.
    """
    try:
        close()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the others hold devices and memory too
        _log.error("%s: %s", doing, describe(error))
        _log.debug("%s", doing, exc_info=error)


def to_plain(value: Any) -> Any:
    """Return a plugin's list or tuple as a plain list, a dict or text as a plain one,
    any other value unchanged.

    Runs no code of the plugin: the methods of a subclass may change their results,
    raise, or never return. Items stay unchanged.
    """
    cls = type(value)
    if issubclass(cls, list):
        return list.copy(value)
    if issubclass(cls, tuple):
        return list(tuple.__iter__(value))
    if issubclass(cls, dict):
        return dict(dict.items(value))
    return str.__str__(value) if issubclass(cls, str) else value


FAULT_HINT = (
    "This is a fault of the plugin; its own exception is the cause of this error "
    "(`-v` shows it)."
)


def contract_error(record: PluginRecord, hook: str, fault: str) -> PluginError:
    """Return the error for a result that breaks the contract.

    Args:
        record: the EP's record.
        hook: the hook's name.
        fault: completes "it ...", such as `gave 2 results for 3 partitions`. It may
            show types and plain values only: the `repr` of any other value is code of
            the plugin.
    """
    return plugin_error(
        f"{record.label} broke the contract in {hook}: it {fault}.",
        record,
        hook=hook,
        hint=(
            "This is a mistake in the plugin; report it to its vendor, or leave it out."
        ),
    )


def call_class_method(
    record: PluginRecord, cls: type[ExecutionProvider], method: str, *arguments: object
) -> Any:
    """Call a class method of an EP; return its result, checked by the table of hooks.

    Raises:
        PluginError: it raised, or its result breaks the contract.
        EpctxError: raised by the EP.
    """
    with blame(record, method):
        result = getattr(cls, method)(*arguments)
    return check_result(record, CLASS_METHODS[method], result)


def check_result(record: PluginRecord, hook: Hook, result: Any) -> Any:
    """Return a result if the table of hooks allows it: lists and texts as plain ones, a
    flag as a bool.

    Raises:
        PluginError: it has another type.
    """
    if hook.result == "bool":
        with blame(record, hook.name):
            return bool(result)
    if hook.returns_list or hook.result == "str":
        result = to_plain(result)
    if hook.returns_list and type(result) is not list:
        if result is None and hook.may_return_none:
            return None
        kind = type(result).__name__
        fault = f"gave a {kind} instead of a list, which may be empty"
        raise contract_error(record, hook.name, fault)

    if not hook.caller_checks:
        check_result_types(record, hook, result)
    return result


def check_result_types(
    record: PluginRecord, hook: Hook, result: Any, names: Sequence[object] = ()
) -> None:
    """Raise PluginError unless a result, or each item of a list, has the type that the
    table of hooks says.

    Args:
        record: the EP's record.
        hook: the hook.
        result: a list if the hook returns one.
        names: names of the items for the error, if known.
    """
    if hook.result == "None":  # the result is ignored
        return
    expected = _resolve_types(hook.result_types)
    for number, item in enumerate(result if hook.returns_list else [result]):
        if not issubclass(type(item), expected):
            place = f" for {names[number]}" if names else ""
            raise contract_error(
                record,
                hook.name,
                f"gave a {type(item).__name__} instead of {hook.expected}{place}",
            )


@cache
def _resolve_types(names: tuple[str, ...]) -> tuple[type, ...]:
    """Return types by the names that the specifications use."""
    return tuple(map(_resolve_type, names))


def _resolve_type(name: str) -> Any:
    from epctx_core import plugin

    if name == "None":
        return type(None)
    if "." in name:
        return load_object(":".join(name.replace("np.", "numpy.").rsplit(".", 1)))
    return getattr(plugin, name, None) or getattr(builtins, name)


def plugin_error(
    message: str,
    record: PluginRecord,
    *,
    hook: str | None = None,
    hint: str | None = None,
) -> PluginError:
    """Return a PluginError that carries EP, distribution and version of a record."""
    return PluginError(
        message,
        ep=record.name,
        hint=hint,
        hook=hook,
        distribution=record.distribution,
        version=record.version,
    )


_MARK = f"{PROJECT}_impl"
_GONE = {
    "get_kernel_registry": (
        "Kernels are a package of their own: derive the EP from "
        "`epctx_kernels.KernelProvider` (pip install epctx-kernels), without @hookimpl "
        "above this method."
    )
}
"""Hints by the names of hooks that were there before API 1 was released."""


class MarkedMethod(NamedTuple):
    """An attribute marked with `hookimpl`.

    Attributes:
        attribute: its name in the class.
        hook: the name of the hook that it implements.
        static: the attribute as the class has it, unbound.
        function: the underlying function.
        mark: the arguments of the marker.
    """

    attribute: str
    hook: str
    static: Any
    function: Callable[..., Any]
    mark: Mapping[str, Any]


def find_marked_methods(cls: type) -> Iterator[MarkedMethod]:
    """Yield the attributes of a class that are marked with `hookimpl`; evaluate no
    property.
    """
    # Ten times faster than inspect.getmembers_static; each new session calls this for
    # each EP.
    attributes = {
        name: static
        for base in reversed(cls.__mro__)
        for name, static in vars(base).items()
    }
    for attribute, static in sorted(attributes.items()):
        function = getattr(static, "__func__", static)
        # Most attributes are data, and few questions cost less than this one.
        if not callable(function):
            continue

        for each in (static, function):
            # Not getattr(each, _MARK): an object with __getattr__, such as a logger
            # proxy, would have any attribute.
            mark = getattr(each, "__dict__", {}).get(_MARK)
            if isinstance(mark, dict):
                hook = mark.get("specname") or attribute
                yield MarkedMethod(attribute, hook, static, function, mark)
                break


def implemented_hooks(cls: type[ExecutionProvider]) -> dict[str, MarkedMethod]:
    """Return the hooks that a valid class implements."""
    return {method.hook: method for method in find_marked_methods(cls)}


Problem: TypeAlias = tuple[str, str]
"""One way in which a class breaks the contract, and what its author is to do."""


def find_problem(cls: Any, name: str | None = None) -> Problem | None:
    """Return the first reason why a class could not be used, or would harm the process;
    None for a valid class.

    epctx-conformance checks the rest of the contract.

    Args:
        cls: the value that a plugin or a host gave.
        name: the name of its entry point, if it has one.
    """
    if not (inspect.isclass(cls) and issubclass(cls, ExecutionProvider)):
        hint = "Derive it from ExecutionProvider; the entry point names the class."
        return "it is not a subclass of epctx_core.plugin.ExecutionProvider", hint

    version: object = cls.api_version
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        hint = f"Write api_version = {PLUGIN_API}, the PLUGIN_API it was written for."
        return f"api_version is {version!r}, not a whole number from 1", hint
    if version > PLUGIN_API:
        # It may have other hooks and rules, so nothing else would be true.
        fault = (
            f"it was written for plugin API {version}, and this epctx-core has "
            f"{PLUGIN_API}"
        )
        return fault, "Upgrade epctx-core, or install an older version of the plugin."
    return _find_wrong_attribute(cls, name) or _find_wrong_hook(cls)


def _find_wrong_attribute(
    cls: type[ExecutionProvider], expected_name: str | None
) -> Problem | None:
    own_name = getattr(cls, "name", None)
    # Both become parts of names of files.
    texts = {"name": own_name, "binary_suffix": cls.binary_suffix or own_name}
    for attribute, text in texts.items():
        if not isinstance(text, str) or not EP_NAME.fullmatch(text):
            hint = "Use letters, digits, '_', '.' and '-'."
            return f"{attribute} is {text!r:.80}", hint
    if expected_name not in (None, own_name):
        hint = "Give the entry point the name of the class: both are the EP's."
        return f"its name is {own_name!r}, but it was found as {expected_name!r}", hint

    for attribute in ("options", "dynamic_options"):
        options: Any = getattr(cls, attribute)
        hint = 'Write a tuple of ProviderOption("name", int, default=…, doc="…").'
        if not isinstance(options, tuple | list | set | frozenset):
            return f"{attribute} is {options!r:.80}, not of type tuple or list", hint
        for option in options:
            if not _is_settable(option):
                fault = f"{attribute} holds {option!r:.160}, which is not a "
                return fault + "ProviderOption that a host can set", hint
    return None


def _is_settable(option: object) -> bool:
    """Return whether an option can parse a host's text, whatever that is."""
    return (
        isinstance(option, ProviderOption)
        and isinstance(option.name, str)
        and option.type in (bool, int, float, str)
        and isinstance(option.default, str | int | float | None)
        and isinstance(option.choices, tuple | list)
        and isinstance(option.doc, str)
    )


def _find_wrong_hook(cls: type[ExecutionProvider]) -> Problem | None:
    """Return a hook that is missing, unknown or implemented twice."""
    implemented = [method.hook for method in find_marked_methods(cls)]
    for hook in implemented:
        if hook not in HOOKS:
            fault = f"a method is marked with @hookimpl, but there is no hook {hook!r}"
            known = f"{suggestion(hook, HOOKS)} Hooks: {', '.join(HOOKS)}."
            return fault, _GONE.get(hook, known.lstrip())
        if implemented.count(hook) > 1:
            return f"it implements {hook} more than once", "Implement each hook once."
    for hook, row in HOOKS.items():
        if row.needed_for == "run" and hook not in implemented:
            fault = f"the required hook {hook} is missing"
            return fault, f"Implement {hook}, marked with @hookimpl."
    return None


def import_provider(
    record: PluginRecord,
) -> tuple[PluginRecord, type[ExecutionProvider] | None, BaseException | None]:
    """Import and check a class; raise nothing but KeyboardInterrupt.

    Args:
        record: the EP's record, with entry point and name.

    Returns:
        The EP's new record; its class, or None if it can't be used; the exception that
        the plugin raised, or None.
    """
    try:
        cls = load_object(record.entry_point)
        problem = find_problem(cls, record.name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, SystemExit included
        broken = mark_broken(record, error, f"{record.entry_point} failed to import")
        return broken, None, error
    if problem is not None:
        # The plugin's author reads this, too, and can follow the hint.
        reason = f"{record.entry_point} breaks the contract: {'. '.join(problem)}"
        broken = replace(
            record, state=PluginState.BROKEN, reason=reason.removesuffix(".")
        )
        return broken, None, None
    loaded = replace(
        record,
        state=PluginState.LOADED,
        reason="",
        vendor=cls.vendor or None,
        simulated=cls.simulated,
    )
    return loaded, cls, None
