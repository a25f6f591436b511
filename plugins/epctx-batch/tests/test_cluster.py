"""Batches on a real Dask cluster: a scheduler and two workers, each a process, which the
tests begin and kill; and on machines with a shared cache between them.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import cloudpickle
import dask
import pytest
from batches import Cluster, make_models, read_outputs
from epctx_batch import cluster as cluster_module
from epctx_batch import run_batch
from support.isolation import wait_for

from epctx_core.errors import Fail

pytestmark = pytest.mark.internal

KILLED_EVERY = 8
"""Compiles between two kills of a worker, about."""


def count_lines(path):
    """Return the number of lines of a file, 0 if there is none."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def run_while_workers_are_killed(cluster, fleet, counted, seed):
    """Return the result of a batch, and the number of workers that were killed."""
    chance = random.Random(seed)  # noqa: S311 - for a test
    kills = 0
    is_over = threading.Event()

    def kill():
        nonlocal kills
        compiles = chance.uniform(0.5, 1.5) * KILLED_EVERY
        while not is_over.wait(0.02):
            if count_lines(counted) >= compiles:
                kills += cluster.kill_one(chance)
                compiles += chance.uniform(0.5, 1.5) * KILLED_EVERY

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        return run_batch(fleet, scheduler=cluster.address), kills
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    "count", [24, pytest.param(200, marks=pytest.mark.stress)], ids=str
)
def test_each_model_is_compiled_once_and_once_more_for_each_killed_worker_at_most(
    cluster, counted, tmp_path, count
):
    for name in ("killed", "alone"):
        (tmp_path / name).mkdir()
        make_models(tmp_path / name, count)

    counted.unlink(missing_ok=True)
    result, kills = run_while_workers_are_killed(
        cluster, tmp_path / "killed" / "fleet.toml", counted, seed=count
    )
    compiles = count_lines(counted)
    alone = run_batch(tmp_path / "alone" / "fleet.toml")

    assert result.ok, [task.error for task in result.tasks if task.error]
    assert len(result.tasks) == count
    assert kills > 0
    assert count <= compiles <= count + kills
    assert read_outputs(result) == read_outputs(alone)


def test_what_the_cache_has_is_not_compiled_on_a_cluster_either(
    cluster, counted, tmp_path
):
    make_models(tmp_path, 3)
    first = run_batch(tmp_path / "fleet.toml")
    counted.unlink()

    again = run_batch(tmp_path / "fleet.toml", scheduler=cluster.address)

    assert all(task.was_cached for task in again.tasks)
    assert not counted.exists()
    assert read_outputs(again) == read_outputs(first)


def test_workers_make_the_report_pages(cluster, tmp_path):
    make_models(tmp_path, 2)

    result = run_batch(tmp_path / "fleet.toml", scheduler=cluster.address, html=True)

    page = Path(result.page).read_text("utf-8")
    for task in result.tasks:
        assert Path(task.output).with_name("report.html").stat().st_size > 10_000
        assert f"{task.id}/report.html" in page


def test_whatever_goes_wrong_on_a_worker_fails_one_task(cluster, tmp_path, monkeypatch):
    """Such as a result that this process cannot read."""
    make_models(tmp_path, 3)

    def run_on_worker(task, plugin, run=cluster_module.run_on_worker):
        if task.model.endswith("001.onnx"):
            raise RuntimeError("a surprise")
        return run(task, plugin)

    monkeypatch.setattr(cluster_module, "run_on_worker", run_on_worker)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        result = run_batch(tmp_path / "fleet.toml", scheduler=cluster.address)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])

    assert [task.state for task in result.tasks] == ["done", "failed", "done"]
    error = result.tasks[1].error
    assert error.message == "its worker failed: RuntimeError: a surprise"


@pytest.mark.parametrize(
    ("call", "error", "times"),
    [
        ("register_plugin", OSError("Stream is closed"), 2),
        ("unregister_worker_plugin", KeyError("of a worker that has just joined"), 1),
    ],
)
def test_a_worker_that_is_lost_before_or_after_the_tasks_ends_no_batch(
    cluster, tmp_path, monkeypatch, call, error, times
):
    make_models(tmp_path, 1)
    real = getattr(cluster_module.Client, call)
    calls = []

    def fail_first(self, *arguments, **named):
        result = real(self, *arguments, **named)
        calls.append(call)
        if len(calls) == 1:
            raise error
        return result

    monkeypatch.setattr(cluster_module.Client, call, fail_first)

    assert run_batch(tmp_path / "fleet.toml", scheduler=cluster.address).ok
    assert len(calls) == times


