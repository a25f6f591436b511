"""Checks over onnx's own cases of single operators: one for each part of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_conformance.cases.onnx_cases import load_cases
from epctx_conformance.table import CheckFailed, Skipped

if TYPE_CHECKING:
    from epctx_conformance.cases.case import Case

_PARTS = ("ab", "c", "def", "ghijklm", "nopq", "r", "s", "tuvwxyz")
"""First letters of the cases' names: a part is one check."""
_SAMPLE = 13
"""Cases of each part in a run that is not full: about a hundred in all."""


def make_checks(
    promise: str,
    assess: Callable[[Any, Case], str | None],
    *,
    counted: str,
    hint: str,
) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Yield a title and a check for each part of the cases.

    Args:
        promise: end of the titles.
        assess: called with the check's subject, which says by `full` whether all cases
            are run, and a case; returns what is wrong, empty for nothing, and None for
            a case that does not count.
        counted: subject and verb for those that do, such as "the engine accepts".
        hint: what the author can do.
    """

    def check_part(letters: str, subject: Any) -> None:
        results = [assess(subject, case) for case in _choose(letters, subject.full)]
        counts = [result for result in results if result is not None]
        if faults := list(filter(None, counts)):
            raise CheckFailed(
                f"{len(faults)} of {len(counts)} cases that {counted} are wrong: "
                f"{'; '.join(faults[:5])}",
                hint=hint,
            )
        if not counts:
            raise Skipped(f"{counted} none of these cases")

    for letters in _PARTS:
        first, last = letters[0], letters[-1]
        names = first if first == last else f"{first} to {last}"
        yield f"onnx's own cases, {names}: {promise}", partial(check_part, letters)


@cache
def _load() -> Sequence[Case]:
    """Return every case of onnx's by name; making them takes some seconds."""
    return tuple(load_cases(("node",)).values())


def _choose(letters: str, full: bool) -> list[Case]:
    """Return the cases whose names begin with some letters; a sample, always the same
    one, unless all are asked for.
    """
    cases = [case for case in _load() if case.name.removeprefix("test_")[:1] in letters]
    if full:
        return cases

    chosen = np.random.default_rng(0).choice(
        len(cases), min(_SAMPLE, len(cases)), replace=False
    )
    return [cases[index] for index in sorted(chosen)]
