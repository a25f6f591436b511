"""Hook wrappers that a host puts around every EP's calls, and `trace`, the one that EPCTX_TRACE asks for.

Pluggy runs them; an EP never meets it.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from epctx_core.errors import EpctxError, Fail, InvalidArgument, PluginError, concealed, suggestion
from epctx_core.plugin.hookspecs import HOOKS, PROJECT, Hook, HookSpecs
from epctx_core.registry.guard import check_answer, describe, kind_of
from epctx_core.registry.loading import MarkedMethod, marked_methods, parameter_problems

if TYPE_CHECKING:
    from epctx_core.registry.instances import Implementation
    from epctx_core.registry.records import PluginRecord


class _Seat:
    """Object in the pluggy manager that has hooks and nothing else, for EPs or for one host's wrappers."""


class Wrappers:
    """The wrappers of one session; of two around a hook the later one is outside.

    Args:
        implementation_of: returns the implementation of a hook by the EP of a name.
    """

    def __init__(self, implementation_of: Callable[[str, str], Implementation]) -> None:
        self._implementation_of = implementation_of
        self._plugins: list[object] = []
        self._seats: list[_Seat] = []
        self._ended: set[str] = set()
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(HookSpecs)
        seat = _Seat()
        for hook in HOOKS.values():
            setattr(seat, hook.name, hook.implementation(self._inner(hook)))
        self._register(seat)

    def _inner(self, hook: Hook) -> Callable[..., Any]:
        """Return what stands in the middle of a hook's wrappers: it calls the EP that `ep` names."""
        names = tuple(hook.arguments)

        def inner(*given: object) -> Any:
            arguments = dict(zip(names, given, strict=True))
            ep = str(arguments["ep"])
            if hook.name == "shutdown":
                self._ended.add(ep)
            return self._implementation_of(ep, hook.name)(arguments)

        return inner

    def _register(self, seat: _Seat) -> None:
        try:
            self._manager.register(seat)
        except BaseException:
            if self._manager.is_registered(seat):  # with some of its hooks
                self._manager.unregister(seat)
            raise
        self._seats.append(seat)

    def release(self) -> None:
        """Let go of all: a pluggy manager is a cycle, and what is in it stays until the collector comes by."""
        for seat in self._seats:
            self._manager.unregister(seat)
        self._seats.clear()

    def add(self, plugin: object) -> None:
        """Add wrappers of hooks.

        Args:
            plugin: an object or module with functions marked `hookimpl(wrapper=True)`. What they get
                from `yield`, and return, is pluggy's list of results, here of at most one.

        Raises:
            InvalidArgument: it is there already, has no wrapper, or has something else than
                wrappers of hooks of the contract.
        """
        if any(plugin is other for other in self._plugins):
            raise InvalidArgument(f"{plugin!r} is registered as a wrapper already.")
        if inspect.isclass(plugin):
            raise InvalidArgument(f"{plugin!r} is a class.", hint="Give an instance of it.")
        methods = list(marked_methods(plugin))
        if not methods:
            raise InvalidArgument(
                f"{plugin!r} has no hook wrapper.", hint="Mark them with hookimpl(wrapper=True)."
            )
        for method in methods:
            _check_wrapper(method)
        seat = _Seat()
        for method in methods:
            setattr(seat, method.attribute, getattr(plugin, method.attribute))
        try:
            self._register(seat)
        except pluggy.PluginValidationError as error:
            raise InvalidArgument(f"{plugin!r} is no wrapper that pluggy takes: {error}") from error
        self._plugins.append(plugin)

    def call(self, record: PluginRecord, hook: str, arguments: Mapping[str, Any]) -> Any:
        """Call an EP's implementation inside the wrappers; return what they leave of its answer.

        Raises:
            Fail: a wrapper raised, or spoilt the answer.
            EpctxError: the implementation raised it.
        """
        try:
            results = getattr(self._manager.hook, hook)(**arguments)
        except BaseException as error:
            _release_from_pluggy(error)
            if isinstance(error, (EpctxError, KeyboardInterrupt)):
                raise
            raise _failed(record, hook, describe(error)) from error
        finally:
            if (
                hook == "shutdown" and record.name not in self._ended
            ):  # a wrapper failed first, the EP must let go
                self._implementation_of(record.name, hook)(arguments)
        return _answer(record, hook, results)


