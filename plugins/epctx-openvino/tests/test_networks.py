"""Networks: compiled, moved, loaded elsewhere, and computed as onnxruntime or OpenVINO
itself computes them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from epctx_openvino.native import core
from onnx_models import two_partitions
from support.agreement import TOLERANCE, worst_relative_error

pytestmark = pytest.mark.internal

LOAD = """
import json, sys
import numpy as np
import epctx_core as epctx
from epctx_openvino import OpenVINOExecutionProvider
registry = epctx.Registry(entry_points=False)
registry.register(OpenVINOExecutionProvider)
model, inputs, outputs = sys.argv[1:]
with epctx.InferenceSession(model, providers=["OpenVINO"], registry=registry) as session:
    np.savez(outputs, *session.run(None, dict(np.load(inputs))))
"""


@pytest.mark.parametrize("name", ["bert", "resnet", "lstm"])
@pytest.mark.parametrize("embed", [False, True])
def test_a_compiled_network_gives_onnxruntimes_results(harness, network, name, embed):
    source = network(name)

    context, report = harness.compile(source.path, embed=embed)
    results = harness.run(context, source.inputs)

    assert len(report.partitions) == 1
    assert worst_relative_error(results, source.reference) <= TOLERANCE


@pytest.mark.parametrize("name", ["bert", "lstm"])
def test_a_session_that_compiles_gives_onnxruntimes_results(harness, network, name):
    source = network(name)

    assert (
        worst_relative_error(harness.run(source.path, source.inputs), source.reference)
        <= TOLERANCE
    )


def test_a_transformer_is_taken_whole(harness, network):
    """Its tokens, its mask and its shapes are int64, which OpenVINO computes in 32
    bits.
    """
    _, report = harness.compile(network("bert").path)

    assert report.refusals == ()
    assert [partition.nodes > 160 for partition in report.partitions] == [True]


def test_a_context_model_loads_in_another_process_and_folder(
    harness, network, tmp_path
):
    source = network("resnet")
    context, _ = harness.compile(source.path)
    source.path.unlink()
    moved = source.path.parent.rename(tmp_path / "moved")
    np.savez(tmp_path / "inputs.npz", **source.inputs)

    subprocess.run(
        [
            sys.executable,
            "-c",
            LOAD,
            moved / context.name,
            tmp_path / "inputs.npz",
            tmp_path / "outputs.npz",
        ],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    with np.load(tmp_path / "outputs.npz") as outputs:
        assert (
            worst_relative_error(list(outputs.values()), source.reference) <= TOLERANCE
        )


def test_a_quantised_network_gives_openvinos_own_results(harness, network):
    """OpenVINO's quantised arithmetic is its own: it differs from onnxruntime's, so it
    is compared with itself.
    """
    source = network("resnet_int8")
    model = core().compile_model(
        source.path, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY", "NUM_STREAMS": 1}
    )
    direct = [np.array(each) for each in model(source.inputs).values()]

    context, report = harness.compile(source.path)
    results = harness.run(context, source.inputs)

    assert len(report.partitions) == 1
    for result, expected in zip(results, direct, strict=True):
        np.testing.assert_array_equal(result, expected)


def test_partitions_of_one_model_share_one_binary(harness, compile_into):
    x = np.random.Generator(np.random.PCG64(5)).standard_normal(
        (3, 32), dtype=np.float32
    )
    model = two_partitions()
    path, report = compile_into(harness, model)

    nodes = [node for node in onnx.load(path).graph.node if node.op_type == "EPContext"]
    attributes = [
        {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        for node in nodes
    ]

    assert sorted(file.name for file in path.parent.iterdir()) == [
        "net.onnx", "net_OpenVINOExecutionProvider.bin", "net_ctx.onnx",
    ]  # fmt: skip
    assert [a["main_context"] for a in attributes] == [1, 1]
    assert {a["source"] for a in attributes} == {b"OpenVINOExecutionProvider"}
    assert all(a["ep_sdk_version"].startswith(b"20") for a in attributes)
    assert len(report.partitions) == 2
    np.testing.assert_allclose(
        harness.run(path, {"x": x})[0], harness.run(model, {"x": x})[0], rtol=1e-6
    )


def test_a_model_says_what_openvino_needs_to_import_it(harness, network):
    context, _ = harness.compile(network("lstm").path)

    metadata = {entry.key: entry.value for entry in onnx.load(context).metadata_props}
    text = json.loads(metadata["ep_compatibility_info.OpenVINOExecutionProvider"])

    assert text["ov_compat_string"].startswith("meta=")
    assert text["ovep_compat_ver"] == "1.0"
