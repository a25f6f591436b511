"""A verification has a process of its own read a model that this machine meets for the
first time: native code that does not survive it is a finding.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
VERIFY = """
import json, sys, time
import epctx_core as epctx
options = epctx.SessionOptions()
for entry in sys.argv[2:]:
    options.add_session_config_entry(*entry.split("=", 1))
model = sys.argv[1] if sys.argv[1] != "-" else sys.stdin.buffer.read()
report = epctx.verify_model(model, options)
print(json.dumps({"ok": report.ok, "findings": [[f.code, f.message, f.hint] for f in report.findings]}))
"""
IGNORING = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"


def save(path, nodes, inputs, outputs, constants=()):
    """Write a model."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(np.array(array), name) for name, array in constants],
    )
    opsets = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.fixture
def fatal(tmp_path):
    """A model over which onnx 1.23 ends the process: it infers a size of -1 for what it
    slices then.
    """
    nodes = [
        helper.make_node("MaxPool", ["x"], ["pooled"], kernel_shape=[5, 5]),
        helper.make_node("Slice", ["pooled", "start", "end", "axis"], ["y"]),
    ]
    return save(
        tmp_path / "fatal.onnx",
        nodes,
        [("x", FLOAT, [1, 1, 3, 3])],
        [("y", FLOAT, ["a", "b", "c", "d"])],
        [("start", [0]), ("end", [1]), ("axis", [2])],
    )


@pytest.fixture
def slow(tmp_path):
    """A model that takes seconds to read."""
    nodes = [helper.make_node("Relu", ["x"], [f"y{i}"]) for i in range(100_000)]
    values = [(name, FLOAT, [2]) for name in ("x", "y0")]
    return save(tmp_path / "slow.onnx", nodes, values[:1], values[1:])


@pytest.fixture
def right(tmp_path):
    """A model that nothing is wrong with."""
    node = helper.make_node("Relu", ["x"], ["y"])
    values = [(name, FLOAT, [2]) for name in "xy"]
    return save(tmp_path / "right.onnx", [node], values[:1], values[1:])


@pytest.fixture
def receipts(tmp_path):
    """The folder of a machine's receipts."""
    return tmp_path / "receipts"


def verified(model, receipts, *entries, prelude=""):
    """Return the report of a verification in a process of a host."""
    is_path = not isinstance(model, bytes)
    host = subprocess.run(
        [
            sys.executable,
            "-c",
            prelude + VERIFY,
            str(model) if is_path else "-",
            *entries,
        ],
        input=None if is_path else model,
        capture_output=True,
        env={**os.environ, "EPCTX_RECEIPTS": str(receipts)},
        check=False,
    )
    assert host.returncode == 0, host.stderr
    return json.loads(host.stdout)


def test_a_model_that_ends_its_reader_is_a_finding(fatal, receipts):
    report = verified(fatal, receipts)

    assert not report["ok"]
    code, message, hint = report["findings"][0]
    assert code == "model-invalid"
    assert "fatal.onnx did not survive it: it was ended by SIGABRT" in message
    assert hint.startswith("Do not load it")


def test_a_model_from_bytes_is_read_there_too(fatal, receipts):
    report = verified(fatal.read_bytes(), receipts)

    assert "the model given as bytes did not survive" in report["findings"][0][1]


def test_a_model_that_keeps_its_reader_busy_is_a_finding(slow, receipts):
    report = verified(slow, receipts, "ep.isolate_timeout_seconds=1")

    assert "it took longer than the 1 seconds that it had" in report["findings"][0][1]


def test_a_model_that_needs_more_memory_than_its_reader_may_have_is_a_finding(
    right, receipts
):
    report = verified(right, receipts, "ep.isolate_max_bytes=1000000")

    assert "did not survive it" in report["findings"][0][1]


def test_a_model_that_was_read_is_not_read_there_again(right, receipts):
    first = verified(right, receipts)
    # Whoever reads has too little memory now.
    again = verified(right, receipts, "ep.isolate_max_bytes=1000000")

    assert first == again
    assert first["ok"]
    assert any(receipts.iterdir())


def test_a_wrong_model_is_reported_as_without_the_process(tmp_path, receipts):
    node = helper.make_node("Relu", ["nowhere"], ["y"])
    path = save(tmp_path / "wrong.onnx", [node], [], [("y", FLOAT, [2])])

    report = verified(path, receipts)

    assert "did not survive" not in str(report)
    assert report["findings"][0][0] == "model-invalid"


def test_options_of_an_ep_keep_nothing_from_being_read(fatal, receipts):
    report = verified(fatal, receipts, "ep.qnnexecutionprovider.htp_arch=73")

    assert "did not survive" in report["findings"][0][1]


def test_a_model_that_could_not_be_read_is_read_there_again(fatal, receipts):
    model = onnx.load(fatal)
    weight = model.graph.initializer.add(name="w", data_type=FLOAT, dims=[1])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights.bin")
    onnx.save(model, fatal)

    missing = verified(fatal, receipts)
    fatal.with_name("weights.bin").write_bytes(bytes(4))
    there = verified(fatal, receipts)

    assert "weights.bin" in missing["findings"][0][1]
    assert "did not survive" in there["findings"][0][1]


def test_a_host_that_ignores_its_children_learns_of_their_end(fatal, receipts):
    report = verified(fatal, receipts, prelude=IGNORING)

    assert "did not survive" in report["findings"][0][1]
