"""Program that watches the machine while it computes, and prints what it found.

Of its own, so that processes that a test starts are strangers to the watcher.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
from epctx_bench import noise
from epctx_bench.noise import Watcher

COMPUTE = (
    "import sys, time; end = time.perf_counter() + float(sys.argv[1])\n"
    "while time.perf_counter() < end: sum(range(1000))"
)


def count_seconds(*, besides):
    """Return the processor seconds of each process, and those stolen."""
    seconds = {"stolen": getattr(psutil.cpu_times(), "steal", 0.0)}
    for process in psutil.process_iter(["cpu_times"]):
        if process.pid not in besides and process.info["cpu_times"]:
            seconds[process.pid] = sum(process.info["cpu_times"][:4])
    return seconds


def compute(seconds, number):
    """Compute in child processes at the same time."""
    command = [sys.executable, "-c", COMPUTE, seconds]
    children = [subprocess.Popen(command) for _ in range(number)]
    for child in children:
        child.wait()


def watch(seconds, number, proc):
    """Return what a watcher says, and what others used by each process's own count."""
    # Parents' times would contain this process's.
    besides = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    before = count_seconds(besides=besides)
    noise._PROC = Path(proc)
    with Watcher() as watcher:
        compute(seconds, int(number))

    after = count_seconds(besides=besides)
    others = sum(spent - before.get(key, 0.0) for key, spent in after.items())
    threads = threading.active_count()
    return watcher.noise.as_dict() | {"others": others, "threads": threads}


def main(times, seconds, number, proc):
    found = [watch(seconds, number, proc) for _ in range(int(times))]
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
