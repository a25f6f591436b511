"""The conformance kit: holds any EP against the contract, and says what to mend.

`ProviderConformance` is for an EP's own tests, `check_provider` for everything else. Importing this
package imports neither pytest nor onnx.
"""

from __future__ import annotations

from epctx_core.testing.pytest_case import ProviderConformance
from epctx_core.testing.report import CheckResult, ConformanceReport
from epctx_core.testing.requirements import Requirements
from epctx_core.testing.runner import check_provider
from epctx_core.testing.table import CheckFailed, Skipped

__all__ = [
    "CheckFailed",
    "CheckResult",
    "ConformanceReport",
    "ProviderConformance",
    "Requirements",
    "Skipped",
    "check_provider",
]
