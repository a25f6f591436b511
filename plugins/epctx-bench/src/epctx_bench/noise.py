"""Noise: whether other work on the machine makes measured times worthless.

The best signal is the time that the measuring processes were able to run and waited
for a processor, which the Linux scheduler counts for each thread (`schedstat`). It is
right in a container too, where `/proc/stat` counts the whole host: load on processors
that nobody of ours waits for does no harm, and a wait is a wait whoever causes it.
A process with more threads than processors waits for itself, however, so the wait
counts only up to the time that others (by `psutil.cpu_times`, less our own) really
used. A virtual machine does not see that its processor is away: stolen time is added.

Without `schedstat`, the load of others counts where all processors are in use.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Self

import psutil

from epctx_bench.process_costs import (
    call_often,
    count_processor_time,
    list_processes,
)

LIMIT = 0.05
"""Share of waiting from which a machine is too busy.

Measured on two processors: 0 to 0.1 % when idle or with one other busy process, 39 %
with two, 50 % with three.
"""

FULL = 0.95
"""Use of all processors from which threads begin to wait for each other."""

_PROC = Path("/proc")
_PROCESSORS = psutil.cpu_count() or 1
_PAUSE = 0.1
"""Seconds between two looks at the threads: what a thread waits between the last look
and its end is lost.
"""


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


@dataclass(frozen=True)
class Load:
    """Seconds on processors within a period, or counted until one moment.

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

    Attributes:
        noise: the verdict, once the context manager has been left.
    """

    noise: Noise

    def __init__(self) -> None:
        self._threads: dict[Path, tuple[int, int]] = {}
        self._looking = call_often(lambda: self._look(list_processes()), _PAUSE)

    def __enter__(self) -> Self:
        self._begin = self._count()
        self._looking.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._looking.__exit__(None, None, None)
        counts = zip(astuple(self._count()), astuple(self._begin), strict=True)
        changes = [max(now - then, 0.0) for now, then in counts]
        self.noise = assess_load(Load(*changes))

    def _look(self, processes: list[psutil.Process]) -> None:
        """Note the nanoseconds that each thread has run and waited.

        A thread's counters end with it, so the last ones stay. Where its number is
        given to a new thread, both are lost, which leaves their ratio alone.
        """
        for process in processes:
            # A process or a thread may end at any moment.
            with suppress(OSError):
                for thread in (_PROC / f"{process.pid}/task").iterdir():
                    with suppress(OSError, ValueError):
                        text = (thread / "schedstat").read_text("ascii")
                        run, waited, _ = map(int, text.split())
                        self._threads[thread] = run, waited

    def _count(self) -> Load:
        """Return the counters now."""
        processes = list_processes()
        self._look(processes)
        own = count_processor_time(processes)
        machine = psutil.cpu_times()
        # Others are part of these: Linux counts guests' time as the user's, Windows
        # that of interrupts as the system's.
        busy = ("user", "nice", "system", "irq", "softirq")
        return Load(
            run=sum(run for run, _ in self._threads.values()) / 1e9,
            waited=sum(waited for _, waited in self._threads.values()) / 1e9,
            own=own,
            others=sum(getattr(machine, name, 0.0) for name in busy) - own,
            stolen=getattr(machine, "steal", 0.0) / _PROCESSORS,
            elapsed=time.perf_counter(),
        )


def assess_load(load: Load) -> Noise:
    """Return whether a load is too much for measuring."""
    # A wait beyond what others computed is for our own threads.
    lost = min(load.waited, load.others)
    waiting = lost / (load.run + lost) if lost else 0.0
    reason = (
        f"for {waiting:.1%} of their time the measured processes waited for a "
        "processor that others used"
    )
    capacity = load.elapsed * _PROCESSORS
    # Nobody waits for others as long as a processor is free.
    if not load.run and load.own + load.others > FULL * capacity:
        waiting = load.others / capacity
        reason = f"all processors were in use, for {waiting:.1%} by others"

    stolen = load.stolen / load.elapsed if load.elapsed else 0.0
    if stolen > LIMIT / 10:
        reason += f", and the host took the processors away for {stolen:.1%}"

    share = min(waiting + stolen, 1.0)
    verdict = "was too busy for a verdict" if share > LIMIT else "was free enough"
    return Noise(
        busy=share > LIMIT, reason=f"The machine {verdict}: {reason}.", share=share
    )
