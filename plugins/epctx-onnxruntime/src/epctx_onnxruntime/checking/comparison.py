"""Comparison of what came out of a run with what its case expects, and digests of
results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from epctx_conformance.cases.case import Case

BFLOAT16_RTOL = 2**-6
"""Two units in the last place."""


def difference(result: Any, expected: Any, case: Case) -> str:
    """Describe how a result differs from what a case expects; empty if it agrees within
    the case's tolerances.
    """
    if isinstance(expected, (list, tuple)):
        is_list = isinstance(result, (list, tuple))
        if not is_list or len(result) != len(expected):
            return "another length"

        for pair in zip(result, expected, strict=True):
            if wrong := difference(*pair, case):
                return wrong
        return ""

    if expected is None or isinstance(expected, dict) or result is None:
        return "" if result == expected else "another value"
    return _compare_arrays(np.asarray(result), np.asarray(expected), case)


def _compare_arrays(result: np.ndarray, expected: np.ndarray, case: Case) -> str:
    if result.shape != expected.shape:
        return f"shape {result.shape} instead of {expected.shape}"
    if expected.dtype.kind in "OUST":
        same = np.array_equal(result.astype(object), expected.astype(object))
    elif result.dtype != expected.dtype:
        return f"{result.dtype} instead of {expected.dtype}"
    else:
        rtol = case.rtol
        if expected.dtype.name == "bfloat16":
            rtol = max(rtol, BFLOAT16_RTOL)
        if expected.dtype.type.__module__ != "numpy":
            result = result.astype(np.float32)
            expected = expected.astype(np.float32)
        same = np.allclose(result, expected, rtol=rtol, atol=case.atol, equal_nan=True)
    return "" if same else "other values"


def compute_digest(values: Iterable[Any]) -> str:
    """Return a digest of results, 16 hexadecimal digits: equal for equal bits, types
    and shapes.
    """
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, (list, tuple)):
            inner = compute_digest(value)
            digest.update(f"[{len(value)}:{inner}]".encode())
        elif isinstance(value, dict):
            digest.update(repr(sorted(value.items())).encode())
        else:
            array = np.asarray(value)
            digest.update(f"{array.dtype}{array.shape}".encode())
            if array.dtype.hasobject:
                digest.update(repr(array.tolist()).encode())
            else:
                digest.update(array.tobytes())
    return digest.hexdigest()[:16]
