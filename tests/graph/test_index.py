"""Producer and readers of each value, subgraphs included, and the values that are
constants.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper
from support.graph_models import BOOL, INT64, conditional, model, node, tensor, value
from support.witness import names, partition_of, shown, view

from epctx_core.errors import InvalidGraph


def main_graph(made):
    """Return the main graph as the first EP sees it, subgraphs and all."""
    return shown(made)[0].views[-1]


def loop(reads, output):
    """A Loop whose subgraph holds an If that reads a value two scopes outside."""
    body = helper.make_graph(
        [
            conditional("go", reads, "carried", "next"),
            node("Identity", ["go"], ["still"]),
        ],
        "body",
        [value("i", INT64, []), value("go", BOOL, []), value("carried")],
        [value("still", BOOL, []), value("next")],
    )
    return helper.make_node("Loop", ["count", "", "start"], [output], body=body)


def test_names_that_only_bodies_read_are_implicit_inputs_of_the_node_that_holds_the_bodies():
    made = model(
        [
            node("Neg", ["x"], ["a"]),
            node("Abs", ["x"], ["b"]),
            conditional("c", "a", "b", "y"),
        ],
        [value("c", BOOL, []), "x"],
        ["y"],
    )

    seen = main_graph(made)

    # Attributes stand in alphabetical order, so the else branch comes first.
    assert seen.nodes[2].implicit_inputs == ("b", "a")
    assert seen.nodes[2].inputs == ("c",)
    assert seen.consumers("a") == seen.consumers("b") == [seen.nodes[2]]


def test_names_are_found_through_bodies_inside_bodies():
    made = model(
        [node("Neg", ["x"], ["deep"]), loop("deep", "y")],
        [value("count", INT64, []), "start", "x"],
        ["y"],
    )

    found = main_graph(made).nodes[1]

    assert found.inputs == ("count", "", "start")
    assert found.implicit_inputs == ("deep",)
    assert names(partition_of(made, [1]).inputs) == ["count", "start", "deep"]


def test_what_a_body_defines_itself_is_not_read_from_outside():
    inside = helper.make_graph(
        [node("Add", ["w", "s"], ["t"])],
        "inside",
        [],
        [value("t")],
        [tensor("w", [1, 2])],
        sparse_initializer=[sparse("s")],
    )
    made = model(
        [helper.make_node("If", ["c"], ["y"], then_branch=inside, else_branch=inside)],
        [value("c", BOOL, [])],
        ["y"],
    )

    assert main_graph(made).nodes[0].implicit_inputs == ()


def sparse(name, at=1):
    values = numpy_helper.from_array(np.array([3.0], np.float32), name)
    return helper.make_sparse_tensor(
        values, numpy_helper.from_array(np.array([at], np.int64)), [2]
    )


@pytest.mark.parametrize(
    ("ir_version", "constants", "inputs"), [(3, {"w"}, ("x",)), (4, set(), ("x", "w"))]
)
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

    seen = view(made)

    assert {
        name for name in ("x", "w") if seen.initializer(name) is not None
    } == constants
    assert tuple(names(seen.inputs)) == inputs


def test_sparse_initializers_are_constants():
    seen = view(
        model(
            [node("Add", ["x", "s"], ["y"])],
            ["x"],
            ["y"],
            sparse_initializer=[sparse("s")],
        )
    )

    assert seen.initializer("s").array().tolist() == [0, 3]


def test_nodes_need_no_names_and_may_share_one():
    seen = view(
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

    assert [seen.producer(name).index for name in ("a", "b", "y")] == [0, 1, 2]
    assert [
        [reader.index for reader in seen.consumers(name)] for name in ("x", "a", "b")
    ] == [[0], [1], [2]]


def test_a_node_that_reads_a_value_twice_is_one_reader():
    seen = view(
        model([node("Neg", ["x"], ["a"]), node("Add", ["a", "a"], ["y"])], ["x"], ["y"])
    )

    assert seen.nodes[1].inputs == ("a", "a")
    assert seen.consumers("a") == [seen.nodes[1]]


def test_omitted_inputs_and_outputs_are_empty_strings_and_connect_nothing():
    seen = view(
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

    assert seen.nodes[0].outputs == ("a", "")
    assert seen.nodes[1].inputs == ("a", "", "high")
    assert seen.producer("") is None
    assert seen.consumers("") == []
    assert seen.consumers("a") == [seen.nodes[1]]


@pytest.mark.parametrize("name", ["nnnn", "vvvv"], ids=["node", "value"])
def test_a_name_that_is_not_utf_8_is_refused(name):
    made = model(
        [node("Neg", ["x"], ["vvvv"], name="nnnn"), node("Abs", ["vvvv"], ["y"])],
        ["x"],
        ["y"],
    )
    damaged = made.SerializeToString().replace(name.encode(), b"n\xff\xfen")

    with pytest.raises(InvalidGraph, match="not UTF-8"):
        shown(damaged)
