"""Runs of engines: the options of the run that a thread is in, and results in given memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from epctx_core.errors import RuntimeException

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.options.run import RunOptions

_R = TypeVar("_R")


class _Current(threading.local):
    options: RunOptions | None = None


_CURRENT = _Current()


def current_options() -> RunOptions | None:
    """Return the options of the run that this thread is in, None if it has none."""
    return _CURRENT.options


def run_stoppably(run: Callable[[Any, RunOptions], _R], feeds: Any, options: RunOptions) -> _R:
    """Return `run(feeds, options)`, while engines see the options; a run inside a run has its own."""
    outer, _CURRENT.options = _CURRENT.options, options
    try:
        return run(feeds, options)
    finally:
        _CURRENT.options = outer


def write_in_place(results: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Copy results into given memory and return that; numpy alone would broadcast and cast to make them fit.

    Raises:
        RuntimeException: a result has another type or shape than the memory for it.
    """
    for place, (result, target) in enumerate(zip(results, outputs, strict=True)):
        if result.shape != target.shape or result.dtype != target.dtype:
            raise RuntimeException(
                f"output {place} is {result.dtype}{list(result.shape)}; the memory given for it is "
                f"{target.dtype}{list(target.shape)}.",
                hint="The model declares a type or a shape that is not what its operators compute; correct it.",
            )
        target[...] = result
    return outputs
