"""Progress of a command in one line of a terminal, drawn by rich."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich import progress as rich_progress
from rich.console import Console as Terminal
from rich.console import RenderableType
from rich.table import Column
from rich.text import Text

from epctx_cli import text
from epctx_cli.progress import Progress
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
_FRAMES_PER_SECOND = 8
_LINE_SECONDS = 30.0
"""Seconds between two lines where there is no terminal."""
_LONGEST_NAME = 32
_BAR = 10
_LONGEST_ESTIMATE = 30 * 24 * 3600
"""Seconds; what takes longer is not known well."""


class ProgressLine(Progress):
    """Line that shows what a command does, and how far it is.

    It appears after a second and leaves no trace. It is told what happens in two ways:
    as the `progress` callback of a compiler, and as a host plugin of sessions and
    compilers, which sees their stages.

    Args:
        stream: where it is shown.
        words: what the command does, until a stage is known.
        in_lines: true if `stream` is no terminal, and gets a line of its own every half
            minute.
        get_time: the seconds of a clock.
    """

    def __init__(
        self,
        stream: TextIO,
        words: str = "",
        *,
        in_lines: bool = False,
        get_time: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = _Unbuffered(stream)
        self._in_lines = in_lines
        self._start = get_time()
        self._bars = _Bars(
            _Column(self._describe_stage, Column(no_wrap=True)),
            _Bar(_BAR, complete_style="cyan", table_column=Column(no_wrap=True)),
            _Column(_describe_amount),
            console=_Terminal(
                file=cast("TextIO", self._file),
                force_terminal=True,
                markup=False,
                emoji=False,
                highlight=False,
                soft_wrap=True,
            ),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            refresh_per_second=_FRAMES_PER_SECOND,
            # The steps of some stages take minutes.
            speed_estimate_period=math.inf,
            get_time=get_time,
        )
        self._begin(words)
        self._lock = threading.RLock()
        self._end = threading.Event()
        self._process = os.getpid()
        self._is_due = False
        # What an EP printed has not ended its line yet.
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
        """Note how far a stage is."""
        # A process that an EP forked may have inherited locks that nobody releases.
        if os.getpid() != self._process:
            return
        with self._lock:
            task = self._bars.current
            if task.fields["stage"] != stage:
                task.total = None
                self._bars.reset(task.id, **_describe_begin(stage))
            task.fields["notes"] = notes
            if seconds_left is not None:
                task.fields["end"] = task.get_time() + seconds_left
            self._count(task, done, total, unit)

    def _count(
        self, task: rich_progress.Task, done: int, total: int, unit: str
    ) -> None:
        stage = task.fields["stage"]
        if total > 1:
            # An EP may count other things in the same stage than the core.
            if total != task.total:
                usual = "" if task.total else _UNITS.get(stage, "")
                task.fields["unit"] = unit or usual
            done = min(max(done, 0), total)
            self._bars.update(task.id, total=total, completed=done)
        elif total <= 0 and stage == "write":
            self._bars.update(task.id, completed=done, unit="bytes")

    def watch(self, *options: SessionOptions) -> None:
        """Show the stages of sessions and compiles with these options."""
        for each in options:
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
        is_shown = category in {"stage", "run"} and os.getpid() == self._process
        if not is_shown or self._bars.current.fields["stage"] == name:
            yield
            return
        task = self._begin(name)
        try:
            yield
        finally:
            self._bars.remove_task(task)

    def _begin(self, stage: str) -> rich_progress.TaskID:
        return self._bars.add_task(total=None, **_describe_begin(stage))

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
        task = self._bars.current
        # A bar says how many there are.
        shown = f"{amount} " if amount and task.total is None else ""
        task.fields["subject"] = f"{shown}with {ep.removesuffix(_SUFFIX)}"
        try:
            yield
        finally:
            task.fields["subject"] = ""

    # -- drawing
    # ------------------------------------------------------------------------------

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw during the block."""
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
            with self._lock:
                self._is_due = False
                self._bars.live.stop()

    def _draw(self) -> None:
        if self._in_lines:
            while not self._end.wait(_LINE_SECONDS):
                self._file.write(f"{self.describe()}\n")
        elif not self._end.wait(_SILENT_SECONDS):
            with self._lock:
                self._is_due = True
                self._show()

    def _show(self) -> None:
        if self._is_due and not self._is_line_open:
            self._bars.live.start(refresh=True)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Leave the terminal to the block, which writes something else."""
        with self._lock:
            self._bars.live.stop()
            yield
            self._show()

    def write_beside(self, stream: TextIO, words: str) -> int:
        """Write what an EP prints; the line returns after the end of its line."""
        # See `__call__`.
        if os.getpid() != self._process:
            return stream.write(words)
        with self.hidden():
            length = stream.write(words)
            stream.flush()
            if words:
                self._is_line_open = not words.endswith("\n")
        return length

    def _share(self, stream: TextIO) -> TextIO:
        """Return a stream of which the text and the line of progress do not mix."""
        if stream is None or not stream.isatty():
            return stream
        return cast("TextIO", _SharedStream(self, stream))

    def describe(self) -> str:
        """Return all that the line says, without a bar."""
        task = self._bars.current
        return f"{self._describe_stage(task)}  {_describe_amount(task)}".rstrip()

    def _describe_stage(self, task: rich_progress.Task) -> str:
        elapsed = _format_seconds(task.get_time() - self._start)
        return f"{elapsed}  {task.description}"


def _describe_begin(stage: str) -> dict[str, Any]:
    """Return the fields of rich's task of a stage."""
    words = one_line(_WORDS.get(stage, stage[:_LONGEST_NAME])) or "working"
    known = {"description": words, "stage": stage}
    return {**known, "subject": "", "unit": "", "notes": (), "end": None}


