"""Noise: whether other work on the machine makes measured times worthless.

The best signal is the time that the measuring processes were able to run and waited
for a processor, which the Linux scheduler counts for each thread (`schedstat`). It is
right in a container too, where `/proc/stat` counts the whole host: load on processors
that nobody of ours waits for does no harm, and a wait is a wait whoever causes it.
A process with more threads than processors waits for itself, however, so the wait
counts only up to the time that others (by `psutil.cpu_times`, less our own) really
used. A virtual machine does not see that its processor is away: stolen time is added.

Without `schedstat`, a short computation of one thread before and after compares its
time on a processor with the time that passed, and the load of others counts where all
processors are in use.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from epctx_core.errors import InvalidArgument

LIMIT = 0.05
"""Share of waiting from which a machine is too busy.

Measured on two processors: 0 to 0.1 % when idle or with one other busy process, 39 %
with two, 50 % with three.
"""

FULL = 0.95
"""Use of all processors from which threads begin to wait for each other."""

_PAUSE = 0.1
"""Seconds between two looks at the threads: what a thread waits between the last look
and its end is lost.
"""

_PROBE = 0.1
"""Seconds of computation that measure the wait where the system does not count it."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Verdict on the machine while something was measured.

    Attributes:
        busy: times measured meanwhile are not to be judged.
        reason: one sentence that says why, or why not.
        share: part of the time that was lost to others, 0 to 1.
    """

    busy: bool
    reason: str
    share: float

    def as_dict(self) -> dict[str, bool | str | float]:
        """Return the noise as JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Load:
    """Seconds on processors within a period.

    Attributes:
        run: our threads computed, by the scheduler's count; 0 where it has none.
        waited: our threads could have computed and waited for a processor.
        own: our processes computed, by the count that `others` are from.
        others: other processes computed; more than is true where the system counts a
            whole host.
        stolen: the host of a virtual machine took its processors away.
        elapsed: length of the period.
    """

    run: float
    waited: float
    own: float
    others: float
    stolen: float
    elapsed: float


class Watcher:
    """Watcher of this process and its descendants; a context manager for one period.

    Looks at their threads ten times a second in a thread of its own, 1 to 3 ms each
    time, so let the measuring run in child processes or for longer than that.

    Args:
        limit: share of the time that may be lost to others.
        proc: folder of the process file system; where it has no `schedstat`, one
            thread computes for 0.1 s at the beginning and the end.
    """

    def __init__(
        self, *, limit: float = LIMIT, proc: str | os.PathLike[str] = "/proc"
    ) -> None:
        if not 0 < limit < 1:
            raise InvalidArgument(
                f"the limit of noise is {limit}, expected a share between 0 and 1."
            )
        self._limit = limit
        self._threads = _ThreadTimes(Path(proc))
        self._finished = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._begin = _Clocks.read()
        self._probed: list[float] = []
        self._noise: Noise | None = None

    @property
    def noise(self) -> Noise:
        """The verdict, once the context manager has been left.

        Raises:
            InvalidArgument: it has not.
        """
        if self._noise is None:
            raise InvalidArgument(
                "the noise is not known before its watcher has finished.",
                hint="Ask for it after the `with` block.",
            )
        return self._noise

    def __enter__(self) -> Self:
        if not self._threads.counted:
            self._probed.append(_probe())

        self._begin = _Clocks.read()
        self._threads.look(first=True)
        self._looking.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finished.set()
        self._looking.join()
        self._threads.look()
        load = self._begin.until(_Clocks.read(), self._threads)

        if self._threads.counted:
            self._noise = assess_load(load, limit=self._limit)
        else:
            self._probed.append(_probe())
            self._noise = assess_probe(max(self._probed), load, limit=self._limit)

    def _look(self) -> None:
        while self._threads.counted and not self._finished.wait(_PAUSE):
            self._threads.look()


def assess_load(load: Load, *, limit: float = LIMIT) -> Noise:
    """Return whether a load is too much for measuring.

    Args:
        load: seconds on processors while something was measured.
        limit: share of the time that may be lost to others.
    """
    # A wait beyond what others computed is for our own threads.
    lost = min(load.waited, load.others)
    waiting = lost / (load.run + lost) if lost else 0.0
    stolen = load.stolen / load.elapsed if load.elapsed else 0.0
    share = min(waiting + stolen, 1.0)

    verdict = "was too busy for a verdict" if share > limit else "was free enough"
    reason = (
        f"The machine {verdict}: for {waiting:.1%} of their time the measured "
        "processes waited for a processor that others used"
    )
    if stolen > limit / 10:
        reason += f", and the host took the processors away for {stolen:.1%}"
    return Noise(busy=share > limit, reason=f"{reason}.", share=share)


