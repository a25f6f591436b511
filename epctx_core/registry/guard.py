"""Conversion of exceptions of plugins and of the host's callbacks, and of results that
break the contract, into typed errors.
"""

from __future__ import annotations

import builtins
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from epctx_core.errors import EpctxError, EPFail, Fail, PluginError, concealed
from epctx_core.plugin.hookspecs import CLASS_METHODS, Hook
from epctx_core.registry.records import PluginRecord, PluginState

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider

_log = logging.getLogger("epctx.providers")


def describe(error: BaseException) -> str:
    """Return type and text of an exception; the type alone if its `__str__` fails."""
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - it is a plugin's exception class: even SystemExit may come out of it
        text = ""
    return (
        concealed(f"{type(error).__name__}: {text}") if text else type(error).__name__
    )


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
def blame(record: PluginRecord, hook: str) -> Iterator[None]:
    """Attribute every exception of a block that calls a hook or a class method to the
    plugin.

    Raises:
        EpctxError: raised by the plugin; passed on with the EP filled in.
        EPFail: any other exception of `compile`.
        PluginError: any other exception of another hook, `SystemExit` and
            `GeneratorExit` included.
    """
    try:
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
        caught: exceptions that are turned; all others pass, too.

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
    if hook.returns_list:
        if result is None and hook.may_return_none:
            return None
        if type(result) is not list:
            raise plugin_error(
                f"{record.label} returned {describe_type(result)} from {hook.name} "
                "instead of a list.",
                record,
                hook=hook.name,
                hint="Return a list or tuple, an empty one for nothing.",
            )

    if not hook.caller_checks:
        check_result_types(record, hook, result)
    return result


def describe_type(value: object) -> str:
    """Return the type of a plugin's value for messages, without running code of the
    plugin.
    """
    return "None" if value is None else f"an object of type {type(value).__name__}"


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
    from epctx_core import plugin

    types: list[type] = []
    for name in names:
        module, _, attribute = name.rpartition(".")
        if module:
            types.append(
                getattr(import_module({"np": "numpy"}.get(module, module)), attribute)
            )
        else:
            named = type(None) if name == "None" else getattr(plugin, name, None)
            types.append(named or getattr(builtins, name))
    return tuple(types)


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
