"""Forked processes: what a child may go on using of its parent's, and what it must leave alone.

A fork copies memory but no threads and no devices. Tables of names can be used on if no other thread was in the
middle of changing them; EPs, their engines and what they hold are the parent's.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

_held: WeakSet[Any] = WeakSet()
_adding = threading.RLock()  # a set that grows while a fork goes through it would stop that


def hold_while_forking(lock: Any) -> None:
    """Fork only while no other thread has a lock, so that a child finds what it guards whole and the lock free.

    For locks that are held for a moment and under which nobody else's code runs.

    Args:
        lock: a `threading.Lock` or `RLock`; let go of when its owner is.
    """
    with _adding:
        _held.add(lock)


def keep_forever(inherited: object) -> None:
    """Never let go of an object, not even when the process ends.

    For what a child inherits: onnxruntime's destructor joins threads that a fork did not copy, and crashes;
    a vendor's may stop a device that the parent uses.
    """
    import ctypes  # only a forked child needs it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


_while_forking = threading.local()


def _hold() -> None:
    _adding.acquire()
    _while_forking.locks = [*_held, _adding]
    for lock in _while_forking.locks[:-1]:
        lock.acquire()


def _let_go() -> None:
    for lock in _while_forking.locks:
        lock.release()
    del _while_forking.locks


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)
