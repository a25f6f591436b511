"""A compile's own wish to stop: what EPs poll, so that Ctrl-C reaches their threads as the host's flag does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from epctx_core.options import CancellationFlag

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
