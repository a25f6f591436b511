"""Distance of two results. Knows arrays and nothing of epctx."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

TOLERANCE = 2e-4
"""The largest relative error that counts as equal."""


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    """Return max|a - b| / (max|b| + 1e-6); infinite if shapes or types differ or either
    has a NaN.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.size == 0:
        return 0.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    if np.isnan(a).any() or np.isnan(b).any():
        return float("inf")
    return float(np.abs(a - b).max() / (np.abs(b).max() + 1e-6))


def worst_relative_error(
    results: Sequence[np.ndarray], reference: Sequence[np.ndarray]
) -> float:
    """Return the largest relative error over all outputs; infinite if their number
    differs.
    """
    if len(results) != len(reference):
        return float("inf")
    return max(
        (relative_error(a, b) for a, b in zip(results, reference, strict=True)),
        default=0.0,
    )


def quantisation_error(
    result: np.ndarray, reference: np.ndarray, step: float
) -> tuple[int, float]:
    """Return by how many quantisation steps two results differ at most, and in which
    share of elements.

    Args:
        result: dequantised numbers.
        reference: the same by another route.
        step: the scale of the DequantizeLinear that gave both.
    """
    if result.shape != reference.shape or result.dtype != reference.dtype:
        return 1 << 30, 1.0
    apart = np.rint(np.abs(result.astype(np.float64) - reference) / step)
    return int(apart.max(initial=0)), float(
        np.count_nonzero(apart) / max(apart.size, 1)
    )


MOST_STEPS, LARGEST_SHARE = 1, 0.001
"""By how much quantised results may differ, and in which share of elements."""


def assert_agree(
    results: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    steps: Sequence[float | None],
) -> None:
    """Assert that results are equal: those with a quantisation step by steps, others by
    relative error.
    """
    for result, expected, step in zip(results, reference, steps, strict=True):
        if step is None:
            assert relative_error(result, expected) <= TOLERANCE
        else:
            most, share = quantisation_error(result, expected, step)
            assert most <= MOST_STEPS
            assert share <= LARGEST_SHARE
