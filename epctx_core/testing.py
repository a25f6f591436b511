"""Conformance kit for EPs: forwards to the package epctx-conformance, where it is installed."""

from __future__ import annotations

# What `typing` calls so; see `epctx_core`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from epctx_conformance import (
        GROUPS,
        NEEDS,
        CheckFailed,
        CheckResult,
        ConformanceReport,
        Outcome,
        ProviderConformance,
        Requirements,
        Skipped,
        check_provider,
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


def __getattr__(name: str) -> Any:
    """Import a name from the kit.

    Raises:
        PackageMissing: epctx-conformance is not installed.
    """
    if name not in __all__:
        raise AttributeError(f"module 'epctx_core.testing' has no attribute {name!r}")
    try:
        import epctx_conformance
    except ModuleNotFoundError as error:
        if error.name != "epctx_conformance":
            raise
        from epctx_core.errors import PackageMissing

        raise PackageMissing(
            "the conformance kit (epctx_core.testing) is in the package epctx-conformance, which is not installed.",
            hint="pip install epctx-conformance",
        ) from error
    return getattr(epctx_conformance, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
