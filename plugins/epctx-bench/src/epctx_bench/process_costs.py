"""Processor time and peak memory of this process and of those that it starts."""

from __future__ import annotations

import resource
import threading
import time
from contextlib import suppress
from pathlib import Path
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
    """Return the peak memory of a process in bytes; 0 for another one that ended.

    Linux tells it in `/proc`. `ru_maxrss` would do elsewhere only: on Linux a process
    inherits that of its parent.
    """
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * _KIBI
    if pid == "self":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBI
    return 0


class CostMeter:
    """Measures the costs of a `with` block; `costs` has them afterwards.

    A thread looks at child processes, because the peak of an ended one is not known.
    """

    def __init__(self) -> None:
        self._peaks: dict[int, int] = {}
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self.costs = Costs(0.0, 0.0, 0)

    def __enter__(self) -> Self:
        self._watcher.start()
        self._cpu = _count_cpu()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._start
        # A child that nobody waited for is in the first count alone.
        cpu = max(_count_cpu() - self._cpu, 0.0)
        self._done.set()
        self._watcher.join()
        self._look()
        peak = read_peak() + sum(self._peaks.values())
        self.costs = Costs(seconds, cpu, peak)

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL):
            self._look()

    def _look(self) -> None:
        for child in psutil.Process().children(recursive=True):
            peak = read_peak(child.pid)
            before = self._peaks.get(child.pid, 0)
            self._peaks[child.pid] = max(peak, before)


def _count_cpu() -> float:
    """Return the processor time that this process and those that it started have had;
    of those that ended, if they were waited for.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            # User, system, and those of children that ended.
            seconds += sum(child.cpu_times()[:4])
    return seconds
