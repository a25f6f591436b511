"""The live EPs of one session: makes them, calls their hooks one owner at a time, and shuts them down once.

Each EP sits in the session's pluggy manager as a seat that holds its hooks and nothing else, so that
pluggy never touches the instance: no property is evaluated, no `__eq__` or `__hash__` is called, and what
the EP raises is attributed to it before a host's wrapper sees it. Knows no registry.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Iterable
from types import MethodType
from typing import TYPE_CHECKING, Any

import pluggy

from epctx_core.errors import (
    EpctxError,
    Fail,
    InvalidArgument,
    NotFound,
    NotImplementedByProvider,
    PluginError,
    suggestion,
)
from epctx_core.plugin.hookspecs import HOOKS, PROJECT, HookSpecs
from epctx_core.registry import trace
from epctx_core.registry.guard import answered, blame, check_answer, describe, kind_of, plugin_error
from epctx_core.registry.loading import MarkedMethod, implemented_hooks, marked_methods, parameter_problems

if TYPE_CHECKING:
    from epctx_core.plugin import CompiledPartition, ExecutionProvider, ProviderContext
    from epctx_core.registry.records import PluginRecord

_log = logging.getLogger("epctx")


class _Seat:
    """What stands for an EP, or for a host's wrapper, in the pluggy manager: an object with hooks only."""


class _Live:
    """One EP instance with its seat."""

    def __init__(self, record: PluginRecord, provider: ExecutionProvider) -> None:
        self.record = record
        self.provider = provider
        self.seat = _Seat()
        self.hooks = implemented_hooks(type(provider))
        self.entered: set[str] = set()
        for hook, method in self.hooks.items():
            setattr(self.seat, hook, self._implementation(hook, method))

    def _implementation(self, hook: str, method: MarkedMethod) -> Callable[..., Any]:
        """Return a function with the hook's whole signature that calls the EP's method with what it names.

        It holds what it needs and not this object, whose seat holds it.
        """
        row = HOOKS[hook]
        names = tuple(row.arguments)
        bound = method.static.__get__(self.provider, type(self.provider))
        places = [names.index(parameter.name) for parameter in method.parameters]
        record, entered = self.record, self.entered

        def implementation(*arguments: object) -> Any:
            entered.add(hook)
            with blame(record, hook):
                answer = bound(*[arguments[place] for place in places])
            return answered(record, row, answer)

        return row.implementation(implementation)


