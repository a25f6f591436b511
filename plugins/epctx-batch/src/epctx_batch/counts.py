"""Counts of the tasks that have ended, and the time that the others may take."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from epctx_batch.results import TaskResult

_RECENT: Final = 32
"""Tasks whose share of compiles is expected of those that are left."""


class Counts:
    """Counts of tasks that failed and that the cache had, and an estimate of the time
    left.

    Tasks from the cache take no time, and a batch that goes on begins with many of
    them, so the estimate begins with the first task that was compiled. How many tasks
    are at work at a time shows in how fast compiles end.
    """

    def __init__(self) -> None:
        self.failed = 0
        self.cached = 0
        self._compiled = 0
        self._seconds = 0.0
        self._begun = 0.0
        self._last = 0.0
        self._recent: deque[bool] = deque(maxlen=_RECENT)

    def add(self, result: TaskResult, now: float) -> None:
        """Count a task that ended just now, by a clock in seconds."""
        is_failed = result.error is not None
        is_compiled = not (is_failed or result.was_cached)
        self.failed += is_failed
        self.cached += result.was_cached
        if is_compiled:
            # By its duration: tasks of other machines have other clocks.
            if not self._compiled:
                self._begun = now - result.seconds
            self._compiled += 1
            self._seconds += result.seconds
        if self._compiled:
            self._last = now
            self._recent.append(is_compiled)

    def estimate_seconds(self, left: int) -> float:
        """Return the seconds that a number of tasks may take; infinity while there is
        no compile to estimate from.
        """
        if not any(self._recent):
            return math.inf
        share = sum(self._recent) / len(self._recent)
        seconds_each = (self._last - self._begun) / self._compiled
        # The last ones are all at work, and end no faster than one alone.
        shortest = self._seconds / self._compiled if left else 0.0
        return max(seconds_each * share * left, shortest)

    def describe(self) -> list[str]:
        """Return how many failed and how many the cache had, for people."""
        parts = [(self.failed, "failed"), (self.cached, "cached")]
        return [f"{count:,} {word}" for count, word in parts if count]
