"""Progress of a command in one line of a terminal.

`Progress` is told what happens in two ways: as the `progress` callback of a compiler,
and as a host plugin of sessions and compilers, which sees their stages.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, cast

from epctx_cli import streams, text
from epctx_core.errors import one_line
from epctx_core.plugin import hookimpl

if TYPE_CHECKING:
    from epctx_core import SessionOptions

_WORDS = {
    "read": "reading the model",
    "start": "starting EPs",
    "optimise": "optimising",
    "partition": "partitioning",
    "compile": "compiling",
    "write": "writing",
    "read_back": "reading back what was written",
    "load": "loading payloads",
    "prepare": "preparing kernels",
    "plan": "planning the run",
    "run": "running",
}
_UNITS = {"compile": "partitions"}
_SUFFIX = "ExecutionProvider"
_SILENT_SECONDS = 1.0
"""A command that is faster shows nothing."""
_FRAME_SECONDS = 0.125
_LINE_SECONDS = 30.0
"""Seconds between two lines where there is no terminal."""
_LONGEST_NAME = 32
_BAR = 20
_SHORTEST_BAR = 6
_COLOUR = "\x1b[36m{}\x1b[39m"
_ERASE = b"\r\x1b[2K"
_MINUTE = 60


@dataclass(kw_only=True)
class Stage:
    """Stage of a command, as far as it is known.

    Attributes:
        name: that of the core, of an EP, or words of the command.
        begun: time of its begin, in seconds.
        subject: what it works with, such as an EP; may be empty.
        done, total: how far it is; a total of 0 or 1 says nothing.
        counted: time of the last `done`.
        first: the first `done` and its time: a stage may begin with what others did.
        unit: that of `done`, such as "partitions"; "bytes" are shown as sizes.
        written: bytes of files.
        notes: what else there is to say, the most important first.
        seconds_left: the caller's own estimate at `counted`, infinite if it has none
            yet; None to estimate from `done`.
    """

    name: str
    begun: float
    subject: str = ""
    done: int = 0
    total: int = 0
    counted: float = 0.0
    first: tuple[int, float] = (0, 0.0)
    unit: str = ""
    written: int = 0
    notes: Sequence[str] = ()
    seconds_left: float | None = None

    @property
    def words(self) -> str:
        """Name of the stage for people."""
        return one_line(_WORDS.get(self.name, self.name[:_LONGEST_NAME]) or "working")

    @property
    def is_counted(self) -> bool:
        """True if `done` of `total` says how far the stage is."""
        return self.total > 1

    def count(self, done: int, total: int, unit: str, now: float) -> None:
        """Note how far the stage is."""
        self.counted = now
        if total <= 0:
            if self.name == "write":
                self.written = done
            return
        # Whatever an EP says, a bar has a length from 0 to all.
        done = min(max(done, 0), total)
        # An EP may count other things in the same stage than the core.
        if total != self.total:
            self.unit = unit or ("" if self.total else _UNITS.get(self.name, ""))
            self.first = done, now
        self.done, self.total = done, total

    def describe_amount(self) -> str:
        """Return how much is done, with the speed of bytes; empty if that is not
        known.
        """
        sizes = [self.written] if self.written else []
        parts = []
        if self.is_counted and self.unit == "bytes":
            parts.append(f"{text.byte_size(self.done)} of {text.byte_size(self.total)}")
            sizes = [self.done]
        elif self.is_counted:
            parts.append(f"{self.done:,} of {self.total:,} {self.unit}".rstrip())
        if self.written:
            parts.append(text.byte_size(self.written))

        seconds = self.counted - self.begun
        if sizes and sizes[0] and seconds > 0:
            parts.append(f"{text.byte_size(int(sizes[0] / seconds))}/s")
        return ", ".join(parts)

    def describe_remaining(self, now: float) -> str:
        """Return the estimated time that is left; empty if it cannot be estimated."""
        left = self._estimate_remaining() - (now - self.counted)
        if not 0 < left < math.inf:
            return ""
        return f"about {format_seconds(max(1.0, left))} left"

    def _estimate_remaining(self) -> float:
        """Return the seconds that were left when `done` was counted; infinity if that
        is not known.
        """
        if self.seconds_left is not None:
            return self.seconds_left
        first, begun = self.first
        if not self.is_counted or not first < self.done < self.total:
            return math.inf
        seconds_each = (self.counted - begun) / (self.done - first)
        return seconds_each * (self.total - self.done)


def format_seconds(seconds: float) -> str:
    """Return a duration in whole seconds, such as `9 s` and `2:05 min`."""
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    minutes, rest = divmod(whole, _MINUTE)
    if minutes < _MINUTE:
        return f"{minutes}:{rest:02} min"
    hours, minutes = divmod(minutes, _MINUTE)
    return f"{hours}:{minutes:02} h"


class Progress:
    """Line that shows what a command does, and how far it is.

    It appears after a second and leaves no trace. Call it as `progress(stage, done,
    total)`; a total of 0 says that `done` are bytes, of a number that is not known.

    Args:
        terminal: where it is shown; None to show nothing.
        words: what the command does, until a stage is known.
        in_lines: true if `terminal` is no terminal, and gets a line of its own every
            half minute.
    """

    def __init__(
        self, terminal: TextIO | None, words: str = "", *, in_lines: bool = False
    ) -> None:
        self._terminal = terminal
        self._in_lines = in_lines
        self._start = time.monotonic()
        self._stage = Stage(name=words, begun=self._start)
        self._lock = threading.RLock()
        self._end = threading.Event()
        self._is_drawn = False
        self._is_line_open = False

    def __call__(
        self,
        stage: str,
        done: int,
        total: int,
        *,
        unit: str = "",
        notes: Sequence[str] = (),
        seconds_left: float | None = None,
    ) -> None:
        """Note how far a stage is.

        Args:
            stage: its name.
            done, total: how much is done of how much; a total of 0 if it is not known.
            unit: that of both; "bytes" are shown as sizes, and with their speed.
            notes: what else there is to say, such as "3 failed", the most important
                first.
            seconds_left: the time that is left, if you can estimate it better than
                from `done` of `total`; `math.inf` while you cannot say.
        """
        now = time.monotonic()
        current = self._stage
        if current.name != stage:
            self._stage = current = Stage(name=stage, begun=now)
        current.notes, current.seconds_left = notes, seconds_left
        current.count(done, total, unit, now)

    def watch(self, *options: SessionOptions) -> None:
        """Show the stages of sessions and compiles with these options.

        Runs that are not shown keep their speed: without a terminal nothing is added.
        """
        for each in options if self._terminal is not None else ():
            each.add_host_plugin(self)

    # -- host plugin
    # ------------------------------------------------------------------------------

    @contextmanager
    def span(
        self,
        name: str,
        category: str,
        facts: Mapping[str, object],  # noqa: ARG002 - a span's signature
    ) -> Iterator[None]:
        """Show a stage or a run while it lasts; `facts` are not shown."""
        if category not in ("stage", "run"):
            yield
            return
        before = self._stage
        if before.name != name:
            self._stage = Stage(name=name, begun=time.monotonic())
        try:
            yield
        finally:
            if before.name != name:
                self._stage = before

    @hookimpl(wrapper=True)
    def get_capability(self, ep: str) -> Generator[None, Any, Any]:
        """Show which EP is asked what it takes."""
        with self._working(ep):
            return (yield)

    @hookimpl(wrapper=True)
    def compile(self, ep: str, partitions: Sequence[Any]) -> Generator[None, Any, Any]:
        """Show which EP compiles, and how many partitions."""
        with self._working(ep, text.counted(len(partitions), "partition")):
            return (yield)

    @hookimpl(wrapper=True)
    def load_context(self, ep: str, nodes: Sequence[Any]) -> Generator[None, Any, Any]:
        """Show which EP loads, and how many nodes."""
        with self._working(ep, text.counted(len(nodes), "EPContext node")):
            return (yield)

    @contextmanager
    def _working(self, ep: str, amount: str = "") -> Iterator[None]:
        stage = self._stage
        # A bar says how many there are.
        shown = f"{amount} " if amount and not stage.is_counted else ""
        stage.subject = f"({shown}with {ep.removesuffix(_SUFFIX)})"
        try:
            yield
        finally:
            stage.subject = ""

    # -- drawing
    # ----------------------------------------------------------------------------------

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw during the block."""
        if self._terminal is None:
            yield
            return
        # A daemon: an exception that skips the end must not keep the process.
        drawing = threading.Thread(target=self._draw, name="progress", daemon=True)
        drawing.start()
        try:
            with (
                redirect_stdout(self._share(sys.stdout)),
                redirect_stderr(self._share(sys.stderr)),
            ):
                yield
        finally:
            self._end.set()
            drawing.join()
            self._erase()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Leave the line to the block, which writes something else."""
        with self._lock:
            self._erase()
            yield

    def _draw(self) -> None:
        if self._in_lines:
            while not self._end.wait(_LINE_SECONDS):
                self._send(self._encode(f"{self.compose(None)}\n"))
            return

        wait = _SILENT_SECONDS
        while not self._end.wait(wait):
            wait = _FRAME_SECONDS
            with self._lock:
                if self._is_line_open:
                    continue
                columns = streams.count_columns(self._terminal)
                self._send(_ERASE + self._encode(self.compose(columns)))
                self._is_drawn = True

    def _share(self, stream: TextIO) -> TextIO:
        """Return a stream whose text and the line of progress do not mix."""
        if stream is None or not stream.isatty():
            return stream
        shared = _SharedStream(self, stream)
        return cast("TextIO", shared)

    def write_beside(self, stream: TextIO, words: str) -> int:
        """Write what an EP prints; the line returns after the end of its line."""
        with self.hidden():
            length = stream.write(words)
            stream.flush()
            if words:
                self._is_line_open = not words.endswith("\n")
        return length

    def _erase(self) -> None:
        if self._is_drawn:
            self._send(_ERASE)
            self._is_drawn = False

    def _encode(self, line: str) -> bytes:
        encoding = getattr(self._terminal, "encoding", None) or "utf-8"
        return line.encode(encoding, "replace")

    def _send(self, data: bytes) -> None:
        # Not through the stream: a process that an EP forks meanwhile would inherit the
        # lock of its buffer.
        if self._terminal is not None:
            with suppress(OSError, ValueError):
                os.write(self._terminal.fileno(), data)

    def compose(self, columns: int | None) -> str:
        """Return the line for a terminal of some columns; all of it, without a bar, if
        that is None.

        Where there is no room, the subject, the notes, the time that is left and the
        amount are omitted.
        """
        now = time.monotonic()
        stage = self._stage
        line = f"{format_seconds(now - self._start)}  {stage.words}"
        facts = [stage.describe_amount(), stage.describe_remaining(now), *stage.notes]
        facts = [fact for fact in facts if fact]
        if columns is None:
            end = f"  {', '.join(facts)}" if facts else ""
            return f"{line}{end}"
        # A line that fills the last column would make the terminal begin another one.
        room = columns - 1
        needed = len(line) + 2 + len(", ".join(facts))
        if stage.is_counted:
            needed += 2 + _SHORTEST_BAR
        if stage.subject and needed + 1 + len(stage.subject) <= room:
            line += f" {one_line(stage.subject)}"
        while facts and len(line) + 2 + len(", ".join(facts)) > room:
            facts.pop()
        end = f"  {', '.join(facts)}" if facts else ""
        if not stage.is_counted:
            return f"{line}{end}"[:room]

        length = min(_BAR, room - len(line) - len(end) - 2)
        if length < _SHORTEST_BAR:
            return f"{line}{end}"[:room]
        return f"{line}  {self._compose_bar(stage, length)}{end}"

    def _compose_bar(self, stage: Stage, length: int) -> str:
        full, empty = "━", "╌"
        if b"?" in self._encode(full + empty):
            full, empty = "#", "-"
        done = min(length, length * stage.done // stage.total)
        bar = full * done
        if done and not os.environ.get("NO_COLOR"):
            bar = _COLOUR.format(bar)
        return f"{bar}{empty * (length - done)}"


class _SharedStream:
    """Stream of a terminal that has a line of progress."""

    def __init__(self, progress: Progress, stream: TextIO) -> None:
        self._progress = progress
        self._stream = stream

    def write(self, words: str) -> int:
        return self._progress.write_beside(self._stream, words)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
