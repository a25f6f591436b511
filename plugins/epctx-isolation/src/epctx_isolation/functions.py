"""Functions in a child: native code reads there what may be damaged or hostile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from epctx_core import Registry
from epctx_core.errors import Fail
from epctx_isolation import calls
from epctx_isolation.children import begin
from epctx_isolation.limits import Limits
from epctx_isolation.orders import keep_objects
from epctx_isolation.process import Call, ChildProcess
from epctx_isolation.results import decode_fields

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

T = TypeVar("T")


class IsolatedFunctions:
    """Process that calls functions, without any EP; what they do can end it, and not
    the host.

    It is started at the first call, and anew at the one after a call that ended it. It
    does one call at a time.

    Args:
        seconds: of one call; above them the process is ended. May be infinite.
        max_bytes: of memory for data, and of the result; None for any.
    """

    def __init__(self, *, seconds: float, max_bytes: int | None) -> None:
        self._limits = Limits(seconds=seconds, between=seconds, max_bytes=max_bytes)
        self._registry = Registry(entry_points=False)
        self._child: ChildProcess | None = None
        self._turn = threading.Lock()

    @staticmethod
    def are_available() -> bool:
        """Return whether this system has what a child needs."""
        return hasattr(os, "preadv")

    def call(self, function: Callable[..., Any], *arguments: Any, result: type[T]) -> T:
        """Call a function; return its result.

        Args:
            function: the function, which the process can import.
            arguments: its arguments; arrays and memoryviews are copied once, into
                memory that the process maps.
            result: the class of its result: a frozen dataclass, an enum or a plain
                type; nothing else may come back.

        Raises:
            EpctxError: the function raised it; another exception is an InternalError.
            Fail: the process could not be started, ended, took too long, or sent what
                is not the result's class; `describe_end` says which.
        """
        with self._turn:
            child = self._take_child()
            call = Call(
                function=calls.call_function,
                arguments=(function, arguments),
                objects=keep_objects(None, self._registry),
                decode=partial(decode_fields, result),
                is_run=True,
            )
            answer: T = child.do(call)
            return answer

    def describe_end(self) -> str:
        """Return how the process ended, with the last line that it printed; empty while
        it is there.
        """
        is_over = self._child is not None and self._child.is_over
        return self._child.describe_end() if self._child and is_over else ""

    def kill(self) -> None:
        """End the process at once, also while another thread waits for a call, which
        then raises Fail.
        """
        if child := self._child:
            child.kill("it was ended by the host")

    def close(self) -> None:
        """End the process; another call begins a new one."""
        with self._turn:
            if self._child is not None:
                self._child.close()
            self._child = None

    def _take_child(self) -> ChildProcess:
        if self._child is not None and not self._child.is_over:
            return self._child
        if not self.are_available():
            raise Fail("no process can be started for isolated work on this system.")
        # That of an earlier call did not end by this one.
        self._child = None
        child = ChildProcess(self._limits)
        try:
            begin(child, self._registry)
        except BaseException:
            child.close()
            raise
        self._child = child
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()
