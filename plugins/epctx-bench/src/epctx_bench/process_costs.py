"""Processor time and peak memory of this process and of those that it starts."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_KIBI = 1024
_INTERVAL = 0.05
"""Seconds between two looks at child processes."""


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


@contextmanager
def measure_costs() -> Iterator[dict[str, float]]:
    """Yield a dictionary that has the costs of a `with` block afterwards.

    `seconds` is its wall time, `cpu_seconds` the processor time of this process and its
    children, and `peak_bytes` the peak memory of this process since its start and the
    peaks of the children that lived meanwhile. A thread looks at these, because the
    peak of an ended one is not known.
    """
    peaks: dict[int, int] = {}

    def look() -> None:
        for child in list_processes()[1:]:
            peaks[child.pid] = max(read_peak(child.pid), peaks.get(child.pid, 0))

    costs: dict[str, float] = {}
    with call_often(look, _INTERVAL):
        cpu = _count_cpu()
        start = time.perf_counter()
        yield costs

        costs["seconds"] = time.perf_counter() - start
        # A child that nobody waited for is in the first count alone.
        costs["cpu_seconds"] = max(_count_cpu() - cpu, 0.0)
    look()
    costs["peak_bytes"] = read_peak() + sum(peaks.values())


@contextmanager
def call_often(work: Callable[[], object], pause: float) -> Iterator[None]:
    """Call a function in a thread until a `with` block ends.

    Args:
        work: the function.
        pause: seconds between two calls.
    """
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(pause):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def list_processes() -> list[psutil.Process]:
    """Return this process, those that it started, and those that they did."""
    this = psutil.Process()
    with suppress(psutil.Error):
        return [this, *this.children(recursive=True)]
    return [this]


def count_processor_time(processes: Iterable[psutil.Process]) -> float:
    """Return the seconds that processes computed, and those of their children that
    ended and were waited for.
    """
    seconds = 0.0
    for process in processes:
        with suppress(psutil.Error):
            # User, system, and those of children that ended.
            seconds += sum(process.cpu_times()[:4])
    return seconds


def _count_cpu() -> float:
    """Return the processor time of this process and those that it started, in finer
    steps than the system has for others.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = time.process_time() + ended.ru_utime + ended.ru_stime
    return own + count_processor_time(list_processes()[1:])
