"""If with an EP's work in its branches, on all ways."""

from __future__ import annotations

import numpy as np
import pytest
from support.agreement_of_routes import (
    Everything,
    agreeing,
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
BOTH = [{"c": np.array(c), "x": X} for c in (True, False)]


def test_each_branch_runs_its_own_partition(tmp_path):
    model = model_of(
        """agraph (bool c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) { a = Relu(x) },
                else_branch = e () => (float[2] a) { b = Neg(x)  a = Add(b, x) }
            >
        }"""
    )

    report = agreeing(model, BOTH, tmp_path)

    # A node's bodies stand in the order of their attributes' names.
    assert [p.operators for p in report.partitions] == [("Add",), ("Relu",)]


def test_equal_names_in_sibling_branches_are_different_values(tmp_path):
    model = model_of(
        """agraph (bool c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) { b = Relu(x)  d = Sigmoid(b)  a = Add(d, b) },
                else_branch = e () => (float[2] a) { b = Add(x, x)  d = Tanh(b)  a = Relu(d) }
            >
        }"""
    )

    report = agreeing(model, BOTH, tmp_path)

    assert len({p.name for p in report.partitions}) == 4


def test_a_branch_may_give_copies_of_outer_values_and_its_initializers(tmp_path):
    model = model_of(
        """agraph (bool c, float[2] x) => (float[2] p, float[2] q, float[2] r) <float[2] w = {7, 8}> {
            o = Sigmoid(x)
            p, q, r = If (c) <
                then_branch = t () => (float[2] x2, float[2] i, float[2] a)
                    <float[2] i = {1, 2}> { x2 = Identity(x)  a = Relu(o) },
                else_branch = e () => (float[2] w2, float[2] b, float[2] o2)
                    { w2 = Identity(w)  b = Add(w, x)  o2 = Identity(o) }
            >
        }"""
    )

    report = agreeing(model, BOTH, tmp_path, [Everything])

    assert sorted(p.operators for p in report.partitions) == [
        ("Identity", "Add", "Identity"),
        ("Identity", "Relu"),
        ("Sigmoid",),
    ]


def test_a_branch_that_gives_an_outer_value_without_a_node_is_refused_as_onnx_refuses_it(
    tmp_path,
):
    model = model_of(
        """agraph (bool c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] x) {},
                else_branch = e () => (float[2] a) { a = Relu(x) }
            >
        }"""
    )

    with pytest.raises(
        epctx.InvalidGraph, match="Graph output 'x' is not an output of any node"
    ):
        compiled(model, tmp_path / "m.onnx")


def test_results_are_the_callers_own_where_a_branch_gives_its_initializer(tmp_path):
    model = model_of(
        """agraph (bool c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] i) <float[2] i = {1, 2}> {},
                else_branch = e () => (float[2] a) { a = Relu(x) }
            >
        }"""
    )
    registry, options = registry_of(Alpha)

    with epctx.InferenceSession(
        saved(model, tmp_path / "m.onnx"), options, registry=registry
    ) as session:
        for _ in range(2):
            (result,) = session.run(None, {"c": np.array(True), "x": X})
            np.testing.assert_array_equal(result, np.array([1, 2], np.float32))
            result[:] = 99


def test_an_outer_weight_that_only_a_taken_node_in_a_body_reads_is_gone_and_others_stay(
    tmp_path,
):
    model = model_of(
        """agraph (bool c, float[2] x) => (float[2] y)
        <float[2] taken = {1, 2}, float[2] both = {3, 4}, float[2] left = {5, 6}> {
            y = If (c) <
                then_branch = t () => (float[2] a) { b = Add(x, taken)  a = Add(b, both) },
                else_branch = e () => (float[2] a) <float[2] own = {1, 1}, float[2] kept = {2, 2}>
                    { b = Add(x, own)  d = Sub(b, left)  f = Sub(d, both)  a = Sub(f, kept) }
            >
        }"""
    )

    agreeing(model, BOTH, tmp_path)

    main, *bodies = graphs_of(tmp_path / "far" / "m_ctx.onnx")
    assert sorted(t.name for t in main.initializer) == ["both", "left"]
    assert sorted(t.name for body in bodies for t in body.initializer) == ["kept"]


def test_what_the_branches_make_is_typed_so_that_onnxruntime_can_resolve_the_model(
    tmp_path,
):
    model = model_of(
        """agraph (bool c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) { b = Relu(x)  d = Sigmoid(b)  a = Add(d, d) },
                else_branch = e () => (float[2] a) { a = Add(x, x) }
            >
        }"""
    )
    for attribute in model.graph.node[0].attribute:
        attribute.g.output[0].ClearField("type")

    agreeing(model, BOTH, tmp_path)

    _, *bodies = graphs_of(tmp_path / "far" / "m_ctx.onnx")
    for body in bodies:
        made = {name for node in context_nodes_of(body) for name in node.output}
        declared = {
            v.name
            for v in (*body.value_info, *body.output)
            if v.type.HasField("tensor_type")
        }
        assert made <= declared


def test_work_before_inside_and_after_a_body_is_three_partitions_in_document_order(
    tmp_path,
):
    model = model_of(
        """agraph (bool c, float[2] x) => (float[2] y) {
            a = Relu(x)
            b = If (c) <
                then_branch = t () => (float[2] d) { d = Add(a, a) },
                else_branch = e () => (float[2] d) { d = Tanh(a) }
            >
            y = Add(b, a)
        }"""
    )

    report = agreeing(model, BOTH, tmp_path)

    assert [p.operators for p in report.partitions] == [("Relu",), ("Add",), ("Add",)]
    assert [int(p.name.rpartition("_")[2]) for p in report.partitions] == [0, 1, 2]


def test_two_eps_share_the_branches(tmp_path):
    model = model_of(
        """agraph (bool c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) { b = Relu(x)  d = Neg(b)  a = Add(d, x) },
                else_branch = e () => (float[2] a) { b = Mul(x, x)  a = Sigmoid(b) }
            >
        }"""
    )

    report = agreeing(model, BOTH, tmp_path, [Alpha, Beta])

    assert {p.ep for p in report.partitions} == {Alpha.name, Beta.name}


def test_a_condition_of_rank_one_is_taken_and_one_of_two_elements_is_refused(tmp_path):
    model = model_of(
        """agraph (bool[n] c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) { a = Relu(x) },
                else_branch = e () => (float[2] a) { a = Add(x, x) }
            >
        }"""
    )

    agreeing(model, [{"c": np.array([c]), "x": X} for c in (True, False)], tmp_path)

    with (
        loaded(tmp_path / "far" / "m_ctx.onnx") as session,
        pytest.raises(epctx.RuntimeException, match="condition of If has 2 elements"),
    ):
        session.run(None, {"c": np.array([True, False]), "x": X})
