"""Turns what a plugin raises, and answers that break the contract, into one typed error that says whose it is.

Knows records and the table of hooks, not the registry.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from epctx_core.errors import EpctxError, EPFail, PluginError, concealed
from epctx_core.plugin.hookspecs import CLASS_METHODS, Hook
from epctx_core.registry.records import PluginRecord, PluginState

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider


def describe(error: BaseException) -> str:
    """Return type and text of an exception, also of one whose text can't be had."""
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - it is a plugin's exception class: even SystemExit may come out of it
        text = ""
    return concealed(f"{type(error).__name__}: {text}") if text else type(error).__name__


def mark_broken(record: PluginRecord, error: BaseException, what: str) -> PluginRecord:
    """Return a record as BROKEN by an exception, whose traceback it keeps as text.

    Args:
        record: whose plugin raised.
        error: what it raised.
        what: begins the reason, such as `acme:Acme failed to import`.
    """
    text = concealed("".join(traceback.format_exception(error)))
    reason = f"{what}: {describe(error)}"
    return replace(record, state=PluginState.BROKEN, reason=reason, traceback=text)


@contextmanager
def blame(record: PluginRecord, hook: str) -> Iterator[None]:
    """Attribute every exception of the block to a plugin.

    Meant for calls of hooks and of an EP's class methods.

    Raises:
        EpctxError: the plugin raised one; it passes, with the EP filled in.
        EPFail: anything else out of `compile`.
        PluginError: anything else out of any other hook, `SystemExit` and `GeneratorExit` included.
    """
    try:
        yield
    except EpctxError as error:
        # Its texts may be older than a secret's first use.
        error.message, error.hint = concealed(error.message), error.hint and concealed(error.hint)
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
            raise EPFail(message, ep=record.name, hint=_HINT) from error
        raise plugin_error(message, record, hook=hook, hint=_HINT) from error


def to_plain(answer: Any) -> Any:
    """Return a list or tuple of a plugin's as a plain list, a dict or text as a plain one, anything else as it is.

    No code of the plugin's runs: what a subclass says of itself may differ from one look to the next, raise, or never
    end. Items stay as they are.
    """
    kind = type(answer)
    if issubclass(kind, list):
        return list.copy(answer)
    if issubclass(kind, tuple):
        return list(tuple.__iter__(answer))
    if issubclass(kind, dict):
        return dict(dict.items(answer))
    return str.__str__(answer) if issubclass(kind, str) else answer


_HINT = "This is a fault of the plugin; its own exception is the cause of this error (`-v` shows it)."


def contract_error(record: PluginRecord, hook: str, what: str) -> PluginError:
    """Return the error for an answer that is not what the contract asks for.

    Args:
        record: whose answer.
        hook: to which hook.
        what: completes "it ...", such as `gave 2 results for 3 partitions`. Of what the plugin gave it shows types
            and plain values alone: the `repr` of anything else is the plugin's code.
    """
    return plugin_error(
        f"{record.label} broke the contract in {hook}: it {what}.",
        record,
        hook=hook,
        hint="This is a mistake in the plugin; report it to its vendor, or leave the EP out.",
    )


def call_class_method(
    record: PluginRecord, cls: type[ExecutionProvider], method: str, *arguments: object
) -> Any:
    """Ask an EP's class; return its answer, checked by the table of hooks.

    Raises:
        PluginError: it raised, or answered something else.
        EpctxError: it raised this one.
    """
    with blame(record, method):
        answer = getattr(cls, method)(*arguments)
    return check_result(record, CLASS_METHODS[method], answer)


def check_result(record: PluginRecord, hook: Hook, answer: Any) -> Any:
    """Return an answer if the table of hooks allows it: lists and texts as plain ones, a flag by its truth.

    Raises:
        PluginError: it is something else.
    """
    if hook.result == "bool":
        with blame(record, hook.name):
            return bool(answer)
    if hook.returns_list or hook.result == "str":
        answer = to_plain(answer)
    if hook.returns_list:
        if answer is None and hook.may_return_none:
            return None
        if type(answer) is not list:
            raise plugin_error(
                f"{record.label} returned {describe_type(answer)} from {hook.name} instead of a list.",
                record,
                hook=hook.name,
                hint="Return a list or tuple, an empty one for nothing.",
            )
    if not hook.caller_checks:
        check_result_types(record, hook, answer)
    return answer


def describe_type(value: object) -> str:
    """Return how messages call a value of a plugin's: no code of the plugin's runs."""
    return "None" if value is None else f"an object of type {type(value).__name__}"


def check_result_types(record: PluginRecord, hook: Hook, answer: Any, names: Sequence[object] = ()) -> None:
    """Raise PluginError unless an answer, or each item of a list, has the type that the table of hooks says.

    Args:
        record: whose answer.
        hook: to what.
        answer: a list where the hook gives one.
        names: for what the items are, if the error is to say so.
    """
    if hook.result == "None":  # whatever an EP returns there is dropped
        return
    expected = _types(hook.result_types)
    for number, item in enumerate(answer if hook.returns_list else [answer]):
        if not issubclass(type(item), expected):
            given = f" for {names[number]}" if names else ""
            raise contract_error(
                record, hook.name, f"gave a {type(item).__name__} instead of {hook.expected}{given}"
            )


@cache
def _types(names: tuple[str, ...]) -> tuple[type, ...]:
    """Return types by the names that specifications write."""
    from epctx_core import plugin

    found: list[type] = []
    for name in names:
        module, _, attribute = name.rpartition(".")
        if module:
            found.append(getattr(import_module({"np": "numpy"}.get(module, module)), attribute))
        else:
            found.append(
                type(None) if name == "None" else getattr(plugin, name, None) or getattr(builtins, name)
            )
    return tuple(found)


def plugin_error(
    message: str, record: PluginRecord, *, hook: str | None = None, hint: str | None = None
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
