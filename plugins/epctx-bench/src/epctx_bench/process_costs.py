"""Processor time and peak memory of this process and of those that it starts."""

from __future__ import annotations

import resource
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import psutil

_KIBI = 1024
_INTERVAL = 0.05
"""Seconds between two looks at child processes."""


class Costs(NamedTuple):
    """Costs of some work.

    Attributes:
        seconds: wall time.
        cpu_seconds: processor time of the process and its children.
        peak_bytes: peak memory of the process since its start, and the peaks of the
            children that lived meanwhile.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def read_peak(pid: int | str = "self") -> int:
    """Return the peak memory of a process in bytes.

    Linux tells it in `/proc`. `ru_maxrss` would do elsewhere only: on Linux a process
    inherits that of its parent.
    """
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * _KIBI
    if pid == "self":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBI
    with suppress(psutil.Error):
        return int(psutil.Process(int(pid)).memory_info().rss)
    return 0


class CostMeter:
    """Measures the costs of a `with` block; `costs` has them afterwards.

    A thread looks at child processes, because what an ended one used is not known.
    """

    def __init__(self) -> None:
        self._children: dict[int, tuple[int, float]] = {}
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self.costs = Costs(0.0, 0.0, 0)

    def __enter__(self) -> Self:
        self._watcher.start()
        self._ended = _cpu_of_ended_children()
        self._cpu = time.process_time()
        self._start = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        seconds = time.perf_counter() - self._start
        cpu = time.process_time() - self._cpu
        self._done.set()
        self._watcher.join()
        self._look()
        # An ended child that was waited for is in both numbers.
        seen = sum(used for _, used in self._children.values())
        children = max(seen, _cpu_of_ended_children() - self._ended)
        peak = read_peak() + sum(peak for peak, _ in self._children.values())
        self.costs = Costs(seconds, cpu + children, peak)

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL):
            self._look()

    def _look(self) -> None:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                times = child.cpu_times()
                peak, used = self._children.get(child.pid, (0, 0.0))
                self._children[child.pid] = (
                    max(peak, read_peak(child.pid)),
                    max(used, times.user + times.system),
                )


def _cpu_of_ended_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
