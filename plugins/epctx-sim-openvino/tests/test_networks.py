"""Real networks on each device: both modes, moved, and dynamic batches, against
onnxruntime's CPU results.
"""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest
from support.agreement import TOLERANCE, worst_relative_error
from support.networks.catalog import EXPORTED, FILLED, LARGE, run_onnxruntime

import epctx_core as epctx

EP = "OpenVINOExecutionProvider"


def taken_nodes(report):
    return sum(partition.nodes for partition in report.partitions if partition.ep == EP)


EMBEDDED = [(name, True) for name in (*EXPORTED, "squeezenet", "shufflenet")]
FILES = [
    *((name, False) for name in EXPORTED),
    *(
        pytest.param(name, False, marks=[pytest.mark.stress] if name in LARGE else [])
        for name in FILLED
    ),
]


@pytest.mark.parametrize(("name", "embedded"), [*FILES, *EMBEDDED])
def test_a_moved_context_model_agrees_with_onnxruntime(
    bench, network, tmp_path, name, embedded
):
    source = network(name)
    compiled = bench.compile(source.path, embedded=embedded)
    moved = tmp_path / "far away"
    shutil.move(compiled.path.parent, moved)
    shutil.rmtree(source.path.parent)

    found = bench.run(moved / "net_ctx.onnx", source.inputs)

    assert worst_relative_error(found, source.reference) <= TOLERANCE
    files = {"net_ctx.onnx"} if embedded else {"net_ctx.onnx", f"net_{EP}.bin"}
    assert {path.name for path in moved.iterdir()} == files


@pytest.mark.parametrize(
    ("name", "device", "partitions", "left"),
    [
        ("resnet", "CPU", 1, {}),
        ("lstm", "CPU", 1, {}),
        ("lstm", "GPU", 1, {}),
        ("bert", "CPU", 5, {"IsNaN": 4}),
        ("bert", "GPU", 5, {"IsNaN": 4}),
        ("lstm", "NPU", 3, {"LSTM": 2}),
        ("bert", "NPU", 6, {"GatherND": 1, "And": 1, "IsNaN": 4}),
        ("squeezenet", "NPU", 1, {}),
        ("bert", "HETERO:NPU,CPU", 5, {"IsNaN": 4}),
        ("lstm", "AUTO", 1, {}),
    ],
)
def test_each_device_takes_its_part_and_computes_the_same(
    bench, network, name, device, partitions, left
):
    source = network(name)
    total = len(onnx.load(source.path, load_external_data=False).graph.node)

    compiled = bench.compile(source.path, device_type=device)
    found = bench.run(compiled.path, source.inputs, device_type=device)

    assert len(compiled.report.partitions) == partitions
    assert {
        why.split(":")[0].split()[0]: len(nodes)
        for why, nodes in compiled.reasons.items()
    } == left
    report = compiled.report
    assert taken_nodes(report) == total - report.folded_nodes - sum(left.values())
    assert worst_relative_error(found, source.reference) <= TOLERANCE


@pytest.mark.parametrize("name", ["resnet", "lstm"])
def test_a_session_that_compiles_agrees_with_one_that_loads(bench, network, name):
    source = network(name, seed=3)

    compiled = bench.run(source.path, source.inputs)
    loaded = bench.run(bench.compile(source.path).path, source.inputs)

    assert worst_relative_error(compiled, source.reference) <= TOLERANCE
    assert worst_relative_error(loaded, compiled) <= TOLERANCE


def with_open_batch(path):
    """Make the first dimension of each input and output a name, and forget the types in
    between.
    """
    model = onnx.load(path)
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return model


def test_a_dynamic_batch_is_compiled_once_and_runs_in_every_size(
    bench, network, tmp_path
):
    source = network("resnet")
    model = with_open_batch(source.path)
    onnx.save(model, tmp_path / "open.onnx")

    compiled = bench.compile(tmp_path / "open.onnx")

    assert taken_nodes(compiled.report) == len(model.graph.node)
    with epctx.InferenceSession(compiled.path, bench.settings({})) as session:
        for batch in (1, 3, 2):
            inputs = {
                name: np.concatenate([array * (1 + i) for i in range(batch)])
                for name, array in source.inputs.items()
            }
            expected = run_onnxruntime(tmp_path / "open.onnx", inputs)
            assert (
                worst_relative_error(session.run(None, inputs), expected) <= TOLERANCE
            )


def test_the_npu_leaves_a_dynamic_batch_to_the_cpu_and_says_so(
    bench, network, tmp_path
):
    source = network("resnet")
    onnx.save(with_open_batch(source.path), tmp_path / "open.onnx")

    compiled = bench.compile(tmp_path / "open.onnx", device_type="NPU")

    assert not compiled.taken
    assert all(
        "OpenVINO takes static shapes only on NPU" in reason
        for reason in compiled.reasons
    )
