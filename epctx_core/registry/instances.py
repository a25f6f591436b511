"""EP instances of one session: made in order, called one EP at a time, shut down once.

A hook is the method that the class marks, called with the arguments that it names: no
property of an instance is evaluated, no `__eq__` or `__hash__` is called, and
exceptions are attributed to the EP.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

from epctx_core.errors import NotImplementedByProvider
from epctx_core.forwarding import import_installed
from epctx_core.plugin.hookspecs import HOOKS
from epctx_core.registry.guard import (
    blame,
    check_result,
    close_quietly,
    describe_type,
    plugin_error,
)
from epctx_core.registry.importing import MarkedMethod, implemented_hooks

if TYPE_CHECKING:
    from epctx_core.plugin import CompiledPartition, ExecutionProvider, ProviderContext
    from epctx_core.registry.records import PluginRecord

TRACE_VARIABLE = "EPCTX_TRACE"
"""Any value but 0: epctx-conformance writes a line for each call."""

Implementation = Callable[[Mapping[str, Any]], Any]
"""Calls an EP's method with the arguments of the hook that it names, and checks the
result.
"""


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
            result = bound(*given)
        return check_result(record, row, result)

    return implementation


class ProviderInstances:
    """EP instances of one session, in order of priority.

    `add` is called from one thread while the session is made; `call` and `shutdown` may
    be called from any.
    """

    def __init__(self) -> None:
        """Make an empty one; if EPCTX_TRACE is set, each call of a hook is traced.

        Raises:
            PackageMissing: EPCTX_TRACE is set, and epctx-conformance is not installed.
        """
        self._records: dict[str, PluginRecord] = {}
        self._hooks: dict[str, dict[str, Implementation]] = {}
        self._waiting: list[str] = []
        self._lock = threading.Lock()
        self._trace: Callable[[Implementation, str, Mapping[str, Any]], Any] | None = (
            None
        )
        if os.environ.get(TRACE_VARIABLE, "").strip() not in ("", "0"):
            self._trace = import_installed(
                "epctx_conformance.tracing", needed_by=TRACE_VARIABLE
            ).trace

    @property
    def names(self) -> tuple[str, ...]:
        """EP names in order of priority."""
        return tuple(self._hooks)

    def record(self, name: str) -> PluginRecord:
        """Return the record of an EP."""
        return self._records[name]

    def implements(self, ep: str, hook: str) -> bool:
        """Return whether an EP of this session has a hook; cheap enough for every
        run.
        """
        return hook in self._hooks[ep]

    def add(
        self,
        record: PluginRecord,
        cls: type[ExecutionProvider],
        context: ProviderContext,
    ) -> None:
        """Make an instance and register it; on failure nothing stays registered.

        Args:
            record: the EP's record.
            cls: its class, checked by the registry.
            context: the argument of its `__init__`.

        Raises:
            PluginError: its `__init__` raised.
            EpctxError: raised by its `__init__`, such as InvalidArgument for
                contradicting options.
        """
        with blame(record, "__init__"):
            provider = cls(context)
        if type(provider) is not cls:
            raise plugin_error(
                f"{record.label}: {cls.__qualname__}(context) made "
                f"{describe_type(provider)} instead of an instance.",
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
            ep: the EP name; passed on as the hook's argument `ep`.
            hook: the hook's name.
            arguments: all other arguments of the hook.

        Raises:
            NotImplementedByProvider: the EP does not implement the hook.
            EPFail: the EP raised in `compile`.
            PluginError: the EP raised in another hook, or its result breaks the
                contract.
            EpctxError: raised by the EP.
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
        """Call `shutdown` once on each EP that has it, in reverse order; further calls
        do nothing.

        An exception is logged and does not affect the other EPs; a KeyboardInterrupt is
        raised again at the end.
        """
        with self._lock:
            waiting, self._waiting = self._waiting, []
        interrupt: KeyboardInterrupt | None = None
        for ep in reversed(waiting):
            if self.implements(ep, "shutdown"):
                try:
                    close_quietly(
                        partial(self.call, ep, "shutdown"),
                        f"shutdown of {self._records[ep].label}",
                    )
                except KeyboardInterrupt as error:
                    interrupt = error
        if waiting:  # else another thread is shutting them down
            self._hooks.clear()
        try:
            if interrupt is not None:
                raise interrupt
        finally:
            # its traceback has this frame, which would keep the session in a cycle; so
            # does an ExitStack
            del interrupt


def collect_closers(results: Iterable[CompiledPartition]) -> list[Callable[[], None]]:
    """Return the `close` functions of results; one that several share is called once,
    in the order of the last of them.
    """
    found: dict[object, Callable[[], None]] = {}
    for close in (result.close for result in results):
        if close is not None:
            # A bound method is another object each time that it is asked for.
            key = (
                (id(close.__self__), id(close.__func__))
                if isinstance(close, MethodType)
                else id(close)
            )
            found.pop(key, None)
            found[key] = close
    return list(found.values())
