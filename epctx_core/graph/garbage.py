"""Pausing the cyclic garbage collector while many small objects are made and none are dropped.

Each collection walks every object there is, so that building an index over a large graph would cost
more than linear time.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep the collector off inside the block; blocks nest, also across threads.

    The collector belongs to the whole process: it goes back to what it was when the last block ends.
    """
    global _pauses, _was_enabled  # noqa: PLW0603 - the collector is global too
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


def _forget_pauses() -> None:
    """In a forked child: the threads that work on without a collector are the parent's."""
    global _pauses  # noqa: PLW0603 - see above
    if _pauses and _was_enabled:
        gc.enable()
    _pauses = 0
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_pauses)


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
    try:
        yield
    finally:
        with _lock:
            if resumes:
                gc.unfreeze()
                gc.disable()
                _pauses += 1
