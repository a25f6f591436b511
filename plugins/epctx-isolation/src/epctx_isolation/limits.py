"""Limits of a child; and the time limit of a compile as a whole (`ep.compile_timeout`),
with what the error about its end says.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from epctx_isolation.channel import make_printable

KEY = "ep.compile_timeout"
_LONGEST_NAME = 400
Progress: TypeAlias = tuple[str, int, int, float]
"""Stage, what is done, the total, and the time of the report."""

START_SECONDS = 60.0
"""Seconds for a process to start on a busy machine, whatever the host allows for one
call.
"""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a child.

    Attributes:
        seconds: for one call of a plugin; may be infinite.
        between: for the work between two of them.
        max_bytes: of memory for data, and in one message; None for any.
        compile_seconds: for a compile; None for any.
    """

    seconds: float
    between: float
    max_bytes: int | None
    compile_seconds: int | None = None

    def get_seconds(self, hook: str | None) -> float:
        """Return the seconds for a hook, or for the work between two; None for that."""
        # A plugin is imported, and starts its SDK, when its instance is made.
        return self.between if hook in (None, "__init__") else self.seconds


class CompileLimit:
    """Time that the compile of one model may take, from the first question to an EP.

    A load asks none, so that it has no such limit.

    Args:
        seconds: the limit; None for none.
    """

    def __init__(self, seconds: int | None) -> None:
        self._seconds = seconds
        self._begin: float | None = None

    def is_over(self, now: float, *, begun: bool) -> bool:
        """Return whether the time is over.

        Args:
            now: of the monotonic clock.
            begun: whether an EP was asked.
        """
        if self._begin is None and begun:
            self._begin = now
        return (
            self._seconds is not None
            and self._begin is not None
            and now > self._begin + self._seconds
        )

    def describe_excess(
        self, state: Mapping[str, Any], progress: Progress | None
    ) -> str:
        """Return what the EP was doing when its time was over, in sentences.

        Args:
            state: of the child.
            progress: what was reported last, and when.
        """
        unit = "second" if self._seconds == 1 else "seconds"
        model = make_printable(str(state.get("model")), _LONGEST_NAME)
        return (
            f"its compile of {model!r} was not done within {self._seconds:,} {unit} "
            f"({KEY}). "
            f"{_describe_work(state)}. {_describe_progress(progress)}. Its process was "
            "ended."
        )

    @staticmethod
    def describe_remedy(ep: str) -> str:
        """Return the hint for an EP whose time was over."""
        return (
            f"Set {KEY} (--timeout) higher; set options of the EP that make its "
            f"compiler faster (`epctx plugins info {ep}` lists them); or leave the "
            f"nodes that it takes to another EP (`epctx explain MODEL --ep {ep}` lists "
            "them)."
        )


def _describe_work(state: Mapping[str, Any]) -> str:
    names = state.get("partitions")
    if not isinstance(names, list) or not names:
        return "It had no partition to compile yet"
    printable = [make_printable(f"{name!r}", _LONGEST_NAME) for name in names]
    shown = ", ".join(printable)
    count = state.get("count")
    if isinstance(count, int) and count > len(names):
        shown += f" and {count - len(names)} more"
    is_compiling = state.get("hook") == "compile"
    return f"It {'was compiling' if is_compiling else 'had compiled'} {shown}"


def _describe_progress(progress: Progress | None) -> str:
    if progress is None:
        return "It reported no progress"
    stage, done, total, when = progress
    seconds = time.monotonic() - when
    return (
        f"The last progress that it reported was {stage!r}, {done} of {total}, "
        f"{seconds:.1f} seconds before"
    )
