"""Time limit of a compile as a whole (`ep.compile_timeout`), and what the error about
its end says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from epctx_core.plugin import Purpose

if TYPE_CHECKING:
    from epctx_core.plugin import ProviderContext

KEY = "ep.compile_timeout"
_SHOWN_PARTITIONS = 3


class CompileLimit:
    """Time that one EP may work on the compile of one model, all its calls together.

    The calls of one EP follow each other. A load has no such limit.

    Args:
        context: the context of the EP's instance in the host's process.
        seconds: the limit; None for none.
    """

    def __init__(self, context: ProviderContext, seconds: int | None) -> None:
        self.seconds = seconds
        self._model = context.model.name
        self._exports = context.purpose is Purpose.EXPORT
        self._used = 0.0
        self._partitions: tuple[str, ...] = ()
        self._progress: tuple[str, int, int] | None = None
        self._progress_time = 0.0

    @classmethod
    def of(cls, context: ProviderContext) -> CompileLimit:
        """Return the limit that a host set for the work of an instance."""
        text = context.session_config.get(KEY, "")
        compiles = context.purpose is not Purpose.LOAD
        return cls(context, int(text) if text and compiles else None)

    @property
    def remaining(self) -> float:
        """Seconds that are left; only where there is a limit."""
        return max((self.seconds or 0) - self._used, 0.0)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time of the block."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._used += time.monotonic() - start

    def note_partitions(self, names: Sequence[str]) -> None:
        """Remember what the EP compiles from now on."""
        self._partitions = tuple(names)

    def note_progress(self, stage: str, done: int, total: int) -> None:
        """Remember the last progress that the EP reported."""
        self._progress = stage, done, total
        self._progress_time = time.monotonic()

    def describe_excess(self, hook: str) -> str:
        """Return what the EP was doing when its time was over, in sentences."""
        unit = "second" if self.seconds == 1 else "seconds"
        end = ", and nothing was published" if self._exports else ""
        return (
            f"its compile of {self._model!r} was not done within {self.seconds:,} "
            f"{unit} ({KEY}). {self._describe_work(hook)}. "
            f"{self._describe_progress()}. Its process was ended{end}."
        )

    def _describe_work(self, hook: str) -> str:
        if not self._partitions:
            return "It had no partition to compile yet"
        shown = ", ".join(map(repr, self._partitions[:_SHOWN_PARTITIONS]))
        left = len(self._partitions) - _SHOWN_PARTITIONS
        if left > 0:
            shown += f" and {left} more"
        return f"It {'was compiling' if hook == 'compile' else 'had compiled'} {shown}"

    def _describe_progress(self) -> str:
        if self._progress is None:
            return "It reported no progress"
        stage, done, total = self._progress
        seconds = time.monotonic() - self._progress_time
        return (
            f"The last progress that it reported was {stage!r}, {done} of {total}, "
            f"{seconds:.1f} seconds before"
        )


def describe_remedy(ep: str) -> str:
    """Return the hint for an EP whose time was over."""
    return (
        f"Set {KEY} (--timeout) higher; set options of the EP that make its compiler "
        f"faster (`epctx plugins info {ep}` lists them); or leave the nodes that it "
        f"takes to another EP (`epctx explain MODEL --ep {ep}` lists them)."
    )
