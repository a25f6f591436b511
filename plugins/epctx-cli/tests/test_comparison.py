"""How two results are compared."""

from __future__ import annotations

import numpy as np
import pytest
from epctx_cli.comparison import FirstDifference, Tolerance, compare, compare_all
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import agreement

pytestmark = pytest.mark.internal

STRICT = Tolerance(absolute=0.0, relative=0.0)
USUAL = Tolerance(absolute=0.0, relative=agreement.TOLERANCE)
SHAPES = arrays.array_shapes(min_dims=0, min_side=0)
ANY = st.sampled_from(
    [np.float32, np.float64, np.int8, np.int64, np.uint64, np.bool_]
).flatmap(lambda kind: arrays.arrays(kind, SHAPES))
FINITE = arrays.arrays(np.float32, (2, 3), elements=st.floats(-1e6, 1e6, width=32))


@given(ANY)
def test_whatever_is_compared_with_itself_is_equal_even_without_tolerance(array):
    found = compare("y", array, array.copy(), STRICT)

    assert found.equal
    assert found.max_abs == found.max_rel == 0.0


@given(FINITE, FINITE)
def test_the_relative_error_is_the_one_that_the_whole_project_uses(a, b):
    found = compare("y", a, b, USUAL)

    expected = agreement.relative_error(a, b)
    assert found.max_rel == pytest.approx(expected, rel=1e-9)
    assert found.equal == (
        expected <= agreement.TOLERANCE
    ) or expected == pytest.approx(agreement.TOLERANCE)


@given(FINITE, FINITE)
def test_the_first_difference_is_the_first_element_that_differs(a, b):
    found = compare("y", a, b, STRICT)

    differing = np.argwhere(a != b)
    assert found.equal == (len(differing) == 0)
    if not found.equal:
        assert found.first.index == differing[0].tolist()


def test_nan_agrees_with_nan_only():
    a, b = np.array([np.nan, 1.0]), np.array([np.nan, np.nan])

    assert compare("y", a, a, STRICT).equal
    found = compare("y", a, b, USUAL)
    assert not found.equal
    assert found.first.index == [1]


def test_infinity_agrees_with_the_same_infinity_only():
    plus, minus = np.array([np.inf]), np.array([-np.inf])

    assert compare("y", plus, plus, STRICT).equal
    assert not compare("y", plus, minus, USUAL).equal
    assert not compare("y", plus, np.array([1.0]), USUAL).equal


def test_large_integers_that_a_float_cannot_tell_apart_differ():
    a, b = np.array([2**60]), np.array([2**60 + 1])

    assert not compare("y", a, b, STRICT).equal


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (np.zeros((1, 2)), np.zeros((2, 1)), "the shapes are [1, 2] and [2, 1]"),
        (np.zeros(2, np.float32), np.zeros(2), "the types are float32 and float64"),
        (np.zeros(2), [np.zeros(2)], "are not tensors"),
    ],
)
def test_results_of_another_kind_differ_and_the_reason_says_how(a, b, words):
    found = compare("y", a, b, USUAL)

    assert not found.equal
    assert found.max_abs is None
    assert words in found.describe()


def test_text_is_compared_exactly():
    a, b = np.array(["a", "b"], object), np.array(["a", "c"], object)

    assert compare("y", a, a, STRICT).equal
    assert compare("y", a, b, Tolerance(absolute=9, relative=9)).first == (
        FirstDifference(index=[1], a="b", b="c")
    )


def test_sequences_are_compared_element_by_element():
    a = [np.zeros(2), np.ones(2)]

    assert compare("y", a, [np.zeros(2), np.ones(2)], STRICT).equal
    found = compare("y", a, [np.zeros(2), np.full(2, 2.0)], USUAL)
    assert not found.equal
    assert found.describe() == "y[1]: at [0]: 1 and 2"


def test_results_are_matched_by_name_and_nothing_is_left_out():
    found = compare_all(
        {"a": np.zeros(1), "b": np.zeros(1)},
        {"b": np.zeros(1), "c": np.zeros(1)},
        STRICT,
    )

    assert [(f.name, f.equal) for f in found] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]
