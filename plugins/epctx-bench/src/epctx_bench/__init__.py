"""Measurements: what compiling, loading and running models costs, beside onnxruntime
and vendors.

Owns how it is measured and judged; `epctx_core` compiles, loads and runs.
"""

from __future__ import annotations

from epctx_bench.profile import Profile

__all__ = ["Profile"]
