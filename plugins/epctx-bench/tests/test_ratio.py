import math

import numpy as np
import pytest
from epctx_bench.ratio import describe_ratio, estimate_ratio
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epctx_core.errors import InvalidArgument

pytestmark = pytest.mark.internal

seconds = st.floats(1e-6, 1e3)
pairs = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=40)
factors = st.floats(1e-3, 1e3)

# A busy machine is no reason for a failure.
unhurried = settings(deadline=None, max_examples=50)


@unhurried
@given(pairs, factors)
def test_a_ratio_scales_with_our_times_alone(measured, factor):
    ours, peers = zip(*measured, strict=True)
    once = estimate_ratio(ours, peers)
    scaled = estimate_ratio([factor * each for each in ours], peers)

    for name in ("estimate", "low", "high"):
        assert getattr(scaled, name) == pytest.approx(
            factor * getattr(once, name), rel=1e-6
        )


@unhurried
@given(pairs, factors)
def test_a_machine_that_is_slower_for_both_does_not_change_the_ratio(measured, factor):
    ours, peers = zip(*measured, strict=True)
    slowed = estimate_ratio(
        [factor * each for each in ours], [factor * each for each in peers]
    )

    assert slowed.estimate == pytest.approx(estimate_ratio(ours, peers).estimate)


@unhurried
@given(pairs)
def test_the_ratio_of_swapped_columns_is_the_inverse(measured):
    ours, peers = zip(*measured, strict=True)
    swapped, inverse = estimate_ratio(peers, ours), estimate_ratio(ours, peers).inverse

    for name in ("estimate", "low", "high"):
        # An interval can be wider than floating-point numbers reach.
        assert getattr(swapped, name) == pytest.approx(
            getattr(inverse, name), rel=1e-6, abs=1e-200
        )


@unhurried
@given(pairs)
def test_an_interval_contains_its_estimate(measured):
    ours, peers = zip(*measured, strict=True)
    ratio = estimate_ratio(ours, peers)

    slack = 1 + 1e-9
    assert ratio.low <= ratio.estimate * slack
    assert ratio.estimate <= ratio.high * slack


@unhurried
@given(st.lists(st.floats(0.9, 1.1), min_size=5, max_size=40), st.integers(0, 4))
def test_one_outlier_does_not_move_a_ratio_beyond_the_other_pairs(ratios, index):
    assume(index < len(ratios))
    ratios[index] = 1000.0
    ratio = estimate_ratio(ratios, [1.0] * len(ratios))

    assert ratio.estimate * (1 + 1e-9) >= 0.9
    assert ratio.estimate <= 1.1 * (1 + 1e-9)
    assert ratio.high < 10


@pytest.mark.parametrize(("pairs", "least"), [(5, 0.88), (10, 0.92), (200, 0.92)])
def test_intervals_contain_the_true_ratio_as_often_as_they_say(pairs, least):
    random = np.random.default_rng(pairs)
    contained = 0
    for _ in range(500):
        ours = 0.02 * np.exp(random.normal(0, 0.05, pairs))
        peers = 0.3 * np.exp(random.normal(0, 0.05, pairs))
        ratio = estimate_ratio(ours, peers)
        contained += ratio.low <= 0.02 / 0.3 <= ratio.high

    assert contained / 500 >= least


def test_a_single_pair_has_an_estimate_and_no_bounds():
    ratio = estimate_ratio([2.0], [8.0])

    assert (ratio.low, ratio.high) == (0, math.inf)
    assert ratio.estimate == pytest.approx(0.25)
    assert describe_ratio(ratio) == (
        "loads about 4.00 times faster than onnxruntime compiles (one pair only)"
    )


def test_a_faster_column_is_described_with_its_margin():
    text = describe_ratio(estimate_ratio([1.0, 1.01, 0.99, 1.0, 1.02], [12.3] * 5))

    assert text == "loads 12.3 ± 0.2 times faster than onnxruntime compiles"


def test_a_slower_column_is_described_the_other_way_round():
    text = describe_ratio(
        estimate_ratio([12.3] * 5, [1.0, 1.01, 0.99, 1.0, 1.02]), "runs", "openvino"
    )

    assert text == "runs 12.3 ± 0.2 times slower than openvino"


def test_a_wide_interval_on_one_side_is_described_by_its_ends():
    ratio = estimate_ratio([4.0, 16.0, 6.0, 12.0, 8.0], [1.0] * 5)

    assert ratio.low > 1
    assert describe_ratio(ratio, "runs", "openvino") == (
        "runs 2.73 to 25.4 times slower than openvino"
    )


def test_columns_that_do_not_differ_are_as_fast_as_each_other():
    text = describe_ratio(estimate_ratio([1.0, 1.02, 0.98, 1.01, 0.99], [1.0] * 5))

    assert text == "loads as fast as onnxruntime compiles (0.97 to 1.03)"


def test_little_knowledge_is_not_described_as_equality():
    text = describe_ratio(estimate_ratio([1.0, 4.0, 0.3, 2.0, 0.5], [1.0] * 5))

    assert text.startswith("loads between ")
    assert text.endswith("times faster than onnxruntime compiles: measure more turns")


def test_an_interval_beyond_all_numbers_is_described():
    ratio = estimate_ratio([1.0, 1.0], [1.0, 1e-60])

    assert ratio.high == math.inf
    assert describe_ratio(ratio) == (
        "loads between any number of times slower and any number of times faster than "
        "onnxruntime compiles: measure more turns"
    )


@pytest.mark.parametrize("samples", [[], [1.0, 0.0], [-1.0], [math.nan], [math.inf]])
def test_samples_that_are_not_times_are_refused(samples):
    with pytest.raises(InvalidArgument):
        estimate_ratio(samples, [1.0] * len(samples))


def test_samples_that_are_not_pairs_are_refused():
    with pytest.raises(InvalidArgument, match="2 samples cannot be paired with 1"):
        estimate_ratio([1.0, 2.0], [1.0])
