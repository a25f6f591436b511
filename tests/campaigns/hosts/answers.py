"""Differences between a program's answers by one runtime and by another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

RTOL, ATOL = 1e-3, 1e-4


def find_differences(expected: Any, found: Any, place: str = "") -> Iterator[str]:
    """Yield the differences, each with its place.

    Floats may be apart by 1e-4 and a thousandth of what is expected; texts, integers,
    lengths and names are equal.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        if list(expected) != list(found):
            yield f"{place}: names {list(expected)} and {list(found)}"
            return
        for name, value in expected.items():
            yield from find_differences(value, found[name], f"{place}.{name}")
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{place}: {len(expected)} and {len(found)} items"
            return
        for position, pair in enumerate(zip(expected, found, strict=True)):
            yield from find_differences(*pair, f"{place}[{position}]")
    elif not _is_near(expected, found):
        yield f"{place}: {expected!r} and {found!r}"


def _is_near(expected: Any, found: Any) -> bool:
    if type(expected) is not type(found):
        return False
    if not isinstance(expected, float):
        return bool(expected == found)
    if math.isnan(expected):
        return math.isnan(found)
    apart = abs(expected - found)
    return bool(expected == found or apart <= ATOL + RTOL * abs(expected))


def count_values(answers: Any) -> int:
    """Return the number of texts and numbers in answers."""
    if isinstance(answers, dict):
        return sum(map(count_values, answers.values()))
    return sum(map(count_values, answers)) if isinstance(answers, list) else 1
