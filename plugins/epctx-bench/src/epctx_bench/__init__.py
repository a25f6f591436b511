"""Measurements: what compiling, loading and running models costs, beside onnxruntime
and vendors; errors of results by partition; and profiles.

Owns how it is measured, judged and recorded; `epctx_core` compiles, loads and runs.
Names are imported on first use: a profile needs nothing of measuring.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctx_bench.columns import ColumnReport, Row
    from epctx_bench.gate import JudgedRow, Judgement, Verdict, judge
    from epctx_bench.measuring import bench
    from epctx_bench.noise import Noise
    from epctx_bench.partition_errors import PartitionErrors, compare_partitions
    from epctx_bench.profile import Profile
    from epctx_bench.report import BenchReport, read_schema
    from epctx_bench.saved import load_report
    from epctx_bench.settings import BenchSettings

__all__ = [
    "BenchReport",
    "BenchSettings",
    "ColumnReport",
    "JudgedRow",
    "Judgement",
    "Noise",
    "PartitionErrors",
    "Profile",
    "Row",
    "Verdict",
    "bench",
    "compare_partitions",
    "judge",
    "load_report",
    "read_schema",
]

_HOME = {
    "bench": "measuring",
    "JudgedRow": "gate",
    "Judgement": "gate",
    "Verdict": "gate",
    "judge": "gate",
    "Noise": "noise",
    "load_report": "saved",
    "PartitionErrors": "partition_errors",
    "compare_partitions": "partition_errors",
    "Profile": "profile",
    "BenchReport": "report",
    "ColumnReport": "columns",
    "Row": "columns",
    "read_schema": "report",
    "BenchSettings": "settings",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