def assess_probe(lost: float, load: Load, *, limit: float = LIMIT) -> Noise:
    """Return whether a machine that does not count waits is too busy for measuring.

    Args:
        lost: part of the time of one computing thread that it had no processor.
        load: seconds on processors while something was measured.
        limit: share of the time that may be lost to others.
    """
    capacity = load.elapsed * (psutil.cpu_count() or 1)
    used = (load.own + load.others) / capacity if capacity else 0.0
    # Nobody waits for others as long as a processor is free.
    crowding = load.others / capacity if used > FULL else 0.0
    share = min(max(lost, crowding), 1.0)

    verdict = "was too busy for a verdict" if share > limit else "was free enough"
    reason = f"a thread that only computed had no processor for {lost:.1%} of its time"
    if crowding > lost:
        reason = f"all processors were in use, for {crowding:.1%} by others"
    return Noise(
        busy=share > limit, reason=f"The machine {verdict}: {reason}.", share=share
    )


@dataclass(frozen=True, kw_only=True)
class _Clocks:
    """Counters of processor seconds at one moment."""

    at: float
    own: float
    all: float
    stolen: float

    @classmethod
    def read(cls) -> _Clocks:
        """Return the counters now."""
        own = 0.0
        for process in (psutil.Process(), *_descendants()):
            with suppress(psutil.Error):
                # User, system, and those of children that ended.
                own += sum(process.cpu_times()[:4])

        machine = psutil.cpu_times()
        # Others are part of these: Linux counts guests' time as the user's, Windows
        # that of interrupts as the system's.
        busy = ("user", "nice", "system", "irq", "softirq")
        return cls(
            at=time.perf_counter(),
            own=own,
            all=sum(getattr(machine, name, 0.0) for name in busy),
            stolen=getattr(machine, "steal", 0.0),
        )

    def until(self, end: _Clocks, threads: _ThreadTimes) -> Load:
        """Return the load between two moments."""
        processors = psutil.cpu_count() or 1
        return Load(
            run=threads.run,
            waited=threads.waited,
            own=end.own - self.own,
            others=max(end.all - self.all - (end.own - self.own), 0.0),
            stolen=max(end.stolen - self.stolen, 0.0) / processors,
            elapsed=end.at - self.at,
        )


class _ThreadTimes:
    """Time that threads of this process and its descendants ran and waited.

    A thread's counters end with it, so they are kept from the last look.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._last: dict[tuple[int, int], tuple[int, int]] = {}
        self._run = self._waited = 0
        self.counted = (proc / "self/schedstat").is_file()

    @property
    def run(self) -> float:
        """Seconds on a processor."""
        return self._run / 1e9

    @property
    def waited(self) -> float:
        """Seconds of waiting for one."""
        return self._waited / 1e9

    def look(self, *, first: bool = False) -> None:
        """Add what happened since the last look; the first one only notes the state."""
        processes = [os.getpid(), *(child.pid for child in _descendants())]
        for process in processes if self.counted else ():
            for thread, run, waited in self._read(process):
                last_run, last_waited = self._last.get((process, thread), (0, 0))
                # The system gives numbers of ended threads to new ones.
                if run < last_run or waited < last_waited:
                    last_run = last_waited = 0

                self._last[process, thread] = run, waited
                if not first:
                    self._run += run - last_run
                    self._waited += waited - last_waited

    def _read(self, process: int) -> Iterator[tuple[int, int, int]]:
        """Yield the threads of a process with their nanoseconds."""
        # A process or a thread may end at any moment.
        with suppress(OSError):
            for thread in (self._proc / f"{process}/task").iterdir():
                with suppress(OSError, ValueError):
                    text = (thread / "schedstat").read_text("ascii")
                    run, waited, _ = map(int, text.split())
                    yield int(thread.name), run, waited


def _descendants() -> list[psutil.Process]:
    """Return the processes that this one started, and those that they did."""
    with suppress(psutil.Error):
        found: list[psutil.Process] = psutil.Process().children(recursive=True)
        return found
    return []


def _probe() -> float:
    """Return the part of a computation's time that its thread was not computing."""
    begin, own = time.perf_counter(), time.thread_time()
    while time.perf_counter() - begin < _PROBE:
        sum(range(1000))

    elapsed = time.perf_counter() - begin
    return max(1 - (time.thread_time() - own) / elapsed, 0.0)
