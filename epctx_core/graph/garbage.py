"""The cyclic garbage collector: paused while the objects of a large model are made, and over a fork.

Each collection walks every object there is, so that building an index over a large graph would cost more than linear
time: 1.3 times as much for 10,000 nodes, 1.5 times from 30,000 on; below, nothing that can be measured.

A forked child never collects what it inherits. If an onnxruntime session lies in a reference cycle, its destructor
waits in the child for threads that a fork does not copy: with onnxruntime 1.32 and such a session in garbage, 30 of 30
forks end in a crash or a hang, with or without epctx. Setting all aside (`gc.freeze`) when the child begins is enough,
but it has to come before any code that allocates, and other packages' hooks may run before ours. Hooks `before` run
in reverse order of registration and those in the child in order, so the collector stops in the first and goes on in the
second: whatever was registered earlier runs in between.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()  # a finalizer or a signal handler may fork while its thread has it
_pauses = 0
_was_enabled = False


PAUSED_FROM = 10_000
"""Nodes from which a pause pays."""


@contextmanager
def collection_paused(nodes: int) -> Iterator[None]:
    """Keep the collector off inside the block if it works on so many nodes; blocks nest, also across threads.

    The collector belongs to the whole process: it goes back to what it was when the last block ends.
    """
    global _pauses, _was_enabled  # noqa: PLW0603 - the collector is global too
    if nodes < PAUSED_FROM:
        yield
        return
    with _lock:
        if not _pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses = max(_pauses - 1, 0)  # it is 0 in a process that was forked inside the block
            if not _pauses and _was_enabled:
                gc.enable()


def _pause_over_fork() -> None:
    """Begin a pause, and keep the lock: no other thread changes what both processes go on with."""
    global _pauses, _was_enabled  # noqa: PLW0603 - see above
    _lock.acquire()
    if not _pauses:
        _was_enabled = gc.isenabled()
        gc.disable()
    _pauses += 1


def _resume_in_parent() -> None:
    global _pauses  # noqa: PLW0603 - see above
    _pauses -= 1
    if not _pauses and _was_enabled:
        gc.enable()
    _lock.release()


def _resume_in_child() -> None:
    """Set aside what is inherited, then collect again: threads that work on in a pause are the parent's."""
    global _pauses  # noqa: PLW0603 - see above
    gc.freeze()
    _pauses = 0
    if _was_enabled:
        gc.enable()
    _lock.release()


# The only hooks of epctx; all else compares processes when it is used (`registry/forking`).
if hasattr(os, "register_at_fork"):  # else there is no fork
    os.register_at_fork(
        before=_pause_over_fork, after_in_parent=_resume_in_parent, after_in_child=_resume_in_child
    )


@contextmanager
def collection_resumed() -> Iterator[None]:
    """Let the collector work inside the block although it is paused, over what is made inside alone.

    For calls of code that is not ours and may make any amount of garbage. What was made before is set aside:
    it is in use, and the collector would walk all of it in vain.
    """
    global _pauses  # noqa: PLW0603 - see above
    with _lock:
        # A host that set objects aside for good would lose that; other pauses are not ours to end.
        resumes = _pauses == 1 and _was_enabled and not gc.get_freeze_count()
        if resumes:
            gc.freeze()
            gc.enable()
            _pauses = 0
    process = os.getpid()
    try:
        yield
    finally:
        with _lock:
            # A child that was forked inside collects already, and what it inherited stays aside.
            if resumes and os.getpid() == process:
                gc.unfreeze()
                gc.disable()
                _pauses += 1
