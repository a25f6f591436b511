"""Conformance kit for EPs: forwards to the package epctx-conformance if it is
installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.forwarding import make_forwarders as _make_forwarders

if TYPE_CHECKING:
    from epctx_conformance import *

_HOME = {
    "epctx_conformance": (
        "GROUPS", "NEEDS", "CheckFailed", "CheckResult", "ConformanceReport", "Outcome",
        "ProviderConformance", "Requirements", "Skipped", "check_provider",
        "chosen_checks",
    ),
}  # fmt: skip
if not TYPE_CHECKING:  # they take a computed list for an empty one
    __all__ = list(_HOME["epctx_conformance"])
    __getattr__, __dir__ = _make_forwarders(__name__, _HOME)
