"""Batches on a real Dask cluster: a scheduler and two workers, each a process, which the
tests begin and kill; and on machines with a shared cache between them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import dask
import distributed
import numpy as np
import onnx
import pytest
from epctx_batch import run_batch
from installed import install_distribution
from onnx import TensorProto, helper, numpy_helper

from epctx_core.errors import Fail

KILLED_EVERY = 1.5
"""Seconds between two kills of a worker."""
FLEET = """
[batch]
cache_dir = "cache"
config = {"ep.isolate" = "", "ep.compile_timeout" = ""}

[[model]]
path = "models/*.onnx"

[[target]]
name = "counted"
eps = ["Counting"]
"""
COUNTING = """
import os
import time

from epctx_core.plugin import (
    CompiledPartition, EPContextNode, ExecutionProvider, ProviderOption, hookimpl,
    supported_partitions,
)


class Provider(ExecutionProvider):
    name = "CountingExecutionProvider"
    options = (ProviderOption("level", int, default=0, doc="Number of the target."),)

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: True)

    @hookimpl
    def compile(self, partitions):
        # One write of a short line is whole, whatever else writes.
        line = f"{partitions[0].name}\\n".encode()
        file = os.open(os.environ["COUNTED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line)
        os.close(file)
        time.sleep(0.05)
        self.partitions = partitions
        return [CompiledPartition(None) for _ in partitions]

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = []
        for partition in self.partitions:
            payload = writer.payload(partition.name)
            for name, weight in partition.weights.items():
                payload.write_tensor(weight)
            nodes.append(EPContextNode(partition, payload))
        return nodes

    @hookimpl
    def load_context(self, nodes, reader):
        return [CompiledPartition(None) for _ in nodes]
"""


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Install an EP that writes a line for each compile, and return its file."""
    site = tmp_path_factory.mktemp("site")
    entries = {
        "epctx.execution_providers": {"CountingExecutionProvider": "counting:Provider"}
    }
    install_distribution(site, "epctx-counting", entries)
    (site / "counting.py").write_text(COUNTING)
    with pytest.MonkeyPatch.context() as patch:
        before = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), before])))
        patch.setenv("COUNTED", str(site / "compiles"))
        patch.syspath_prepend(site)
        yield site / "compiles"


class Cluster:
    """A scheduler and two workers; one that is lost is begun again by its nanny."""

    def __init__(self, folder, held):
        self.folder = folder
        self.held = held
        self.file = folder / "scheduler.json"
        self.begin("scheduler", "--port", "0")
        for resources in ("NPU=1", "other=1"):
            self.begin_worker(resources)

        wait_until(self.file.exists)
        self.address = json.loads(self.file.read_text())["address"]
        self.client = distributed.Client(self.address, set_as_default=False)
        held.callback(self.client.close)
        self.client.wait_for_workers(2, timeout=60)

    def begin_worker(self, resources):
        self.begin("worker", "--nthreads", "1", "--resources", resources)

    def begin(self, name, *options):
        command = [
            sys.executable, "-m", "dask", name, "--host", "127.0.0.1", "--no-dashboard",
            "--scheduler-file", str(self.file), *options,
        ]  # fmt: skip
        env = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "100"}
        log = self.held.enter_context((self.folder / f"{name}.log").open("ab"))
        process = subprocess.Popen(
            command, env=env, cwd=self.folder, stdout=log, stderr=log
        )
        self.held.callback(process.wait)
        self.held.callback(process.terminate)

    def kill_one(self, chance):
        """Kill a worker, without a warning to anybody; return whether there was one."""
        pids = self.client.run(os.getpid, on_error="ignore")
        if pids:
            os.kill(chance.choice(sorted(pids.values())), 9)
        return bool(pids)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, counted):
    with ExitStack() as held:
        yield Cluster(tmp_path_factory.mktemp("cluster"), held)


def wait_until(holds, seconds=60):
    """Wait until a function returns a true value."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def make_models(folder, count):
    """Write models that differ in a weight."""
    (folder / "models").mkdir()
    for number in range(count):
        weight = numpy_helper.from_array(np.full((4, 4), number, np.float32), "w")
        shape = [1, 4]
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            [weight],
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
        )
        onnx.save(model, folder / "models" / f"{number:03}.onnx")
    (folder / "fleet.toml").write_text(FLEET)


def read_outputs(result):
    """Return the bytes of each file that tasks left, by task and name."""
    return {
        (task.id, path.name): path.read_bytes()
        for task in result.tasks
        for path in Path(task.output).parent.iterdir()
        if path.suffix in {".onnx", ".bin"}
    }


def run_while_workers_are_killed(cluster, fleet, seed):
    """Return the result of a batch, and the number of workers that were killed."""
    chance = random.Random(seed)  # noqa: S311 - for a test
    kills = 0
    is_over = threading.Event()

    def kill():
        nonlocal kills
        while not is_over.wait(chance.uniform(0.5, 1.5) * KILLED_EVERY):
            kills += cluster.kill_one(chance)

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
        cluster, tmp_path / "killed" / "fleet.toml", seed=count
    )
    compiles = len(counted.read_text().splitlines())
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
        wait_until(lambda: caplog.records or batch.done())
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
        (folder / "fleet.toml").write_text(f"{text}options.Counting.level = {levels}\n")
        counted.unlink(missing_ok=True)
        results.append(run_batch(folder / "fleet.toml"))
        compiles.append(
            len(counted.read_text().splitlines()) if counted.exists() else 0
        )

    assert all(result.ok for result in results)
    assert len(results[1].tasks) == models * len(levels)
    assert compiles == [models * len(levels), 0]
    assert all(task.was_cached for task in results[1].tasks)
    assert read_outputs(results[0]) == read_outputs(results[1])
