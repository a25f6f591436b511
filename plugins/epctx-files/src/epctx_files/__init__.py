"""Work on the files of models: sealing.

Owns how files are put together and taken apart; `epctx_core` compiles, loads, verifies
and publishes. Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctx_files.sealing import SealReport, seal_model

__all__ = ["SealReport", "seal_model"]

_HOME = {"SealReport": "sealing", "seal_model": "sealing"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
