"""The live EPs of one session: makes them, calls their hooks one owner at a time, and shuts them down once.

A hook is called as what its class marks, by the arguments that it names: no property of an instance is evaluated, no
`__eq__` or `__hash__` is called, and what the EP raises is attributed to it.
Knows no registry.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any

from epctx_core.errors import NotImplementedByProvider
from epctx_core.forwarding import import_installed
from epctx_core.plugin.hookspecs import HOOKS
from epctx_core.registry.guard import blame, check_result, describe_type, plugin_error
from epctx_core.registry.importing import MarkedMethod, implemented_hooks

if TYPE_CHECKING:
    from epctx_core.plugin import CompiledPartition, ExecutionProvider, ProviderContext
    from epctx_core.registry.records import PluginRecord

_log = logging.getLogger("epctx")
TRACE_VARIABLE = "EPCTX_TRACE"
"""Set to anything but 0 for a line for each call, by epctx-conformance."""

Implementation = Callable[[Mapping[str, Any]], Any]
"""Calls an EP's method with those of a hook's arguments that it names; the answer is checked."""


def _make_implementation(
    record: PluginRecord, provider: ExecutionProvider, method: MarkedMethod
) -> Implementation:
    hook = method.hook
    row = HOOKS[hook]
    bound = method.static.__get__(provider, type(provider))
    names = [parameter.name for parameter in method.parameters]

    def implementation(arguments: Mapping[str, Any]) -> Any:
        given = [arguments[name] for name in names]
        with blame(record, hook):
            answer = bound(*given)
        return check_result(record, row, answer)

    return implementation


class ProviderInstances:
    """One session's EP instances, in priority order.

    `add` belongs to the making of a session and is called from one thread; `call` and `shutdown` may be called
    from any.
    """

    def __init__(self) -> None:
        """Begin without any; where EPCTX_TRACE asks for it, each call of a hook is told.

        Raises:
            PackageMissing: it asks, and epctx-conformance is not installed.
        """
        self._records: dict[str, PluginRecord] = {}
        self._hooks: dict[str, dict[str, Implementation]] = {}
        self._waiting: list[str] = []
        self._lock = threading.Lock()
        self._trace: Callable[[Implementation, str, Mapping[str, Any]], Any] | None = None
        if os.environ.get(TRACE_VARIABLE, "").strip() not in ("", "0"):
            self._trace = import_installed("epctx_conformance.tracing", needed_by=TRACE_VARIABLE).trace

    @property
    def names(self) -> tuple[str, ...]:
        """The EP names, in order of priority."""
        return tuple(self._hooks)

    def record(self, name: str) -> PluginRecord:
        """Return the record of an EP."""
        return self._records[name]

    def implements(self, ep: str, hook: str) -> bool:
        """Whether an EP of this session has an optional hook; cheap enough for every run."""
        return hook in self._hooks[ep]

    def add(self, record: PluginRecord, cls: type[ExecutionProvider], context: ProviderContext) -> None:
        """Make an instance and register it; on failure nothing stays registered.

        Args:
            record: the EP's.
            cls: its class, which the registry checked when it was loaded or given.
            context: what the instance gets.

        Raises:
            PluginError: its `__init__` raised.
            EpctxError: its `__init__` raised this one, such as InvalidArgument for options that
                contradict each other.
        """
        with blame(record, "__init__"):
            provider = cls(context)
        if type(provider) is not cls:
            raise plugin_error(
                f"{record.label}: {cls.__qualname__}(context) made {describe_type(provider)} instead of an instance.",
                record,
                hook="__init__",
                hint="Leave out __new__.",
            )
        self._hooks[record.name] = {
            hook: _make_implementation(record, provider, method)
            for hook, method in implemented_hooks(cls).items()
        }
        self._records[record.name] = record
        self._waiting.append(record.name)

    def call(self, ep: str, hook: str, /, **arguments: Any) -> Any:
        """Call one EP's implementation of a hook and return its result.

        Args:
            ep: the EP type; passed on as the hook's argument `ep`.
            hook: the hook's name.
            arguments: all other arguments of the hook.

        Raises:
            NotImplementedByProvider: the EP does not implement the hook.
            EPFail: the EP raised in `compile`.
            PluginError: the EP raised in another hook, or its answer is not what the table of hooks says.
            EpctxError: the EP raised it; it passes.
        """
        implementation = self._hooks[ep].get(hook)
        if implementation is None:
            raise NotImplementedByProvider(
                f"{self._records[ep].label} does not implement the hook {hook}.",
                ep=ep,
                hint="Use an EP that does, or ask the plugin's author for it.",
            )
        arguments["ep"] = ep
        if self._trace is not None:
            return self._trace(implementation, hook, arguments)
        return implementation(arguments)

    def shutdown(self) -> None:
        """Call `shutdown` once on each EP that has it, in reverse order, and let go of all; further calls do nothing.

        What one of them raises is logged and does not keep the others from being shut down; a
        KeyboardInterrupt is raised again at the end.
        """
        with self._lock:
            waiting, self._waiting = self._waiting, []
        interrupt: KeyboardInterrupt | None = None
        for ep in reversed(waiting):
            try:
                if self.implements(ep, "shutdown"):
                    self.call(ep, "shutdown")
            except KeyboardInterrupt as error:
                interrupt = error
            except Exception as error:  # noqa: BLE001 - the other EPs hold devices and memory too
                _log.error("shutdown of %s: %s", self._records[ep].label, error)
                _log.debug("shutdown of %s", self._records[ep].label, exc_info=error)
        if waiting:  # else somebody else has taken them and is still at it
            self._hooks.clear()
        if interrupt is not None:
            raise interrupt


def collect_closers(results: Iterable[CompiledPartition]) -> list[Callable[[], None]]:
    """Return what closes results of hooks: what several of them have in common once, at the place of the last."""
    found: dict[object, Callable[[], None]] = {}
    for close in (result.close for result in results):
        if close is not None:
            # A bound method is another object each time that it is asked for.
            key = (id(close.__self__), id(close.__func__)) if isinstance(close, MethodType) else id(close)
            found.pop(key, None)
            found[key] = close
    return list(found.values())
