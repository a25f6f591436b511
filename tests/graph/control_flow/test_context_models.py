"""Context models with EPContext nodes in bodies: read, inspected, guarded, refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from support.agreement_of_routes import (
    compiled,
    context_nodes_of,
    graphs_of,
    loaded,
    model_of,
    registry_of,
)
from support.engine_eps import Alpha, Beta
from support.small_models import saved

import epctx_core as epctx

X = np.array([-1.5, 2.5], np.float32)
TWO = """agraph (bool c, float[2] x) => (float[2] y) {
    [choose] y = If (c) <
        then_branch = t () => (float[2] a) { a = Relu(x) },
        else_branch = e () => (float[2] a) { b = Tanh(x)  a = Add(b, b) }
    >
}"""


@pytest.fixture
def written(tmp_path):
    return compiled(model_of(TWO), tmp_path / "m.onnx").output


def test_nodes_in_bodies_are_inspected_with_the_body_that_holds_them(written):
    info = epctx.inspect_model(written)

    assert sorted(node.body for node in info.ep_contexts) == [
        "choose.else_branch",
        "choose.then_branch",
    ]
    assert (info.other_nodes, info.inside_nodes) == (2, 3)
    assert list(info.required_files) == ["m_alpha.bin"]
    assert {node["body"] for node in info.as_dict()["ep_contexts"]} == {
        node.body for node in info.ep_contexts
    }


def test_a_binary_that_only_nodes_in_bodies_name_is_guarded(written):
    folder = written.parent

    other = (folder / "m.onnx").rename(folder / "other.onnx")
    registry, options = registry_of(Alpha)
    with pytest.raises(epctx.Fail, match=r"m_alpha\.bin"):
        epctx.ModelCompiler(options, other, registry=registry).compile_to_file(
            folder / "m.onnx"
        )


def test_nodes_in_bodies_pass_through_another_compile(written):
    registry, options = registry_of(Beta)
    again = epctx.ModelCompiler(options, written, registry=registry).compile_to_file(
        written.parent / "again.onnx"
    )

    before, after = (
        [context_nodes_of(g) for g in graphs_of(onnx.load(p))]
        for p in (written, again.output)
    )
    assert sum(map(len, before)) == 2
    assert after == before


def test_nodes_of_one_name_in_different_bodies_are_told_apart(written):
    model = onnx.load(written)
    for graph in graphs_of(model):
        for node in context_nodes_of(graph):
            node.name = "same"

    saved(model, written)

    assert [node.name for node in epctx.inspect_model(written).ep_contexts] == [
        "same",
        "same#0/else_branch/1",
    ]
    with loaded(written) as session:
        np.testing.assert_array_equal(
            session.run(None, {"c": np.array(True), "x": X})[0], np.maximum(X, 0)
        )


def test_an_ep_may_take_more_of_the_bodies_of_a_loaded_model(written):
    class Tanh(Beta):
        name = "TanhExecutionProvider"
        operators = frozenset({"Tanh"})

    registry, options = registry_of(Alpha, Tanh)
    with epctx.InferenceSession(written, options, registry=registry) as session:
        (result,) = session.run(None, {"c": np.array(False), "x": X})

    np.testing.assert_allclose(result, 2 * np.tanh(X), rtol=1e-6)


def test_nodes_in_bodies_that_no_session_runs_are_refused_by_name(written):
    model = onnx.load(written)
    _, body, *_ = graphs_of(model)
    mapped = helper.make_node("SequenceMap", ["s"], ["y"], name="map", body=body)
    (entry,) = [n.name for n in context_nodes_of(body)]
    del body.input[:]
    body.input.append(helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2]))
    mapped.attribute[0].g.CopyFrom(body)
    graph = helper.make_graph(
        [mapped],
        "outer",
        [helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor_sequence_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )
    model.graph.CopyFrom(graph)
    saved(model, written)

    with pytest.raises(
        epctx.NotImplementedByProvider,
        match=f"{entry}.*is in a subgraph of an operator",
    ) as caught:
        loaded(written)

    assert "If, Loop, Scan" in caught.value.hint


@pytest.mark.parametrize(
    ("attributes", "guards"),
    [
        ({"embed_mode": 0, "ep_cache_context": b"m_alpha.bin"}, True),
        (
            {"embed_mode": 1, "ep_cache_context": b"m_alpha.bin"},
            False,
        ),  # the name is the payload
        ({"ep_cache_context": b"m_alpha.bin"}, False),  # as it is by default
        ({"embed_mode": 0, "notes": "m_alpha.bin"}, False),
    ],
    ids=["file", "embedded", "by default", "no cache"],
)
def test_only_a_node_whose_payload_is_a_file_keeps_that_file_from_being_replaced(
    tmp_path, attributes, guards
):
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", **attributes
    )
    other = model_of("agraph (float[2] x) => (float[2] y) { y = Relu(x) }")
    other.graph.node[0].CopyFrom(node)
    saved(other, tmp_path / "other_ctx.onnx")
    (tmp_path / "m_alpha.bin").write_bytes(b"of whoever names it")
    source = model_of("agraph (float[2] x) => (float[2] y) { y = Relu(x) }")

    if guards:
        with pytest.raises(epctx.Fail, match=r"m_alpha\.bin"):
            compiled(source, tmp_path / "m.onnx")
        assert (tmp_path / "m_alpha.bin").read_bytes() == b"of whoever names it"
    else:
        compiled(source, tmp_path / "m.onnx")
        assert (tmp_path / "m_alpha.bin").read_bytes() != b"of whoever names it"
