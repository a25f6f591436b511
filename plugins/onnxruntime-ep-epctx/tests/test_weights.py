"""Weights between onnxruntime and an EP: those in files are not copied."""

from __future__ import annotations

import json

import pytest
from programs import run_program

PROGRAM = """
import json, os, sys, tracemalloc
from pathlib import Path
import numpy as np, onnx, onnxruntime
from onnx import helper, numpy_helper
import ort_sessions
from epctx_core import default_registry
from epctx_core.plugin import (
    CompiledPartition, ExecutionProvider, hookimpl, supported_partitions
)

SEEN = []

class LookingProvider(ExecutionProvider):
    name = "LookingExecutionProvider"
    vendor = "tests"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type == "Add")

    @hookimpl
    def compile(self, partitions):
        for each in partitions:
            SEEN.extend(each.weights.values())
        weights = [w.array() for w in SEEN]

        def run(inputs, outputs=None):
            outputs[0][...] = sum(weights, inputs[0])
            return outputs

        return [CompiledPartition(run) for _ in partitions]

default_registry.register(LookingProvider)
folder, form = Path(sys.argv[1]), sys.argv[2]
random = np.random.default_rng(0)
WEIGHTS = {f"w{i}": random.standard_normal(1 << 19).astype("f4") for i in range(4)}
SIZE = sum(w.nbytes for w in WEIGHTS.values())
names = ["x", *(f"t{i}" for i in range(3)), "y"]
shape = (ort_sessions.FLOAT, [1 << 19])
model = onnx.load_from_string(ort_sessions.make_model(
    [helper.make_node("Add", [names[i], f"w{i}"], [names[i + 1]]) for i in range(4)],
    {"x": shape}, {"y": shape}, WEIGHTS,
))
path = folder / "model.onnx"
entries = {}
onnx.save(
    model, path, save_as_external_data=form != "inline", location="model.bin"
)
if form == "linked":
    store = folder / "store"
    store.mkdir()
    for index, name in enumerate(("model.onnx", "model.bin")):
        (folder / name).rename(store / f"blob{index}")
        (folder / name).symlink_to(store / f"blob{index}")
if form == "in the host's folder":
    (folder / "other").mkdir()
    (folder / "model.bin").rename(folder / "other" / "model.bin")
    entries["session.model_external_initializers_file_folder_path"] = str(
        folder / "other"
    )
    path = path.read_bytes()
options = ort_sessions.make_options(LookingProvider.name, entries=entries)
tracemalloc.start()
session = onnxruntime.InferenceSession(
    path if isinstance(path, bytes) else str(path), options
)
peak = tracemalloc.get_traced_memory()[1]
x = np.ones(1 << 19, "f4")
print(json.dumps({
    "is right": bool(
        np.array_equal(session.run(None, {"x": x})[0], sum(WEIGHTS.values(), x))
    ),
    "in files": sum(w.extent is not None for w in SEEN),
    "copies": round(peak / SIZE, 1),
}))
"""
EXTERNAL = ["external", "linked", "in the host's folder"]


@pytest.mark.parametrize("form", EXTERNAL)
def test_weights_in_files_are_not_copied(form, tmp_path):
    found = json.loads(run_program(PROGRAM, tmp_path, form))

    assert found["is right"]
    assert found["in files"] == 4
    assert found["copies"] <= 0.5, "what Python's own objects take"


def test_weights_inside_of_a_model_are_copied_once(tmp_path):
    found = json.loads(run_program(PROGRAM, tmp_path, "inline"))

    assert found["is right"]
    assert found["in files"] == 0
    assert found["copies"] < 2, "one, and the tensor that is being read"
