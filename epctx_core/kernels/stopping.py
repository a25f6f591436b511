"""The options of the run that this thread is in, for engines that can stop in the middle of a piece.

Kept beside the calls and not passed through them: pieces are run by sessions, and by EPs that know no run options.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from epctx_core.options import RunOptions

R = TypeVar("R")


class _Current(threading.local):
    options: RunOptions | None = None


CURRENT = _Current()
"""`CURRENT.options` is None outside of runs with options."""


def run_stoppably(run: Callable[[Any, RunOptions], R], feeds: Any, options: RunOptions) -> R:
    """Return `run(feeds, options)`, while engines see the options; a run inside a run has its own."""
    outer, CURRENT.options = CURRENT.options, options
    try:
        return run(feeds, options)
    finally:
        CURRENT.options = outer
