"""The report of a compile says all that was done, and says it as it is on the disk."""

from __future__ import annotations

import hashlib
import json

import onnx
import pytest
from end_to_end.sim_eps import CPU, OPENVINO, QNN, with_eps

import epctx_core as epctx

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, bool c) => (float[2,3] y) {
  [relu] a = Relu(x)
  [erf] b = Erf(a)
  [hardmax] d = Hardmax(b)
  [add] e = Add(d, d)
  [if] y = If(c) <then_branch = t () => (float[2,3] p) { [abs] p = Abs(e) },
                  else_branch = f () => (float[2,3] q) { [neg] q = Neg(e) }>
}
"""


@pytest.fixture
def report(tmp_path):
    """QNN takes Relu and Add, OpenVINO Erf and the If whole; Hardmax is left."""
    (tmp_path / "m.onnx").write_bytes(
        onnx.parser.parse_model(MODEL).SerializeToString()
    )
    return epctx.ModelCompiler(
        with_eps(QNN, OPENVINO), tmp_path / "m.onnx"
    ).compile_to_file()


def test_partitions_are_those_of_the_context_model_in_its_order(report):
    contexts = [
        node
        for node in onnx.load(report.output).graph.node
        if node.op_type == "EPContext"
    ]

    assert [(p.ep, p.node_names, p.operators) for p in report.partitions] == [
        (QNN, ("relu",), ("Relu",)),
        (OPENVINO, ("erf",), ("Erf",)),
        (QNN, ("add",), ("Add",)),
        (OPENVINO, ("if",), ("If",)),
    ]
    assert [(p.name, p.inputs, p.outputs) for p in report.partitions] == [
        (node.name, tuple(node.input), tuple(node.output)) for node in contexts
    ]
    assert report.assignments == {QNN: 2, OPENVINO: 2, CPU: 1}


def test_files_are_those_on_the_disk(report):
    folder = report.output.parent

    written = {path.name: path.stat().st_size for path in folder.iterdir()}
    del written["m.onnx"]
    assert {file.path: file.bytes for file in report.outputs} == written
    assert report.required_files == tuple(file.path for file in report.outputs)
    assert report.outputs[-1].path == "m_ctx.onnx"
    assert (
        report.outputs[-1].digest
        == hashlib.sha256(report.output.read_bytes()).hexdigest()
    )


def test_refusals_name_their_nodes_in_bodies_too(report):
    refused = {
        ep: {n for r in report.refusals if r.ep == ep for n in r.nodes}
        for ep in (QNN, OPENVINO)
    }

    assert refused == {
        QNN: {"erf", "hardmax", "if", "abs", "neg"},
        OPENVINO: {"hardmax"},
    }
    assert all(refusal.reason for refusal in report.refusals)


def test_all_stages_are_timed_and_the_whole_report_is_json(report):
    said = json.loads(json.dumps(report.as_dict()))

    assert list(said["timings"]) == [
        "read",
        "optimise",
        "partition",
        "compile",
        "write",
        "read_back",
    ]
    assert all(0 <= seconds < 60 for seconds in said["timings"].values())
    assert said["output"] == "m_ctx.onnx"
    assert said["files"] == [file.as_dict() for file in report.outputs]
    assert {"outputs", "folder"}.isdisjoint(said)
    assert [p["node_names"] for p in said["partitions"]] == [
        ["relu"],
        ["erf"],
        ["add"],
        ["if"],
    ]
    assert (said["kept_nodes"], said["delivered"], said["source_files"]) == ([], [], [])
