"""The report of a compile says all that was done, and says it as it is on the disk."""

from __future__ import annotations

import hashlib
import json

import onnx
import pytest
from support.sim_eps import CPU, OPENVINO, QNN, with_eps
from support.taker import Taker, options_with, registry_with

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

DIVIDED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, bool c) => (float[2,3] y) <float[1] k = {1}, float[1] l = {2}> {
  [sum] s = Add(k, l)
  [relu] a = Relu(x)
  [erf] b = Erf(a)
  [add] d = Add(b, s)
  [if] y = If(c) <then_branch = t () => (float[2,3] p) {
                    [abs] o = Abs(d)
                    [hardmax] p = Hardmax(o)
                  },
                  else_branch = f () => (float[2,3] q) {
                    [neg] n = Neg(d)
                    [exp] q = Exp(n)
                  }>
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
    assert [p.nodes for p in report.partitions] == [1, 1, 1, 3]
    assert report.assignments == {QNN: 2, OPENVINO: 4, CPU: 1}
    assert (report.total_nodes, report.inside_nodes) == (7, 2)


@pytest.fixture
def divided(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(DIVIDED).SerializeToString())
    return path


@pytest.mark.parametrize(
    ("options", "registry"),
    [
        (with_eps(QNN), epctx.default_registry),
        (with_eps(OPENVINO, QNN), epctx.default_registry),
        (options_with(Taker), registry_with(Taker)),
    ],
    ids=["one", "two", "inside"],
)
def test_a_compile_counts_what_an_explanation_and_a_session_count(
    divided, options, registry
):
    explained = epctx.explain_model(divided, options, registry=registry)
    compiled = epctx.ModelCompiler(
        options, divided, registry=registry
    ).compile_to_file()
    with epctx.InferenceSession(divided, options, registry=registry) as session:
        placed = session.placement()

    rows = {row["ep"]: row["nodes"] for row in explained.placement.eps}
    assert compiled.assignments == rows
    assert {row["ep"]: row["nodes"] for row in placed.eps} == rows
    assert sum(rows.values()) + compiled.folded_nodes == compiled.total_nodes == 9
    assert compiled.inside_nodes == placed.inside_nodes == 4
    said = explained.as_dict()
    assert said["left"] == rows[CPU]
    assert (said["total_nodes"], said["inside_nodes"], said["folded_nodes"]) == (
        compiled.total_nodes,
        compiled.inside_nodes,
        compiled.folded_nodes,
    )


def test_an_if_around_an_eps_work_is_explained_as_the_sessions(divided):
    explained = epctx.explain_model(
        divided, options_with(Taker), registry=registry_with(Taker)
    )

    session = [node for node in explained.nodes if node.session]
    # Those inside are explained themselves.
    assert [(node.name, node.ep, node.inside) for node in session] == [("if", CPU, 0)]
    assert len(explained.nodes) + 1 == explained.as_dict()["total_nodes"]


def test_a_model_that_is_compiled_again_counts_the_nodes_that_it_keeps(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(MODEL).SerializeToString())
    first = epctx.ModelCompiler(with_eps(QNN), path).compile_to_file()

    report = epctx.ModelCompiler(with_eps(OPENVINO), first.output).compile_to_file()

    assert report.assignments == {OPENVINO: 4, QNN: 2, CPU: 1}
    assert sum(report.assignments.values()) == report.total_nodes
    assert report.warnings == ()


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
