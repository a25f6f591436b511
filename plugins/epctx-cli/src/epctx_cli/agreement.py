"""How far two results are apart, and where first. Knows arrays, knows no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_TINY = 1e-6
"""Keeps the relative measure finite where the reference is all zero."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """An output is equal if its `max_abs` is at most `absolute`, or its `max_rel` at most `relative`."""

    absolute: float
    relative: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One output of two models.

    Attributes:
        max_abs: max|a - b|; None where it cannot be said.
        max_rel: max_abs / (max|b| + 1e-6); None likewise.
        equal: whether it is within the tolerance.
        reason: why the two cannot be compared by numbers, or empty.
        first: the first element beyond the tolerance, with both values.
    """

    name: str
    max_abs: float | None
    max_rel: float | None
    equal: bool
    reason: str = ""
    first: Mapping[str, Any] | None = None

    def where(self) -> str:
        """Say where it differs first, in words."""
        if self.first is None:
            return self.reason
        return f"at {self.first['index']}: {_words(self.first['a'])} and {_words(self.first['b'])}"


def compare_all(a: Mapping[str, Any], b: Mapping[str, Any], tolerance: Tolerance) -> list[Difference]:
    """Compare results by name, in the order of `a`; what only one side has differs."""
    found = [
        compare(name, value, b[name], tolerance)
        if name in b
        else _incomparable(name, "only the first has it")
        for name, value in a.items()
    ]
    return found + [_incomparable(name, "only the second has it") for name in b if name not in a]


def compare(name: str, a: Any, b: Any, tolerance: Tolerance) -> Difference:
    """Compare two results. NaN agrees with NaN at the same place, infinity with the same infinity."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return _compare_others(name, a, b, tolerance)
    if a.shape != b.shape:
        return _incomparable(name, f"the shapes are {list(a.shape)} and {list(b.shape)}")
    if a.dtype != b.dtype:
        return _incomparable(name, f"the types are {a.dtype} and {b.dtype}")
    if a.dtype.kind in "OUST":
        exact = Tolerance(absolute=0.0, relative=0.0)
        return _judged(name, a, b, np.asarray(a != b, np.float64), np.zeros(1), exact)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    return _judged(name, a, b, _distance(a, b, x, y), np.abs(y), tolerance)


def _distance(a: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return |a - b| for each element, given both in wide precision."""
    with np.errstate(invalid="ignore", over="ignore"):
        # A scalar's difference is no array, hence asarray.
        distance = np.asarray(np.abs(x - y))
    distance[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
    distance[np.isnan(distance)] = np.inf
    if a.dtype.kind in "iu":  # 64-bit integers may differ by less than a float64 can tell
        distance[(a != b) & (distance == 0.0)] = 1.0
    return distance


def _judged(
    name: str, a: np.ndarray, b: np.ndarray, distance: np.ndarray, magnitude: np.ndarray, tolerance: Tolerance
) -> Difference:
    finite = np.atleast_1d(magnitude)
    finite = finite[np.isfinite(finite)]
    scale = float(finite.max(initial=0.0)) + _TINY
    largest = float(distance.max(initial=0.0))
    beyond = np.atleast_1d(distance > max(tolerance.absolute, tolerance.relative * scale))
    first = None
    if beyond.any():
        place = np.unravel_index(int(np.argmax(beyond)), beyond.shape)
        index = [int(i) for i in place][: a.ndim]
        first = {"index": index, "a": _value(a[tuple(index)]), "b": _value(b[tuple(index)])}
    return Difference(name=name, max_abs=largest, max_rel=largest / scale, equal=first is None, first=first)


def _value(element: Any) -> Any:
    value = element.item() if hasattr(element, "item") else element
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def _words(value: Any) -> str:
    return f"{value:.8g}" if isinstance(value, float) else repr(value)


def _compare_others(name: str, a: Any, b: Any, tolerance: Tolerance) -> Difference:
    """Compare sequences element by element, anything else as equal or not."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        parts = [compare(f"{name}[{i}]", x, y, tolerance) for i, (x, y) in enumerate(zip(a, b, strict=True))]
        worst = max(parts, key=lambda p: (not p.equal, p.max_abs or 0.0), default=None)
        if worst is not None and (not worst.equal or worst.max_abs is not None):
            return Difference(
                name=name,
                max_abs=worst.max_abs,
                max_rel=worst.max_rel,
                equal=worst.equal,
                reason="" if worst.equal else f"{worst.name}: {worst.where()}",
            )
        return Difference(name=name, max_abs=0.0, max_rel=0.0, equal=True)
    if type(a) is type(b) and a == b:
        return Difference(name=name, max_abs=0.0, max_rel=0.0, equal=True)
    return _incomparable(name, "the values differ and are no tensors")


def _incomparable(name: str, reason: str) -> Difference:
    return Difference(name=name, max_abs=None, max_rel=None, equal=False, reason=reason)
