"""A real Dask cluster, small models, and what batches of them leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import distributed
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from support.isolation import wait_for

FLEET = """
[batch]
cache_dir = "cache"
config = {"ep.isolate" = "", "ep.compile_timeout" = ""}

[[model]]
path = "models/*.onnx"

[[target]]
name = "made"
eps = ["Made"]
"""


class Cluster:
    """A scheduler and two workers; one that is lost is begun again by its nanny."""

    def __init__(self, folder, held):
        self.folder = folder
        self.held = held
        self.processes = []
        self.file = folder / "scheduler.json"
        self.begin("scheduler", "--port", "0")
        for resources in ("NPU=1", "other=1"):
            self.begin_worker(resources)

        assert wait_for(self.read_address, seconds=60)
        self.address = self.read_address()
        self.client = distributed.Client(self.address, set_as_default=False)
        held.callback(self.client.close)
        self.client.wait_for_workers(2, timeout=60)

    def read_address(self):
        """Return the scheduler's address, None until its file is written to the end."""
        try:
            return json.loads(self.file.read_text())["address"]
        except (FileNotFoundError, json.JSONDecodeError):
            return None

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
        self.processes.append(process)
        self.held.callback(process.wait)
        self.held.callback(process.terminate)

    def kill_one(self, chance):
        """Kill a worker, without a warning to anybody; return whether there was one."""
        pids = self.client.run(os.getpid, on_error="ignore")
        if pids:
            os.kill(chance.choice(sorted(pids.values())), 9)
        return bool(pids)


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