def _describe_amount(task: rich_progress.Task) -> str:
    """Return how much is done, the speed of bytes, the time that is left, notes, and
    the EP: the most important first.
    """
    done, total, unit = int(task.completed), task.total, task.fields["unit"]
    facts = []
    if unit == "bytes":
        whole = f" of {text.byte_size(int(total))}" if total else ""
        facts.append(f"{text.byte_size(done)}{whole}")
        if task.speed:
            facts.append(f"{text.byte_size(int(task.speed))}/s")
    elif total:
        facts.append(f"{done:,} of {int(total):,} {unit}".rstrip())

    end = task.fields["end"]
    left = task.time_remaining if end is None else end - task.get_time()
    if left is not None and 0 < left < _LONGEST_ESTIMATE:
        facts.append(f"about {_format_seconds(left)} left")
    facts += [*task.fields["notes"], task.fields["subject"]]
    return ", ".join(one_line(fact) for fact in facts if fact)


def _format_seconds(seconds: float) -> str:
    """Return a duration such as 0:02:05."""
    return str(timedelta(seconds=round(seconds)))


class _Bars(rich_progress.Progress):
    """Display of the innermost stage."""

    @property
    def current(self) -> rich_progress.Task:
        """Stage that was begun last."""
        return self.tasks[-1]

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks[-1:])


class _Bar(rich_progress.BarColumn):
    """Bar of a stage of which the total is known."""

    def render(self, task: rich_progress.Task) -> RenderableType:  # type: ignore[override]
        return super().render(task) if task.total else ""


class _Column(rich_progress.ProgressColumn):
    """Text that is cut where there is no room."""

    def __init__(
        self,
        describe: Callable[[rich_progress.Task], str],
        table_column: Column | None = None,
    ) -> None:
        super().__init__(table_column)
        self._describe = describe

    def render(self, task: rich_progress.Task) -> Text:
        return Text(self._describe(task), no_wrap=True, overflow="ellipsis")


class _Terminal(Terminal):
    """Terminal of which the cursor stays, also if the process is killed meanwhile."""

    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002, FBT002 - rich's signature
        return False


class _Unbuffered:
    """File of a stream's descriptor.

    A process that an EP forks meanwhile would inherit the lock of a stream's buffer.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, words: str) -> int:
        with suppress(OSError, ValueError):
            os.write(self._stream.fileno(), words.encode(self.encoding, "replace"))
        return len(words)

    def flush(self) -> None:
        """Do nothing."""


class _SharedStream:
    """Stream of a terminal that has a line of progress."""

    def __init__(self, progress: ProgressLine, stream: TextIO) -> None:
        self._progress = progress
        self._stream = stream

    def write(self, words: str) -> int:
        return self._progress.write_beside(self._stream, words)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
