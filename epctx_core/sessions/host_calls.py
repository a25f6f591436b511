"""A compile's line to its host: its progress, and the wish to stop, which EPs poll, whether by flag or by Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from epctx_core.errors import EpctxError, Fail, concealed
from epctx_core.options import CancellationFlag
from epctx_core.registry.guard import describe
from epctx_core.sessions.providers import Progress, no_progress

_POLLED_EVERY = 0.05
"""Seconds between two looks at the host's flag while an EP waits."""


class CompileCancellation(CancellationFlag):
    """Requested once the host asked, by its flag or by Ctrl-C; the host's flag itself is never changed."""

    def __init__(self, host: CancellationFlag) -> None:
        super().__init__()
        self._host = host

    @property
    def requested(self) -> bool:
        """Whether the work shall stop."""
        return self._host.requested or super().requested

    def wait(self, seconds: float) -> bool:
        """Wait until the work shall stop, at most so long; return whether it shall."""
        end = time.monotonic() + seconds
        while not self.requested and (left := end - time.monotonic()) > 0:
            super().wait(min(left, _POLLED_EVERY))
        return self.requested

    def raise_if_requested(self) -> None:
        """Raise ModelLoadCanceled if the work shall stop."""
        self._host.raise_if_requested()
        super().raise_if_requested()

    @contextmanager
    def by_interrupt(self) -> Iterator[None]:
        """Make a Ctrl-C in the block a wish to stop before it goes on up: EPs are still there and may have threads."""
        try:
            yield
        except KeyboardInterrupt:
            self.set(True)
            raise


def reported_progress(progress: Progress | None) -> Progress:
    """Return a host's progress callback as the core and EPs call it; what it raises is a Fail of the host's.

    None gives one that shows nothing.
    """
    if progress is None:
        return no_progress

    def report(stage: str, done: int, total: int) -> None:
        try:
            progress(concealed(stage), done, total)
        except EpctxError:
            raise
        except Exception as error:
            raise Fail(
                f"the progress callback raised at stage {stage!r}: {describe(error)}.",
                hint="Fix the callback, or give none.",
            ) from error

    return report
