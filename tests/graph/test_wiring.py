"""Pieces of one graph have equal digests exactly where they do the same work, whatever
their values are called.
"""

from __future__ import annotations

import pytest
from support.graph_models import FLOAT, INT64, model, node, value
from support.witness import partitions


def digests(nodes, *pieces, inputs=("x", "z"), outputs=("y",)):
    return [
        each.digest
        for each in partitions(model(nodes, list(inputs), list(outputs)), *pieces)
    ]


def test_equal_pieces_have_equal_digests():
    first, second = digests(
        [
            node("Neg", ["x"], ["a"]),
            node("Add", ["a", "z"], ["b"]),
            node("Neg", ["b"], ["c"]),
            node("Add", ["c", "x"], ["y"]),
        ],
        [0, 1],
        [2, 3],
    )

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
def test_pieces_that_differ_in_operators_or_wiring_have_different_digests(other):
    first, second = digests(
        [node("Neg", ["x"], ["a"]), node("Add", ["a", "z"], ["b"]), *other],
        [0, 1],
        [2, 3],
    )

    assert first != second


def test_pieces_of_different_types_have_different_digests():
    whole = [value("x", FLOAT), value("z", INT64)]
    results = [value("a", FLOAT), value("y", INT64)]

    first, second = digests(
        [node("Neg", ["x"], ["a"]), node("Neg", ["z"], ["y"])],
        [0],
        [1],
        inputs=whole,
        outputs=results,
    )

    assert first != second


def test_what_leaves_a_piece_is_part_of_its_digest():
    first, second = digests(
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
    first, second = digests(
        [
            node("Dropout", ["x"], ["a", "m"]),
            node("Dropout", ["z"], ["b", ""]),
            node("Add", ["a", "b"], ["y"]),
        ],
        [0],
        [1],
    )

    assert first != second


def test_each_piece_has_the_digest_of_its_own_work():
    first, second, third = digests(
        [
            node("Neg", ["x"], ["a"]),
            node("Neg", ["a"], ["b"]),
            node("Abs", ["b"], ["y"]),
        ],
        [0],
        [1],
        [2],
        inputs=["x"],
    )

    assert first == second != third
