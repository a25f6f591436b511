"""Costs of a task in a batch beside its compile: on processes of this machine and on a
Dask cluster, beside a bare task of Dask's.

The tasks are copies of one network for twenty targets that the cache has compiled, so
that nothing but the batch's own work is left: docs/how-to/models/batch.md counts from
it.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from epctx_batch import read_fleet, run_batch

MODELS = 500
TARGETS = 20
WORKERS = 2
NETWORK = Path(__file__).parents[1] / "tests/data/real/conv.onnx"
_FLEET = """
[batch]
cache_dir = "cache"
workers = {workers}

[[model]]
path = "{pattern}"

[[target]]
name = "target"
eps = ["QNN"]
options.QNN.htp_arch = [68, 69, 73, 75]
options.QNN.soc_model = [0, 1, 2, 3, 4]
"""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A scheduler and its workers on this machine.

    Attributes:
        address: of the scheduler.
        scheduler: number of its process.
    """

    address: str
    scheduler: int


def write_fleet(folder: Path, name: str, pattern: str) -> Path:
    """Write a fleet of the copies that a pattern names."""
    text = _FLEET.format(workers=WORKERS, pattern=pattern)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


@contextmanager
def begin_cluster(folder: Path) -> Iterator[Cluster]:
    """Begin a scheduler and workers, and end them."""
    import distributed

    file = folder / "scheduler.json"
    with ExitStack() as held:

        def begin(name: str, *options: str) -> int:
            command = [
                sys.executable, "-m", "dask", name, "--host", "127.0.0.1",
                "--no-dashboard", "--scheduler-file", str(file), *options,
            ]  # fmt: skip
            log = held.enter_context((folder / f"{name}.log").open("ab"))
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
            held.callback(process.wait)
            held.callback(process.terminate)
            return process.pid

        scheduler = begin("scheduler", "--port", "0")
        for _ in range(WORKERS):
            begin("worker", "--nthreads", "1")
        while not file.exists():
            time.sleep(0.05)
        address = str(json.loads(file.read_text())["address"])
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(WORKERS, timeout=60)
        yield Cluster(address=address, scheduler=scheduler)


def count_costs(scheduler: int) -> dict[str, float]:
    """Return what a scheduler has used until now, and all bytes on the loopback."""
    fields = Path(f"/proc/{scheduler}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{scheduler}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    devices = Path("/proc/net/dev").read_text().splitlines()
    loopback = next(line for line in devices if " lo:" in line)
    return {
        "s": time.perf_counter(),
        "scheduler_s": (int(fields[11]) + int(fields[12])) / _TICKS,
        "scheduler_bytes": 1024.0 * int(resident.split()[1]),
        "sent_bytes": float(loopback.split()[9]),
    }


def run_bare(address: str, count: int) -> None:
    """Run tasks that do nothing, as a batch submits its own."""
    import distributed

    with distributed.Client(address, set_as_default=False) as client:
        futures = [
            client.submit(str, number, key=f"bare-{number}") for number in range(count)
        ]
        for future in distributed.as_completed(futures, loop=client.loop):
            future.result()


def main() -> None:
    """Measure, and print a table."""
    count = MODELS * TARGETS
    with tempfile.TemporaryDirectory(prefix="epctx-batch-") as name:
        folder = Path(name)
        for number in range(MODELS):
            shutil.copy(NETWORK, folder / f"model_{number:03}.onnx")
        first = run_batch(write_fleet(folder, "first", "model_000.onnx"))
        fleet = write_fleet(folder, "fleet", "model_*.onnx")

        tracemalloc.start()
        begun = time.perf_counter()
        tasks = read_fleet(fleet).tasks
        reading = time.perf_counter() - begun
        bytes_each = tracemalloc.get_traced_memory()[0] / len(tasks)
        tracemalloc.stop()
        del tasks

        begun = time.perf_counter()
        local = run_batch(fleet)
        here = time.perf_counter() - begun
        shutil.rmtree(local.output)

        with begin_cluster(folder) as cluster:
            costs = [count_costs(cluster.scheduler)]
            run_bare(cluster.address, count)
            costs.append(count_costs(cluster.scheduler))
            remote = run_batch(fleet, scheduler=cluster.address)
            costs.append(count_costs(cluster.scheduler))
        kept = sum(file.lstat().st_blocks for file in Path(remote.output).rglob("*"))

    assert local.ok and remote.ok, "a task failed"  # noqa: S101, PT018 - of a benchmark
    bare, dask = (
        {name: (after[name] - before[name]) / count for name in after}
        for before, after in itertools.pairwise(costs)
    )
    compile_seconds = sum(task.seconds for task in first.tasks) / TARGETS
    print(f"{count:,} tasks of {MODELS} models and {TARGETS} targets, all in the cache")
    rows = {
        "compile of a task": f"{compile_seconds:.3f} s",
        "reading the file": (
            f"{1e6 * reading / count:,.0f} us, {bytes_each:,.0f} bytes a task"
        ),
        f"{WORKERS} processes": f"{1e3 * here / count:.2f} ms a task",
        "a bare task of Dask's": describe(bare),
        "a task on Dask": describe(dask),
        "Dask / processes": f"{dask['s'] * count / here:.2f}",
        "folder of a task": f"{512 * kept / count:,.0f} bytes on disk",
    }
    for name, text in rows.items():
        print(f"{name:<24} {text}")


def describe(found: dict[str, float]) -> str:
    """Return the costs of a task in words."""
    return (
        f"{1e3 * found['s']:.2f} ms; scheduler: {1e3 * found['scheduler_s']:.2f} ms of "
        f"processor, {found['scheduler_bytes']:,.0f} bytes of memory; "
        f"{found['sent_bytes']:,.0f} bytes sent"
    )


if __name__ == "__main__":
    main()
