"""Runs two models on the same inputs, one after the other. Knows sessions, prints nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epctx_cli.agreement import Difference, Tolerance, compare_all
from epctx_cli.arrays import load_inputs, make_inputs
from epctx_core.session import InferenceSession

if TYPE_CHECKING:
    from epctx_core.options import SessionOptions
    from epctx_core.registry import PluginRecord


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two: a model and how it is loaded."""

    model: str
    options: SessionOptions


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Both results, compared by output.

    Attributes:
        inputs: what both were run on.
        providers: the EPs of each.
        plugins: those of their EPs that plugins provide.
    """

    differences: list[Difference]
    inputs: Mapping[str, Any]
    providers: tuple[list[str], list[str]]
    plugins: tuple[list[PluginRecord], list[PluginRecord]]


def run_both(
    a: Side, b: Side, *, tolerance: Tolerance, input_path: str | None = None, seed: int = 0
) -> Outcome:
    """Run both and compare; `b` is the reference.

    Args:
        a, b: the models.
        tolerance: what counts as equal.
        input_path: a `.npz` file, or None to make inputs for `a` from the seed.
        seed: see `make_inputs`.

    Raises:
        EpctxError: a model cannot be loaded or run; see `InferenceSession`.
    """
    with InferenceSession(a.model, a.options) as session:
        wanted = session.get_inputs()
        inputs = make_inputs(wanted, seed) if input_path is None else load_inputs(input_path, wanted)
        first, first_eps = _results(session, inputs), session.get_providers()
        first_plugins = session.get_provider_records()
    with InferenceSession(b.model, b.options) as session:
        second, second_eps = _results(session, inputs), session.get_providers()
        second_plugins = session.get_provider_records()
    return Outcome(
        differences=compare_all(first, second, tolerance),
        inputs=inputs,
        providers=(first_eps, second_eps),
        plugins=(first_plugins, second_plugins),
    )


def _results(session: InferenceSession, inputs: Mapping[str, Any]) -> dict[str, Any]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))
