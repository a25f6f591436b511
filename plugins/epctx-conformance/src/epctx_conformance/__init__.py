"""Conformance kit of epctx: checks any EP against the contract and says what to fix.

`ProviderConformance` is for an EP's own tests, `check_provider` for everything else.
Importing this package imports neither pytest nor onnx.
"""

from __future__ import annotations

from epctx_conformance.report import CheckResult, ConformanceReport, Outcome
from epctx_conformance.runner import ProviderConformance, check_provider
from epctx_conformance.table import (
    GROUPS,
    NEEDS,
    CheckFailed,
    Requirements,
    Skipped,
    chosen_checks,
)

__all__ = [
    "GROUPS",
    "NEEDS",
    "CheckFailed",
    "CheckResult",
    "ConformanceReport",
    "Outcome",
    "ProviderConformance",
    "Requirements",
    "Skipped",
    "check_provider",
    "chosen_checks",
]