def _check_wrapper(method: MarkedMethod) -> None:
    where = method.attribute
    if not method.wrapper:
        raise InvalidArgument(
            f"{where} is a hook implementation, and a host may only add wrappers.",
            hint="Mark it with hookimpl(wrapper=True).",
        )
    if method.hook not in HOOKS:
        raise InvalidArgument(
            f"{where}: there is no hook {method.hook!r}.{suggestion(method.hook, HOOKS)}",
            hint=f"Hooks: {', '.join(HOOKS)}.",
        )
    if not inspect.isgeneratorfunction(method.function):
        raise InvalidArgument(f"{where} has no yield.", hint="A wrapper yields once, where the EP is called.")
    for parameter in method.parameters:
        for problem in parameter_problems(where, method.hook, parameter):
            raise InvalidArgument(f"{problem.what}.", hint=problem.hint)


def _release_from_pluggy(error: BaseException) -> None:
    """Break the cycle that pluggy makes of an exception: a variable of its frames holds it, and its traceback them.

    All frames of the traceback would stay until the collector comes by, with the weights that they work on.
    """
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_globals.get("__name__", "").partition(".")[0] == pluggy.__name__:
            with contextlib.suppress(RuntimeError):  # it runs again, or still waits: not for this exception
                place.tb_frame.clear()
        place = place.tb_next


def _answer(record: PluginRecord, hook: str, results: object) -> Any:
    """Return the one result out of pluggy's list, which leaves out None; what wrappers made of it is checked."""
    row = HOOKS[hook]
    if not isinstance(results, list) or len(results) > 1:
        raise _failed(record, hook, f"it returned {kind_of(results)} instead of the list that yield gave")
    answer = results[0] if results else None
    if row.gives_list and not isinstance(answer, (list, tuple)):
        raise _failed(record, hook, f"it turned the EP's list into {kind_of(answer)}")
    if not row.caller_checks:
        try:
            check_answer(record, row, answer)
        except PluginError as error:
            raise _failed(record, hook, f"it changed the answer: {error.message}") from error
    return answer


def _failed(record: PluginRecord, hook: str, what: str) -> Fail:
    return Fail(
        f"a wrapper that the host put around {hook} of {record.name} failed: {what}",
        ep=record.name,
        hint="The EP is not at fault; see the wrappers that this program registers.",
    )


_LINE_END = "\n"  # behind it, one of our errors says what to do
_LONGEST = 60
_MOST_NUMBERS = 8
_log = logging.getLogger("epctx.trace")


def trace() -> object:
    """Return a wrapper that says each call: which EP, what it was given, how long it took, what came of it.

    It shows no value of an option.
    """
    return type("Trace", (), {name: _tracing(hook) for name, hook in HOOKS.items()})()


def _tracing(hook: Hook) -> Callable[..., Any]:
    names = tuple(hook.arguments)[1:]

    def traced(_self: object, ep: str, *arguments: object) -> Generator[None, Any, Any]:
        given = ", ".join(f"{n}={_abbreviated(a)}" for n, a in zip(names, arguments, strict=True))
        call = f"{ep}.{hook.name}({given})"
        start = time.perf_counter()
        try:
            results = yield
        except BaseException as error:
            _say(f"{call} raised {describe(error).partition(_LINE_END)[0]}", start)
            raise
        _say(f"{call} -> {_abbreviated(results[0]) if results else None}", start)
        return results

    return hook.implementation(traced, wrapper=True)


def _say(what: str, start: float) -> None:
    """Tell the host's log, or standard error where the host logs nothing of this kind."""
    line = f"{concealed(what)} [{(time.perf_counter() - start) * 1000:.3f} ms]"
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s", line)
    else:
        sys.stderr.write(f"epctx.trace: {line}\n")


def _abbreviated(value: object) -> str:
    """Return a short text for an argument or a result: how many of what, never their content."""
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…")
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(map(str, value))}}}"  # of options, names only: values may be secret
    if isinstance(value, tuple) and len(value) <= _MOST_NUMBERS and all(isinstance(v, int) for v in value):
        return repr(value)  # a shape
    if isinstance(value, (list, tuple)):
        kinds = dict.fromkeys(type(item).__name__ for item in value)
        return f"[{len(value)} {' | '.join(kinds)}]" if value else "[]"
    return type(value).__name__
