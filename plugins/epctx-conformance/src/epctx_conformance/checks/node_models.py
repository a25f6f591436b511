"""Agreement on the models of single operators that onnx provides.

Not to claim one is fine; to fail on it, or to compute it wrongly, is not. A case whose
expected outputs the CPU EP does not give either says nothing about an EP: some draw
random numbers.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from onnx import load_from_string

from epctx_conformance.cases.onnx_cases import load_cases
from epctx_conformance.harness import disagreement
from epctx_conformance.models import SmallModel
from epctx_conformance.table import CheckFailed, CheckFunction, Skipped, check
from epctx_core import InferenceSession, Registry
from epctx_core.errors import EpctxError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_conformance.cases.case import Case
    from epctx_conformance.harness import Harness

PARTS = ("ab", "c", "def", "ghijklm", "nopq", "r", "s", "tuvwxyz")
"""First letters of the cases' names: a part is one check."""
SAMPLE = 13
"""Cases of each part in a run that is not full: about a hundred in all."""


@cache
def _cases() -> Sequence[Case]:
    """Return every case of onnx's by name; making them takes some seconds."""
    return tuple(load_cases(("node",)).values())


def node_cases(letters: str, *, full: bool) -> list[Case]:
    """Return onnx's cases whose names begin with some letters; a sample, always the
    same one, unless all are asked for.
    """
    cases = [
        case for case in _cases() if case.name.removeprefix("test_")[:1] in letters
    ]
    return cases if full else _sample(cases)


def _sample(cases: Sequence[Case]) -> list[Case]:
    """Return some of the cases, always the same ones, in order."""
    chosen = np.random.default_rng(0).choice(
        len(cases), min(SAMPLE, len(cases)), replace=False
    )
    return [cases[index] for index in sorted(chosen)]


def _assess(harness: Harness, case: Case) -> tuple[bool, str | None]:
    """Return whether the EP claims something of a case, and what is wrong with its
    results, compiled and loaded.
    """
    model = SmallModel(case.name, load_from_string(case.model()))
    data = case.data()[0]
    feeds = data.inputs
    expected = data.outputs
    tolerance = max(harness.requirements.tolerance, case.rtol)
    try:
        if not harness.claimed(model):
            return False, None
        fault = disagreement(harness.run(model, feeds), expected, tolerance=tolerance)
        if fault is None and harness.requirements.export:
            loaded = harness.run(harness.compile(model), feeds)
            fault = disagreement(loaded, expected, tolerance=tolerance)
            fault = fault and f"after a load {fault}"
    except EpctxError as error:
        fault = f"{type(error).__name__}: {error.message}"
    if fault is None:
        return True, None
    try:  # whether the case works without the EP
        with InferenceSession(
            model.data, registry=Registry(entry_points=False)
        ) as session:
            works = (
                disagreement(session.run(None, feeds), expected, tolerance=tolerance)
                is None
            )
    except EpctxError:
        works = False
    return (True, fault) if works else (False, None)


def _part(letters: str) -> CheckFunction:
    def function(harness: Harness) -> None:
        claimed = 0
        faults = []
        for case in node_cases(letters, full=harness.full):
            is_claimed, fault = _assess(harness, case)
            claimed += is_claimed
            faults += [f"{case.name}: {fault}"] if fault else []
        if faults:
            raise CheckFailed(
                f"{len(faults)} of {claimed} cases that the EP claims are wrong: "
                f"{'; '.join(faults[:5])}",
                hint=(
                    "Refuse in get_capability, with the reason, what the EP cannot "
                    "compute."
                ),
            )
        if not claimed:
            raise Skipped("the EP claims none of these cases")

    return function


def range_of(letters: str) -> str:
    """Return the first letter and the last one, for titles."""
    return letters[0] if len(letters) == 1 else f"{letters[0]} to {letters[-1]}"


for _letters in PARTS:
    check(
        "node_models",
        f"onnx's own cases, {range_of(_letters)}: what it claims gives the expected "
        "outputs",
    )(_part(_letters))
