"""Pieces of one graph have equal plain forms exactly where they do the same work, whatever their values are called."""

from __future__ import annotations

import pytest
from graph.making import FLOAT, INT64, indexed, model, node, tensor, value

from epctx_core.graph.subgraph import GraphPartition, Subgraph


def forms(nodes, *pieces, inputs=("x", "z"), outputs=("y",), **parts):
    graph = indexed(model(nodes, list(inputs), list(outputs), **parts))
    return [Subgraph(graph, piece).plain_form for piece in pieces]


def test_equal_pieces_have_equal_forms():
    first, second = forms(
        [
            node("Neg", ["x"], ["a"]),
            node("Add", ["a", "z"], ["b"]),
            node("Neg", ["b"], ["c"]),
            node("Add", ["c", "x"], ["y"]),
        ],
        [0, 1],
        [2, 3],
    )

    assert first is not None
    assert first == second


@pytest.mark.parametrize(
    "other",
    [
        [node("Neg", ["b"], ["c"]), node("Sub", ["c", "x"], ["y"])],
        [node("Neg", ["b"], ["c"]), node("Add", ["x", "c"], ["y"])],
        [node("Neg", ["b"], ["c"]), node("Add", ["c", "c"], ["y"])],
        [node("Neg", ["b"], ["c"]), node("Add", ["c", "b"], ["y"])],
    ],
    ids=["operator", "order of inputs", "one input twice", "the same input again"],
)
def test_pieces_that_differ_in_operators_or_wiring_have_different_forms(other):
    first, second = forms([node("Neg", ["x"], ["a"]), node("Add", ["a", "z"], ["b"]), *other], [0, 1], [2, 3])

    assert None not in {first, second}
    assert first != second


def test_pieces_of_different_types_have_different_forms():
    whole = [value("x", FLOAT), value("z", INT64)]
    results = [value("a", FLOAT), value("y", INT64)]

    first, second = forms(
        [node("Neg", ["x"], ["a"]), node("Neg", ["z"], ["y"])], [0], [1], inputs=whole, outputs=results
    )

    assert first != second


def test_what_leaves_a_piece_is_part_of_its_form():
    first, second = forms(
        [
            node("Neg", ["x"], ["a"]),
            node("Abs", ["a"], ["b"]),
            node("Neg", ["b"], ["c"]),
            node("Abs", ["c"], ["d"]),
            node("Sum", ["c", "d"], ["y"]),
        ],
        [0, 1],
        [2, 3],
        inputs=["x"],
    )

    assert first != second


def test_an_omitted_result_is_not_taken_for_the_next_one():
    first, second = forms(
        [
            node("Dropout", ["x"], ["a", "m"]),
            node("Dropout", ["z"], ["b", ""]),
            node("Add", ["a", "b"], ["y"]),
        ],
        [0],
        [1],
    )

    assert first != second


@pytest.mark.parametrize("special", ["attributes", "weights", "functions"])
def test_nodes_with_more_than_their_wiring_have_no_form(special):
    nodes = {
        "attributes": [node("LeakyRelu", ["x"], ["y"], alpha=0.5)],
        "weights": [node("Add", ["x", "w"], ["y"])],
        "functions": [node("Neg", ["x"], ["y"])],
    }[special]
    graph = indexed(model(nodes, ["x"], ["y"], [tensor("w", 1.0)] if special == "weights" else ()))
    if special == "functions":
        graph.functions = ["any"]

    assert Subgraph(graph, [0]).plain_form is None


def test_pieces_of_equal_form_have_equal_digests():
    graph = indexed(
        model([node("Neg", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Abs", ["b"], ["y"])], ["x"], ["y"])
    )

    pieces = [GraphPartition(graph, [i], ep="X") for i in range(3)]

    assert pieces[0].digest == pieces[1].digest != pieces[2].digest
    assert len(graph.digests) == 2
