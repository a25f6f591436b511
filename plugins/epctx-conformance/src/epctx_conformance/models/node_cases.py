"""The models of single operators that the onnx package brings for tests, with inputs and expected outputs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from epctx_conformance.models.building import SmallModel


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
