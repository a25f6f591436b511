"""Control flow: an If or a Loop is taken with its subgraphs, whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import epctx_core as epctx
from epctx_core.plugin import (
    CompiledPartition,
    ExecutionProvider,
    hookimpl,
    supported_partitions,
)

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.random.default_rng(2).standard_normal((2, 3)).astype(np.float32)
KIND = (FLOAT, [2, 3])


def body(name, nodes, result, inputs=()):
    return helper.make_graph(
        nodes, name, list(inputs), [helper.make_tensor_value_info(result, *KIND)]
    )


def branch(name, *operators):
    """A body that applies operators to the outer `a`."""
    values = ["a", *(f"{name}{i}" for i in range(len(operators)))]
    nodes = [
        helper.make_node(op, [values[i]], [values[i + 1]], name=f"{name}_{op}")
        for i, op in enumerate(operators)
    ]
    return body(name, nodes, values[-1])


def with_if(bench, then_branch, else_branch):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="before"),
        helper.make_node(
            "If",
            ["c"],
            ["b"],
            name="if",
            then_branch=then_branch,
            else_branch=else_branch,
        ),
        helper.make_node("Add", ["b", "w"], ["y"], name="after"),
    ]
    weights = {"w": np.ones((2, 3), np.float32)}
    return bench.model(nodes, {"c": (BOOL, []), "x": KIND}, {"y": KIND}, weights)


def same_as_the_cpu_ep(bench, model, compiled, inputs):
    with epctx.InferenceSession(model.SerializeToString()) as session:
        expected = session.run(None, inputs)
    for found in (
        bench.run(model.SerializeToString(), inputs),
        bench.run(compiled.path, inputs),
    ):
        for one, other in zip(found, expected, strict=True):
            assert np.allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("flag", [True, False])
def test_an_if_is_taken_with_its_subgraphs_and_the_nodes_around_it(bench, flag):
    model = with_if(bench, branch("then", "Neg", "Exp"), branch("else", "Tanh"))
    compiled = bench.compile(model)

    assert compiled.taken == [["Relu", "If", "Add"]]
    assert not compiled.reasons
    same_as_the_cpu_ep(bench, model, compiled, {"c": np.array(flag), "x": X})


@pytest.mark.parametrize("flag", [True, False])
def test_an_if_with_a_node_that_is_refused_stays_whole_on_the_cpu(bench, flag):
    nodes = [
        helper.make_node("Neg", ["a"], ["t"], name="fine"),
        helper.make_node("IsNaN", ["t"], ["n"], name="refused"),
        helper.make_node("Where", ["n", "a", "t"], ["r"], name="fine too"),
    ]
    model = with_if(bench, body("then", nodes, "r"), branch("else", "Tanh"))
    compiled = bench.compile(model)

    assert compiled.taken == [["Relu"], ["Add"]]
    assert compiled.reasons == {
        "IsNaN is not an operator that OpenVINO takes": ["refused"],
        "If: OpenVINO takes it whole or not at all, and not all of it": [
            "fine",
            "fine too",
        ],
        "If: OpenVINO takes it whole or not at all, and not all of it"
        " (IsNaN is not an operator that OpenVINO takes)": ["if"],
    }
    same_as_the_cpu_ep(bench, model, compiled, {"c": np.array(flag), "x": X})


def test_the_npu_takes_no_control_flow(bench):
    model = with_if(bench, branch("then", "Neg"), branch("else", "Tanh"))
    compiled = bench.compile(model, device_type="NPU")

    assert compiled.taken == [["Relu"], ["Add"]]
    assert list(compiled.reasons) == [
        "If: OpenVINO takes it on CPU and GPU, not on NPU"
    ]


def test_a_subgraph_may_give_a_constant(bench):
    constant = helper.make_tensor("v", FLOAT, [2, 3], [1.0] * 6)
    node = helper.make_node("Constant", [], ["k"], value=constant, name="constant")
    model = with_if(bench, body("then", [node], "k"), branch("else", "Tanh"))

    assert bench.compile(model).taken == [["Relu", "If", "Add"]]


@pytest.mark.parametrize(("operator", "whole"), [("Tanh", True), ("IsNaN", False)])
def test_what_is_refused_at_any_depth_keeps_all_levels_on_the_cpu(
    bench, operator, whole
):
    inner = [
        helper.make_node(operator, ["a"], ["i"], name="deep"),
        helper.make_node("Cast", ["i"], ["j"], to=FLOAT, name="cast"),
    ]
    nested = helper.make_node(
        "If",
        ["c"],
        ["t"],
        name="inner",
        then_branch=body("deep", inner, "j"),
        else_branch=branch("d", "Neg"),
    )
    model = with_if(bench, body("then", [nested], "t"), branch("else", "Tanh"))

    compiled = bench.compile(model)

    assert (["Relu", "If", "Add"] in compiled.taken) is whole
    assert {name for names in compiled.reasons.values() for name in names} >= (
        set() if whole else {"inner", "if"}
    )
    if not whole:
        # The innermost reason alone, however many levels are around it.
        assert compiled.reasons[
            "If: OpenVINO takes it whole or not at all, and not all of it"
            " (IsNaN is not an operator that OpenVINO takes)"
        ] == ["inner", "if"]
    same_as_the_cpu_ep(bench, model, compiled, {"c": np.array(True), "x": X})


def with_loop(bench, operator):
    values = [
        helper.make_tensor_value_info("i", INT64, []),
        helper.make_tensor_value_info("going", BOOL, []),
        helper.make_tensor_value_info("state", *KIND),
    ]
    nodes = [
        helper.make_node("Identity", ["going"], ["on"], name="on"),
        helper.make_node("Add", ["state", "w"], ["sum"], name="sum"),
        helper.make_node(operator, ["sum"], ["next"], name="next"),
    ]
    loop_body = helper.make_graph(
        nodes,
        "body",
        values,
        [
            helper.make_tensor_value_info("on", BOOL, []),
            helper.make_tensor_value_info("next", *KIND),
        ],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], name="loop", body=loop_body)
    weights = {"w": np.full((2, 3), 0.5, np.float32)}
    return bench.model(
        [node], {"n": (INT64, []), "x": KIND}, {"y": KIND}, weights, opset=18
    )


@pytest.mark.parametrize(("operator", "taken"), [("Tanh", [["Loop"]]), ("Mish", [])])
@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_a_loop_is_taken_with_its_body(bench, operator, taken, device):
    model = with_loop(bench, operator)

    compiled = bench.compile(model, device_type=device)

    assert compiled.taken == taken
    if taken and device == "CPU":
        same_as_the_cpu_ep(bench, model, compiled, {"n": np.array(3), "x": X})


def test_a_scan_stays_on_the_cpu(bench):
    scan_body = helper.make_graph(
        [helper.make_node("Neg", ["row"], ["out"], name="neg")],
        "body",
        [helper.make_tensor_value_info("row", FLOAT, [3])],
        [helper.make_tensor_value_info("out", FLOAT, [3])],
    )
    node = helper.make_node(
        "Scan", ["x"], ["y"], name="scan", body=scan_body, num_scan_inputs=1
    )

    compiled = bench.compile(bench.model([node], {"x": KIND}, {"y": KIND}))

    assert not compiled.taken
    assert compiled.reasons == {
        "Scan is not an operator that OpenVINO takes": ["neg", "scan"]
    }


class TakesExp(ExecutionProvider):
    """An EP that takes Exp, wherever it stands."""

    name = "TakesExpExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type == "Exp")

    @hookimpl
    def compile(self, partitions):
        return [
            CompiledPartition(
                self.context.engine.prepare(p.model(inline_weights=True)).run
            )
            for p in partitions
        ]


def test_a_subgraph_in_which_another_ep_took_a_node_is_not_taken(bench):
    model = with_if(bench, branch("then", "Neg", "Exp"), branch("else", "Tanh"))
    registry, options = epctx.Registry(), epctx.SessionOptions()
    registry.register(TakesExp)
    options.add_provider(TakesExp.name)
    options.add_provider("OpenVINO")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")

    with epctx.InferenceSession(
        model.SerializeToString(), options, registry=registry
    ) as session:
        (found,) = session.run(None, {"c": np.array(True), "x": X})

    assert np.allclose(found, np.exp(-np.maximum(X, 0)) + 1, rtol=1e-5)
