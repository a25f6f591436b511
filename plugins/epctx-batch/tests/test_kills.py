"""Batches that are killed at any moment, alone and on a Dask cluster: the next run
finishes them, with the same files as a batch that nobody killed.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from batches import make_models, read_outputs
from epctx_batch import run_batch
from epctx_cache.store import EntryStore, collect, verify

from epctx_core import verify_model

pytestmark = pytest.mark.internal

MODELS = 4
MOST = 3
"""Kills of workers in one batch: on a slow machine, a worker that is always killed before
it has begun would end no batch.
"""
COUNTS = [2, pytest.param(200, marks=pytest.mark.stress)]
FILES = {"task.json", "log.txt", "result.json"}


def begin(folder, *scheduler):
    """Begin a batch in a process of its own, which has imported what it needs."""
    program = (
        "import sys\n"
        "from epctx_batch import run_batch\n"
        "from epctx_batch import cluster, processes\n"
        "print('ready', flush=True)\n"
        "run_batch(sys.argv[1], scheduler=(*sys.argv[2:], None)[0])"
    )
    command = [sys.executable, "-c", program, "fleet.toml", *scheduler]
    # A pipe would be kept open by what the process began.
    with folder.with_suffix(".said").open("wb") as said:
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=said
        )
    assert process.stdout.readline() == b"ready\n"
    return process


def end(process):
    """Wait for a process; return its exit code."""
    process.communicate()
    return process.returncode


def kill(process, *, children):
    """Kill a process, with all that it began or without."""
    begun = psutil.Process(process.pid).children(recursive=True) if children else []
    process.kill()
    for child in begun:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    end(process)


def describe_progress(folder):
    """Return what a batch has reached: tasks begun, and those with a result."""
    tasks = list(folder.glob("*-results/*/task.json"))
    done = [path for path in tasks if path.with_name("result.json").exists()]
    return f"{len(tasks)} begun, {len(done)} done"


def list_litter(folder, result):
    """Return what a batch left beside its results and the entries of its cache."""
    store = EntryStore(folder / "cache")
    collect(store, 1 << 30)
    litter = [fault for _, fault in verify(store) if fault]
    litter += [
        p.name
        for name in ("staging", "locks")
        for p in (store.folder / "v1" / name).glob("*")
    ]
    for task in result.tasks:
        for path in Path(task.output).parent.iterdir():
            is_own = path.name in FILES or path.suffix in {".onnx", ".bin"}
            litter += [] if is_own else [path.name]
    known = {"cache", "models", "fleet.toml", "fleet-results"}
    return litter + [path.name for path in folder.iterdir() if path.name not in known]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("where", ["alone", "on dask"])
def test_a_batch_that_was_killed_at_any_moment_is_finished_by_the_next_run(
    where, count, request, counted, tmp_path
):
    scheduler = ()
    if where == "on dask":
        scheduler = (request.getfixturevalue("cluster").address,)
    sound = tmp_path / "sound"
    sound.mkdir()
    make_models(sound, MODELS)
    process, begun = begin(sound, *scheduler), time.monotonic()
    assert end(process) == 0
    whole = time.monotonic() - begun
    expected = read_outputs(run_batch(sound / "fleet.toml"))

    chance = random.Random(count)  # noqa: S311 - for a test
    reached = Counter()
    number = 0
    while reached.total() < count:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        make_models(folder, MODELS)
        process = begin(folder, *scheduler)
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, whole))
        if process.poll() is None:
            kill(process, children=number % 2 == 0)
            reached[describe_progress(folder)] += 1
        process.stdout.close()

        result = run_batch(folder / "fleet.toml", scheduler=next(iter(scheduler), None))

        assert result.ok, [task.error for task in result.tasks if task.error]
        assert read_outputs(result) == expected
        assert list_litter(folder, result) == []
        assert all(verify_model(task.output).ok for task in result.tasks)
    sys.stdout.write(
        f"{where}: {count} kills in {number} batches, at {dict(reached)}\n"
    )


@pytest.mark.parametrize("count", COUNTS)
def test_batches_whose_workers_are_killed_at_any_moment_end_as_without(
    cluster, counted, tmp_path, count
):
    chance = random.Random(count)  # noqa: S311 - for a test
    (tmp_path / "sound").mkdir()
    make_models(tmp_path / "sound", MODELS)
    expected = read_outputs(run_batch(tmp_path / "sound" / "fleet.toml"))
    kills = number = 0
    while kills < count:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        make_models(folder, MODELS)
        process = begin(folder, cluster.address)
        killed = 0
        while process.poll() is None and killed < MOST:
            time.sleep(chance.uniform(0, 1.5))
            killed += process.poll() is None and cluster.kill_one(chance)
        kills += killed
        assert end(process) == 0, folder.with_suffix(".said").read_text()
        result = run_batch(folder / "fleet.toml", scheduler=cluster.address)

        assert result.ok, [task.error for task in result.tasks if task.error]
        assert read_outputs(result) == expected
        assert list_litter(folder, result) == []
    sys.stdout.write(f"{kills} kills of workers in {number} batches\n")
