"""Conformance kit for EPs: forwards to the package epctx-conformance, where it is installed."""

from __future__ import annotations

# What `typing` calls so; see `epctx_core`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from epctx_conformance import *

_NAMES = (
    "GROUPS", "NEEDS", "CheckFailed", "CheckResult", "ConformanceReport", "Outcome", "ProviderConformance",
    "Requirements", "Skipped", "check_provider", "chosen_checks",
)  # fmt: skip
if not TYPE_CHECKING:  # they take a computed list for an empty one
    __all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    from epctx_core.forwarding import forward

    return forward(__name__, {"epctx_conformance": _NAMES}, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
