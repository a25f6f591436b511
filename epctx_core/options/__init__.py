"""What a host asks for: session options by their keys and by value, and (in `run`) the options of a run.

Names, arguments and meanings are ONNX Runtime's; what of them epctx does not have is a table (`unsupported`).
"""

from __future__ import annotations

from epctx_core.options.choices import (
    DataReader,
    ExecutionMode,
    GraphOptimizationLevel,
    InputBudget,
    Isolation,
    ModelOverrides,
    OrtCompileApiFlags,
    Verification,
    WeightlessMode,
)
from epctx_core.options.session import CancellationFlag, SessionOptions
from epctx_core.options.table import SessionConfig

__all__ = [
    "CancellationFlag",
    "DataReader",
    "ExecutionMode",
    "GraphOptimizationLevel",
    "InputBudget",
    "Isolation",
    "ModelOverrides",
    "OrtCompileApiFlags",
    "SessionConfig",
    "SessionOptions",
    "Verification",
    "WeightlessMode",
]
