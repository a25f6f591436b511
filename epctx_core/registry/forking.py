"""Objects of a parent process in a forked child: those that it may use, and those that
it must not touch.

A fork copies memory but no threads and no devices. Tables of names can be used on; EPs,
their engines and what they hold are the parent's. Objects look at the process when they
are used: a hook at each fork would cost every fork of the host, and run between a
host's `fork` and `exec`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Object that each process makes for itself; an inherited one is kept and never
    used.

    Args:
        make: makes it, on the first use in a process.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[int, T] = {}

    def get(self) -> T:
        """Return the object of this process."""
        process = os.getpid()
        value = self._made.get(process)
        # Of two threads that come first, both get the one that was kept.
        return self._made.setdefault(process, self._make()) if value is None else value


def keep_forever(inherited: object) -> None:
    """Keep an object alive for ever, even when the process ends.

    For objects that a child inherits: onnxruntime's destructor joins threads that a
    fork did not copy, and crashes; a vendor's may stop a device that the parent uses.
    """
    import ctypes

    # Python has no object that holds another this long: modules are emptied when the
    # interpreter ends, cycles are collected then, and one that was set aside
    # (`gc.freeze`) is so only until a host takes that back.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
