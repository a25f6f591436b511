"""Agreement on the models of single operators that onnx provides.

Not to claim one is fine; to fail on it, or to compute it wrongly, is not. A case whose
expected outputs the CPU EP does not give either says nothing about an EP: some draw
random numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import load_from_string

from epctx_conformance.harness import disagreement
from epctx_conformance.models import SmallModel
from epctx_conformance.node_cases import make_checks
from epctx_conformance.table import check
from epctx_core import InferenceSession, Registry
from epctx_core.errors import EpctxError

if TYPE_CHECKING:
    from epctx_conformance.cases.case import Case
    from epctx_conformance.harness import Harness


def _assess(harness: Harness, case: Case) -> str | None:
    """Return what is wrong with a case's results, compiled and loaded, empty for
    nothing; None for a case of which the EP claims nothing.
    """
    model = SmallModel(case.name, load_from_string(case.model()))
    tolerance = max(harness.requirements.tolerance, case.rtol)
    try:
        if not harness.claimed(model):
            return None
        fault = _find_fault(harness, model, case, tolerance)
    except EpctxError as error:
        fault = f"{type(error).__name__}: {error.message}"

    if not fault:
        return ""
    return f"{case.name}: {fault}" if _is_telling(model, case, tolerance) else None


def _find_fault(
    harness: Harness, model: SmallModel, case: Case, tolerance: float
) -> str | None:
    data = case.data()[0]
    results = harness.run(model, data.inputs)
    fault = disagreement(results, data.outputs, tolerance=tolerance)
    if fault is not None or not harness.requirements.export:
        return fault

    loaded = harness.run(harness.compile(model), data.inputs)
    fault = disagreement(loaded, data.outputs, tolerance=tolerance)
    return fault and f"after a load {fault}"


def _is_telling(model: SmallModel, case: Case, tolerance: float) -> bool:
    """Return whether the case works without the EP."""
    data = case.data()[0]
    try:
        with InferenceSession(
            model.data, registry=Registry(entry_points=False)
        ) as session:
            results = session.run(None, data.inputs)
    except EpctxError:
        return False
    return disagreement(results, data.outputs, tolerance=tolerance) is None


for _title, _function in make_checks(
    "what it claims gives the expected outputs",
    _assess,
    counted="the EP claims",
    hint="Refuse in get_capability, with the reason, what the EP cannot compute.",
):
    check("node_models", _title)(_function)
