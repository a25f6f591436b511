"""Pausing the cyclic garbage collector while many small objects are made and none are dropped.

Each collection walks every object there is, so that building an index over a large graph would cost
more than linear time.
"""

from __future__ import annotations

import gc
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
            _pauses -= 1
            if not _pauses and _was_enabled:
                gc.enable()
