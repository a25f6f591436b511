"""Networks quantised to QDQ INT8, compiled by EPs found through their entry points, moved, and run elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from agreement import assert_agree, relative_error
from networks.catalog import QUANTISED
from networks.quantise import steps_of

import epctx_core as epctx

RUN_MODEL = Path(__file__).with_name("run_model.py")
VITISAI, QNN = "VitisAIExecutionProvider", "QNNExecutionProvider"
BINARIES = {VITISAI: "net_vitisai.bin", QNN: "net_qnn.bin"}
MODES = [pytest.param(False, id="file"), pytest.param(True, id="embedded")]


def with_ep(*eps: str) -> epctx.SessionOptions:
    options = epctx.SessionOptions()
    for ep in eps:
        options.add_provider(ep)
    return options


def run_elsewhere(model: Path, inputs: dict[str, np.ndarray], folder: Path) -> list[np.ndarray]:
    np.savez(folder / "inputs.npz", **inputs)
    subprocess.run(
        [sys.executable, str(RUN_MODEL), str(model), "inputs.npz", "outputs.npz"],
        check=True,
        cwd=folder,
        timeout=120,
    )
    with np.load(folder / "outputs.npz") as stored:
        return [stored[name] for name in stored.files]


@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_network_answers_each_input_differently(network, name):
    answers = [network(name, seed=seed).reference[0] for seed in (0, 1)]

    assert np.isfinite(answers[0]).all()
    assert relative_error(*answers) > 0.05


@pytest.mark.parametrize("embedded", MODES)
@pytest.mark.parametrize("ep", [VITISAI, QNN])
@pytest.mark.parametrize("name", QUANTISED)
def test_a_compiled_network_runs_elsewhere_without_its_source(network, tmp_path, name, ep, embedded):
    source = network(name)
    steps = steps_of(source.path)
    built, moved, here = tmp_path / "built", tmp_path / "moved" / "far away", tmp_path / "here"
    for folder in (built, moved.parent, here):
        folder.mkdir()

    report = epctx.ModelCompiler(with_ep(ep), source.path, embedded).compile_to_file(built / "net_ctx.onnx")
    built.rename(moved)
    shutil.rmtree(source.path.parent)
    outputs = run_elsewhere(moved / "net_ctx.onnx", source.inputs, here)

    assert report.assignments[ep] > report.assignments["CPUExecutionProvider"]
    assert_agree(outputs, source.reference, steps)
    files = {"net_ctx.onnx"} if embedded else {"net_ctx.onnx", BINARIES[ep]}
    assert {path.name for path in moved.iterdir()} == files


@pytest.mark.parametrize("name", QUANTISED)
def test_what_quantizes_around_an_operator_is_compiled_with_it(network, tmp_path, name):
    source = network(name)

    epctx.ModelCompiler(with_ep(VITISAI), source.path).compile_to_file(tmp_path / "net_ctx.onnx")

    left = onnx.load(tmp_path / "net_ctx.onnx").graph
    made_by = {output: node for node in left.node for output in node.output}
    for node in left.node:
        assert node.op_type != "Conv"
        if node.op_type == "DequantizeLinear":
            # Only what comes out of a partition or is quantised on the CPU is dequantised there.
            assert made_by[node.input[0]].op_type in {"EPContext", "QuantizeLinear"}


@pytest.mark.parametrize("order", [(VITISAI, QNN), (QNN, VITISAI)], ids=lambda order: order[0])
def test_two_eps_share_a_network_in_the_order_of_priority(network, tmp_path, order):
    source = network("shufflenet_int8")
    written = tmp_path / "net_ctx.onnx"

    report = epctx.ModelCompiler(with_ep(*order), source.path).compile_to_file(written)
    with epctx.InferenceSession(written) as session:
        outputs = session.run(None, source.inputs)

    assert_agree(outputs, source.reference, steps_of(source.path))
    assert report.assignments[order[0]] > 0
    if order[0] == VITISAI:
        assert report.assignments[QNN] > 0
        assert {path.name for path in tmp_path.iterdir()} == {"net_ctx.onnx", *BINARIES.values()}
