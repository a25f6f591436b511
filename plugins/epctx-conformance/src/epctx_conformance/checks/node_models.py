"""Checks of agreement on the models of single operators that onnx brings.

Not to claim one is fine; to fail on it, or to compute it wrongly, is not. A case whose expected outputs the
CPU EP does not give either says nothing about an EP: some draw random numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_conformance.models.building import SmallModel
from epctx_conformance.scene import disagreement
from epctx_conformance.table import CheckFailed, CheckFunction, Skipped, check
from epctx_core import InferenceSession, Registry
from epctx_core.errors import EpctxError

if TYPE_CHECKING:
    from epctx_conformance.scene import Scene

PARTS = ("ab", "c", "def", "ghijklm", "nopq", "r", "s", "tuvwxyz")
"""First letters of the cases' names: a part is one check."""
SAMPLE = 13
"""Cases of each part in a run that is not full: about a hundred in all."""
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class NodeCase:
    """One case.

    Attributes:
        model: with the case's name.
        feeds: inputs by name.
        wanted: the expected outputs.
        tolerance: what the case itself allows, relative to the largest number.
    """

    model: SmallModel
    feeds: dict[str, Any]
    wanted: Sequence[Any]
    tolerance: float


@cache
def node_cases() -> tuple[NodeCase, ...]:
    """Return every case by name; making them takes some seconds."""
    from onnx.backend.test.case.node import collect_testcases

    drawn = np.random.get_state()  # noqa: NPY002 - onnx's cases set it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = collect_testcases(None)
    finally:
        np.random.set_state(drawn)  # noqa: NPY002
    return tuple(_case(case) for case in sorted(found, key=lambda case: case.name) if case.data_sets)


def _case(case: Any) -> NodeCase:
    inputs, wanted = case.data_sets[0]
    names = [value.name for value in case.model.graph.input]
    return NodeCase(
        model=SmallModel(case.name, case.model),
        feeds=dict(zip(names, inputs, strict=False)),
        wanted=wanted,
        tolerance=case.rtol,
    )


def sample(cases: Sequence[NodeCase], count: int, *, seed: int = 0) -> list[NodeCase]:
    """Return so many of the cases, always the same ones, in order."""
    if count >= len(cases):
        return list(cases)
    chosen = np.random.default_rng(seed).choice(len(cases), count, replace=False)
    return [cases[place] for place in sorted(chosen)]


def _of_part(letters: str) -> list[NodeCase]:
    return [case for case in node_cases() if case.model.name.removeprefix("test_")[:1] in letters]


def _is_told_by_the_cpu_ep(case: NodeCase, tolerance: float) -> bool:
    """Whether a case works without the EP."""
    try:
        with InferenceSession(case.model.data, registry=Registry(entry_points=False)) as session:
            return disagreement(session.run(None, case.feeds), case.wanted, tolerance=tolerance) is None
    except EpctxError:
        return False


def _fault(scene: Scene, case: NodeCase) -> tuple[bool, str | None]:
    """Return whether the EP claims something of a case, and what is wrong with what it makes of it."""
    tolerance = max(scene.requirements.tolerance, case.tolerance)
    try:
        if not scene.claimed(case.model):
            return False, None
        fault = _differs(scene, case, tolerance)
    except EpctxError as error:
        fault = f"{type(error).__name__}: {error.message}"
    if fault is not None and not _is_told_by_the_cpu_ep(case, tolerance):
        return False, None
    return True, fault


def _differs(scene: Scene, case: NodeCase, tolerance: float) -> str | None:
    """Say how results differ from the expected ones, compiled and, if the EP can, loaded."""
    different = disagreement(scene.run(case.model, case.feeds), case.wanted, tolerance=tolerance)
    if different is not None or not scene.requirements.export:
        return different
    loaded = scene.run(scene.compile(case.model).path, case.feeds)
    different = disagreement(loaded, case.wanted, tolerance=tolerance)
    return None if different is None else f"after a load {different}"


def _part(letters: str) -> CheckFunction:
    def function(scene: Scene) -> None:
        cases = _of_part(letters)
        claimed, faults = 0, []
        for case in cases if scene.full else sample(cases, SAMPLE):
            is_claimed, fault = _fault(scene, case)
            claimed += is_claimed
            faults += [f"{case.model.name}: {fault}"] if fault else []
        if faults:
            raise CheckFailed(
                f"{len(faults)} of {claimed} cases that the EP claims are wrong: {'; '.join(faults[:_SHOWN])}",
                hint="What the EP cannot compute it must not claim: refuse it in get_capability, with the reason.",
            )
        if not claimed:
            raise Skipped("the EP claims none of these cases")

    return function


for _letters in PARTS:
    _range = _letters[0] if len(_letters) == 1 else f"{_letters[0]} to {_letters[-1]}"
    check("node_models", f"onnx's own cases, {_range}: what is claimed gives the expected outputs")(
        _part(_letters)
    )
