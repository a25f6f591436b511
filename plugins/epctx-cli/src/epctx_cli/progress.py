"""One line at the bottom of a terminal that says how far a command is. Knows no command."""

from __future__ import annotations

import time
from typing import TextIO

STAGES = ("read", "partition", "compile", "write")
_WIDTH = 24
_SECONDS_BETWEEN = 0.05


class ProgressLine:
    """Called with (stage, done, total); draws nothing unless `active`.

    Args:
        stream: where to draw.
        active: whether that is a terminal.
        ascii_only: whether it shows nothing but ASCII.
    """

    def __init__(self, stream: TextIO, *, active: bool, ascii_only: bool) -> None:
        self._stream = stream
        self._active = active
        self._marks = ("#", ".") if ascii_only else ("█", "░")
        self._shown = ""
        self._last = 0.0
        self._length = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Draw; calls that follow each other too quickly are left out."""
        now = time.monotonic()
        if not self._active or (stage == self._shown and now - self._last < _SECONDS_BETWEEN):
            return
        self._shown, self._last = stage, now
        line = self._line(stage, done, total)
        self._stream.write(f"\r{line:<{self._length}}")
        self._stream.flush()
        self._length = len(line)

    def _line(self, stage: str, done: int, total: int) -> str:
        place = f"[{STAGES.index(stage) + 1}/{len(STAGES)}]" if stage in STAGES else "     "
        full = round(_WIDTH * min(done / total, 1.0)) if total > 0 else 0
        bar = self._marks[0] * full + self._marks[1] * (_WIDTH - full)
        return f"{place} {stage[:16]:<12}  {bar}" + (f"  {done}/{total}" if total > 1 else "")

    def clear(self) -> None:
        """Remove the line, so that something else can be written."""
        if self._shown:
            # Spaces, not an escape sequence: those are for who wants colour.
            self._stream.write(f"\r{'':<{self._length}}\r")
            self._stream.flush()
            self._shown, self._length = "", 0
