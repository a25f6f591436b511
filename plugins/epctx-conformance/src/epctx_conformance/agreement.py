"""Whether results agree, as arrays. Knows no EP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def disagreement(
    results: Sequence[Any], reference: Sequence[Any], *, tolerance: float, step: float = 0.0
) -> str | None:
    """Say where two lists of results differ first; None if they agree.

    Args:
        results: what is judged.
        reference: what it should be.
        tolerance: the largest difference allowed, as a share of the reference's largest finite number.
        step: a difference that is allowed besides: a step of quantisation.
    """
    if len(results) != len(reference):
        return f"there are {len(results)} results instead of {len(reference)}"
    for place, (result, wanted) in enumerate(zip(results, reference, strict=True)):
        different = _different(result, wanted, tolerance, step)
        if different is not None:
            return f"result {place} {different}"
    return None


def _different(result: Any, wanted: Any, tolerance: float, step: float) -> str | None:
    if not isinstance(result, np.ndarray):
        return None if repr(result) == repr(wanted) else f"is {result!r:.80} instead of {wanted!r:.80}"
    wanted = np.asarray(wanted)
    if result.dtype != wanted.dtype:
        return f"is of type {result.dtype} instead of {wanted.dtype}"
    if result.shape != wanted.shape:
        return f"has the shape {list(result.shape)} instead of {list(wanted.shape)}"
    if wanted.dtype.kind in "OSUb":
        return None if np.array_equal(result, wanted) else "has other elements"
    return _numbers_differ(result, wanted, tolerance, step)


def _numbers_differ(result: np.ndarray, wanted: np.ndarray, tolerance: float, step: float) -> str | None:
    kind = np.complex128 if wanted.dtype.kind == "c" else np.float64
    ours, theirs = result.astype(kind), wanted.astype(kind)
    finite = np.isfinite(theirs)
    if (
        not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True)
        or not np.isfinite(ours[finite]).all()
    ):
        return "has infinities or NaN at other places"
    apart = np.abs(ours[finite] - theirs[finite])
    largest = float(apart.max(initial=0.0))
    allowed = tolerance * float(np.abs(theirs[finite]).max(initial=0.0)) + step * 1.001
    if largest <= allowed:
        return None
    return f"differs by {largest:.3g} where {allowed:.3g} is allowed"