class _Seating(pluggy.PluginManager):
    """The pluggy manager of seats: looks for hooks where they can be, not at each attribute that `object` has, too."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> pluggy.HookimplOpts | None:
        return super().parse_hookimpl_opts(plugin, name) if name in vars(plugin) else None

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> pluggy.HookspecOpts | None:
        return super().parse_hookspec_opts(module_or_class, name) if name in HOOKS else None


class ProviderInstances:
    """One session's EP instances, in priority order, registered in one pluggy manager.

    `add` and `wrap` belong to the making of a session and are called from one thread; `call` and
    `shutdown` may be called from any.
    """

    def __init__(self) -> None:
        """Make a session's empty manager."""
        self._manager = _Seating(PROJECT)
        self._manager.add_hookspecs(HookSpecs)
        self._live: dict[str, _Live] = {}
        self._wrappers: list[tuple[object, _Seat]] = []
        self._callers: dict[tuple[str, str], Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self._open: list[_Live] = []
        if trace.requested():
            self.wrap(trace.tracer())

    @property
    def names(self) -> tuple[str, ...]:
        """The EP types, in order of priority."""
        return tuple(self._live)

    def get(self, name: str) -> ExecutionProvider:
        """Return the instance of an EP type.

        Raises:
            NotFound: the session has no such EP.
        """
        return self._known(name).provider

    def record(self, name: str) -> PluginRecord:
        """Return the record of an EP type.

        Raises:
            NotFound: the session has no such EP.
        """
        return self._known(name).record

    def _known(self, name: str) -> _Live:
        live = self._live.get(name)
        if live is None:
            there = ", ".join(self._live) or "none"
            raise NotFound(
                f"this session has no Execution Provider {name!r}.{suggestion(name, self._live)}",
                ep=name,
                hint=f"Its Execution Providers: {there}.",
            )
        return live

    def implements(self, ep: str, hook: str) -> bool:
        """Whether an EP of this session has an optional hook; cheap enough for every run.

        Raises:
            NotFound: the session has no such EP.
        """
        return hook in self._known(ep).hooks

    def add(self, record: PluginRecord, cls: type[ExecutionProvider], context: ProviderContext) -> None:
        """Make an instance and register it; on failure nothing stays registered.

        Args:
            record: the EP's.
            cls: its class, which the registry checked when it was loaded or given.
            context: what the instance gets.

        Raises:
            InvalidArgument: the session has an EP of this type already.
            PluginError: its `__init__` raised.
            EpctxError: its `__init__` raised this one, such as InvalidArgument for options that
                contradict each other.
        """
        if record.name in self._live:
            raise InvalidArgument(
                f"{record.name} is listed twice among the session's providers.",
                ep=record.name,
                hint="List it once.",
            )
        with blame(record, "__init__"):
            provider = cls(context)
        if type(provider) is not cls:
            raise plugin_error(
                f"{record.label}: {cls.__qualname__}(context) made {kind_of(provider)} instead of an instance.",
                record,
                hook="__init__",
                hint="Leave out __new__.",
            )
        live = _Live(record, provider)
        self._manager.register(live.seat, name=record.name)
        self._live[record.name] = live
        self._open.append(live)
        self._callers.clear()

    def wrap(self, plugin: object) -> None:
        """Register a host's hook wrappers (trace, time, progress); they see every EP's calls of their hooks.

        Args:
            plugin: an object or module with functions marked `hookimpl(wrapper=True)`. What they get
                from `yield`, and return, is pluggy's list of results, here of at most one.

        Raises:
            InvalidArgument: it is registered already, has no wrapper, or has something else than
                wrappers of hooks of the contract.
        """
        if any(plugin is other for other, _ in self._wrappers):
            raise InvalidArgument(f"{plugin!r} is registered as a wrapper already.")
        if inspect.isclass(plugin):
            raise InvalidArgument(f"{plugin!r} is a class.", hint="Give an instance of it.")
        methods = list(marked_methods(plugin))
        if not methods:
            raise InvalidArgument(
                f"{plugin!r} has no hook wrapper.", hint="Mark them with hookimpl(wrapper=True)."
            )
        seat = _Seat()
        for method in methods:
            _check_wrapper(method)
            setattr(seat, method.attribute, getattr(plugin, method.attribute))
        self._manager.register(seat, name=f"host wrapper {len(self._wrappers)}")
        self._wrappers.append((plugin, seat))
        self._callers.clear()

    def call(self, ep: str, hook: str, /, **arguments: Any) -> Any:
        """Call one EP's implementation of a hook, inside the host's wrappers, and return its result.

        Args:
            ep: the EP type; passed on as the hook's argument `ep`.
            hook: the hook's name.
            arguments: all other arguments of the hook.

        Raises:
            NotFound: the session has no such EP.
            NotImplementedByProvider: the EP does not implement the hook.
            InvalidArgument: there is no such hook, or not these arguments.
            EPFail: the EP raised in `compile`.
            PluginError: the EP raised in another hook, or its answer is not what the table of hooks says.
            Fail: a host's wrapper raised, or spoilt the result.
            EpctxError: the EP raised it; it passes.
        """
        live = self._known(ep)
        caller = self._callers.get((ep, hook)) or self._caller(live, hook)
        expected = tuple(HOOKS[hook].arguments)[1:]
        if arguments.keys() != set(expected):
            raise InvalidArgument(
                f"{hook} was called with {sorted(arguments)}; its arguments: {', '.join(expected) or 'none'}.",
                ep=ep,
            )
        try:
            results = caller(ep=ep, **arguments)
        except BaseException as error:
            _release_from_pluggy(error)
            if isinstance(error, (EpctxError, KeyboardInterrupt)):
                raise
            raise _wrapper_failed(live, hook, describe(error)) from error
        answer = _single(live, hook, results)
        if self._wrappers and not HOOKS[hook].caller_checks:
            try:
                check_answer(live.record, HOOKS[hook], answer)
            except PluginError as error:
                raise _wrapper_failed(live, hook, f"it changed the answer: {error.message}") from error
        return answer

    def _caller(self, live: _Live, hook: str) -> Callable[..., Any]:
        """Make, and keep, the caller of one EP's implementation."""
        name = live.record.name
        if hook not in HOOKS:
            raise InvalidArgument(f"there is no hook {hook!r}.{suggestion(hook, HOOKS)}", ep=name)
        if hook not in live.hooks:
            raise NotImplementedByProvider(
                f"{live.record.label} does not implement the hook {hook}.",
                ep=name,
                hint="Use an EP that does, or ask the plugin's author for it.",
            )
        others = [other.seat for other in self._live.values() if other is not live]
        caller = self._manager.subset_hook_caller(hook, others)
        self._callers[name, hook] = caller
        return caller

    def shutdown(self) -> None:
        """Call `shutdown` once on each EP that has it, in reverse order, and let go of all; further calls do nothing.

        What one of them raises is logged and does not keep the others from being shut down; a
        KeyboardInterrupt is raised again at the end.
        """
        with self._lock:
            waiting, self._open = self._open, []
        interrupt: KeyboardInterrupt | None = None
        for live in reversed(waiting):
            try:
                self._shut(live)
            except KeyboardInterrupt as error:
                interrupt = error
            except Exception as error:  # noqa: BLE001 - the other EPs hold devices and memory too
                _log.error("shutdown of %s: %s", live.record.label, error)
                _log.debug("shutdown of %s", live.record.label, exc_info=error)
        if waiting:
            self._let_go()
        if interrupt is not None:
            raise interrupt

    def _let_go(self) -> None:
        """Forget EPs and wrappers: a pluggy manager is a cycle, and what is in it stays until the collector comes by."""
        for seat in (*[live.seat for live in self._live.values()], *[seat for _, seat in self._wrappers]):
            self._manager.unregister(seat)
        self._callers.clear()
        self._wrappers.clear()
        self._live.clear()

    def _shut(self, live: _Live) -> None:
        if "shutdown" not in live.hooks:
            return
        try:
            self.call(live.record.name, "shutdown")
        finally:
            if "shutdown" not in live.entered:  # a host's wrapper failed first, and the EP must still let go
                live.seat.shutdown(live.record.name)  # type: ignore[attr-defined]


def closers(results: Iterable[CompiledPartition]) -> list[Callable[[], None]]:
    """Return what closes results of hooks: what several of them have in common once, at the place of the last."""
    found: dict[object, Callable[[], None]] = {}
    for close in (result.close for result in results):
        if close is not None:
            # A bound method is another object each time that it is asked for.
            key = (id(close.__self__), id(close.__func__)) if isinstance(close, MethodType) else id(close)
            found.pop(key, None)
            found[key] = close
    return list(found.values())


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


def _single(live: _Live, hook: str, results: object) -> Any:
    """Return the one result out of pluggy's list, which leaves out None."""
    if not isinstance(results, list) or len(results) > 1:
        raise _wrapper_failed(
            live, hook, f"it returned {kind_of(results)} instead of the list that yield gave"
        )
    result = results[0] if results else None
    if HOOKS[hook].gives_list and not isinstance(result, (list, tuple)):
        raise _wrapper_failed(live, hook, f"it turned the EP's list into {kind_of(result)}")
    return result


def _wrapper_failed(live: _Live, hook: str, what: str) -> Fail:
    return Fail(
        f"a wrapper that the host put around {hook} of {live.record.name} failed: {what}",
        ep=live.record.name,
        hint="The EP is not at fault; see the wrappers that this program registers.",
    )
