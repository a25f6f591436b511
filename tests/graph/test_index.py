"""The index: who makes and reads each value, bodies included, and which values are constants."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graph.making import BOOL, FLOAT, INT64, conditional, indexed, model, node, tensor, value
from onnx import helper, numpy_helper

from epctx_core.errors import InvalidGraph
from epctx_core.graph.bodies import outer_names


def loop(reads, output):
    """A Loop whose body holds an If that reads a value two scopes outside."""
    body = helper.make_graph(
        [conditional("go", reads, "carried", "next"), node("Identity", ["go"], ["still"])],
        "body",
        [value("i", INT64, []), value("go", BOOL, []), value("carried")],
        [value("still", BOOL, []), value("next")],
    )
    return helper.make_node("Loop", ["count", "", "start"], [output], body=body)


def test_names_that_only_bodies_read_are_inputs_of_the_node_that_holds_the_bodies():
    graph = indexed(
        model(
            [node("Neg", ["x"], ["a"]), node("Abs", ["x"], ["b"]), conditional("c", "a", "b", "y")],
            [value("c", BOOL, []), "x"],
            ["y"],
        )
    )

    # Attributes stand in alphabetical order, so the else branch comes first.
    assert graph.inputs[2] == ("c", "b", "a")
    assert graph.explicit_inputs[2] == ["c"]
    assert graph.predecessors[2] == [1, 0]
    assert graph.consumers["a"] == graph.consumers["b"] == [2]


def test_names_are_found_through_bodies_inside_bodies():
    graph = indexed(
        model(
            [node("Neg", ["x"], ["deep"]), loop("deep", "y")],
            [value("count", INT64, []), "start", "x"],
            ["y"],
        )
    )

    assert graph.inputs[1] == ("count", "", "start", "deep")
    assert graph.predecessors[1] == [0]


def test_a_value_that_a_body_gives_unchanged_is_read_from_outside():
    branch = helper.make_graph([], "keep", [], [value("a")])

    found = outer_names(helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch))

    assert found == ("a",)


def test_what_a_body_defines_itself_is_not_read_from_outside():
    inside = helper.make_graph(
        [node("Add", ["w", "s"], ["t"])],
        "inside",
        [],
        [value("t")],
        [tensor("w", [1, 2])],
        sparse_initializer=[sparse("s")],
    )
    graph = indexed(
        model(
            [helper.make_node("If", ["c"], ["y"], then_branch=inside, else_branch=inside)],
            [value("c", BOOL, [])],
            ["y"],
        )
    )

    assert graph.inputs[0] == ["c"]


def sparse(name, at=1):
    values = numpy_helper.from_array(np.array([3.0], np.float32), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([at], np.int64)), [2])


@pytest.mark.parametrize(("ir_version", "constants", "inputs"), [(3, {"w"}, ("x",)), (4, set(), ("x", "w"))])
def test_an_initializer_that_is_also_an_input_can_be_overridden_since_ir_version_4(
    ir_version, constants, inputs
):
    made = model(
        [node("Add", ["x", "w"], ["y"])],
        ["x", "w"],
        ["y"],
        [tensor("w", [1, 2])],
        ir_version=ir_version,
        opsets=[("", 8)],
    )

    graph = indexed(made)

    assert graph.constants == constants
    assert graph.input_names == inputs


def test_sparse_initializers_are_constants():
    graph = indexed(model([node("Add", ["x", "s"], ["y"])], ["x"], ["y"], sparse_initializer=[sparse("s")]))

    assert graph.constants == {"s"}
    assert graph.weights["s"].array().tolist() == [0, 3]


def test_nodes_need_no_names_and_may_share_one():
    graph = indexed(
        model(
            [
                node("Neg", ["x"], ["a"]),
                node("Neg", ["a"], ["b"], name="n"),
                node("Neg", ["b"], ["y"], name="n"),
            ],
            ["x"],
            ["y"],
        )
    )

    assert [graph.producer[name] for name in ("a", "b", "y")] == [0, 1, 2]
    assert graph.predecessors == [[], [0], [1]]


def test_a_value_read_twice_stands_twice():
    graph = indexed(model([node("Neg", ["x"], ["a"]), node("Add", ["a", "a"], ["y"])], ["x"], ["y"]))

    assert graph.predecessors[1] == [0, 0]
    assert graph.consumers["a"] == [1, 1]


def test_omitted_inputs_and_outputs_are_empty_strings_and_connect_nothing():
    graph = indexed(
        model(
            [
                node("Dropout", ["x"], ["a", ""]),
                node("Clip", ["a", "", "high"], ["b"]),
                node("Clip", ["b", "", "high"], ["y"]),
            ],
            ["x"],
            ["y"],
            [tensor("high", 1.0)],
        )
    )

    assert graph.outputs[0] == ["a", ""]
    assert graph.inputs[1] == ["a", "", "high"]
    assert "" not in graph.producer
    assert "" not in graph.consumers
    assert graph.predecessors == [[], [0], [1]]


def test_the_index_leaves_the_model_as_it_is():
    made = model([node("Neg", ["x"], ["y"])], ["x"], ["y"])
    onnx.checker.check_model(made)
    before = made.SerializeToString(deterministic=True)

    graph = indexed(made)
    list(graph.predecessors), dict(graph.consumers)

    assert graph.types.get("x").elem_type == FLOAT
    assert made.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("name", ["nnnn", "vvvv"], ids=["node", "value"])
def test_a_name_that_is_not_utf_8_is_refused(name):
    made = model([node("Neg", ["x"], ["vvvv"], name="nnnn"), node("Abs", ["vvvv"], ["y"])], ["x"], ["y"])
    damaged = made.SerializeToString().replace(name.encode(), b"n\xff\xfen")

    with pytest.raises(InvalidGraph, match="not UTF-8"):
        indexed(onnx.ModelProto.FromString(damaged))
