"""Pages that show how models are cut, what they consist of, and what could be better.

`make_report` collects what `epctx_core` knows of a model, and a `Report` writes it as
one page, which needs no network and no other file. Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctx_report.measurements import Measurements
    from epctx_report.report import Report, make_report

__all__ = ["Measurements", "Report", "make_report"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.report"), name)
