"""The host's process: its garbage collector, paused while the objects of a large model
are made, and its forks.

Each collection walks every object there is, so that building an index over a large
graph would cost more than linear time: 1.3 times as much for 10,000 nodes, 1.5 times
from 30,000 on; below, nothing that can be measured.

A fork copies memory but no threads and no devices. Tables of names can be used on; EPs,
their engines and what they hold are the parent's. Objects look at the process when they
are used: a hook at each fork would cost every fork of the host, and run between a
host's `fork` and `exec`.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

PAUSED_FROM = 10_000
"""Nodes from which a pause pays."""

_thread = threading.local()
T = TypeVar("T")


@contextmanager
def pause_collection(nodes: int) -> Iterator[None]:
    """Keep the collector off inside the block if it works on so many nodes, unless it
    is off already.

    The collector belongs to the whole process: of blocks in several threads, the first
    that ends turns it on again. A process that another thread forks inside begins with
    the collector off.
    """
    if nodes < PAUSED_FROM or not gc.isenabled():
        yield
        return
    gc.disable()
    _thread.paused = True
    try:
        yield
    finally:
        _thread.paused = False
        gc.enable()


@contextmanager
def resume_collection() -> Iterator[None]:
    """Resume the collector inside the block if this thread paused it.

    For calls of plugins, which may produce any amount of garbage. Existing objects are
    frozen: they are in use, and the collector would walk all of them in vain.
    """
    if not getattr(_thread, "paused", False):
        yield
        return
    freezes = not gc.get_freeze_count()  # unfreezing would undo a freeze of the host
    if freezes:
        gc.freeze()
    gc.enable()
    try:
        yield
    finally:
        gc.disable()
        if freezes:
            gc.unfreeze()


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
