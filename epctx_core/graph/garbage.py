"""The cyclic garbage collector, paused while the objects of a large model are made.

Each collection walks every object there is, so that building an index over a large
graph would cost more than linear time: 1.3 times as much for 10,000 nodes, 1.5 times
from 30,000 on; below, nothing that can be measured.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PAUSED_FROM = 10_000
"""Nodes from which a pause pays."""

_thread = threading.local()


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