def test_a_batch_ends_with_a_typed_error_when_the_scheduler_is_lost(counted, tmp_path):
    make_models(tmp_path, 50)
    counted.unlink(missing_ok=True)

    with ExitStack() as held:
        # How long a client looks for a scheduler that was lost.
        held.enter_context(dask.config.set({"distributed.comm.timeouts.connect": "1s"}))
        lost = Cluster(tmp_path, held)
        thread = held.enter_context(ThreadPoolExecutor(1))
        fleet = tmp_path / "fleet.toml"
        batch = thread.submit(run_batch, fleet, scheduler=lost.address)
        assert wait_for(lambda: count_lines(counted) > 1, seconds=60)
        lost.processes[0].kill()
        with pytest.raises(Fail, match=r"the scheduler .* was lost") as raised:
            batch.result(120)

    assert "Run the batch again" in raised.value.hint


def test_a_task_runs_where_its_resources_are(cluster, tmp_path, caplog):
    make_models(tmp_path, 2)
    text = (tmp_path / "fleet.toml").read_text()
    (tmp_path / "fleet.toml").write_text(f"{text}resources = {{NPU = 1}}\n")

    result = run_batch(tmp_path / "fleet.toml", scheduler=cluster.address)

    assert result.ok
    assert not caplog.records


def test_a_task_waits_for_a_worker_that_has_its_resource(cluster, tmp_path, caplog):
    make_models(tmp_path, 2)
    text = (tmp_path / "fleet.toml").read_text()
    (tmp_path / "fleet.toml").write_text(f"{text}resources = {{TPU = 2}}\n")

    with ThreadPoolExecutor(1) as thread:
        batch = thread.submit(
            run_batch, tmp_path / "fleet.toml", scheduler=cluster.address
        )
        assert wait_for(lambda: caplog.records or batch.done(), seconds=60)
        cluster.begin_worker("TPU=2")
        result = batch.result(60)

    assert result.ok
    assert "2 tasks wait for a worker with TPU=2" in caplog.text


def test_an_address_without_a_scheduler_is_a_typed_error(tmp_path):
    make_models(tmp_path, 1)

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "300ms"}),
        pytest.raises(Fail, match="there is no Dask scheduler at 'tcp://127") as raised,
    ):
        run_batch(tmp_path / "fleet.toml", scheduler="tcp://127.0.0.1:9")

    assert "dask scheduler" in raised.value.hint


@pytest.mark.parametrize("address", ["nonsense", "nothing://host:1", "tcp://host"])
def test_an_address_that_is_none_is_refused_at_once(tmp_path, address):
    make_models(tmp_path, 1)

    with pytest.raises(Fail, match=f"there is no Dask scheduler at '{address}'"):
        run_batch(tmp_path / "fleet.toml", scheduler=address)

    gc.collect()  # a client that was half made would wait for a minute


# -- machines without a cluster, with a cache between them
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "levels"),
    [(3, [0, 1]), pytest.param(50, [0, 1, 2, 3], marks=pytest.mark.stress)],
)
def test_what_one_machine_compiled_another_takes_from_the_shared_cache(
    counted, tmp_path, models, levels
):
    results = []
    compiles = []
    for machine in ("first", "second"):
        folder = tmp_path / machine
        folder.mkdir()
        make_models(folder, models)
        text = (folder / "fleet.toml").read_text()
        shared = f'shared_cache = "file://{tmp_path}/shared"'
        text = text.replace("[batch]", f"[batch]\n{shared}")
        (folder / "fleet.toml").write_text(f"{text}options.Made.level = {levels}\n")
        counted.unlink(missing_ok=True)
        results.append(run_batch(folder / "fleet.toml"))
        compiles.append(count_lines(counted))

    assert all(result.ok for result in results)
    assert len(results[1].tasks) == models * len(levels)
    assert compiles == [models * len(levels), 0]
    assert all(task.was_cached for task in results[1].tasks)
    assert read_outputs(results[0]) == read_outputs(results[1])
