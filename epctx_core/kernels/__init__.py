"""Engines that compute on the CPU, and the matching of kernels to nodes (`matching`). EPs may import it."""

from __future__ import annotations

from epctx_core.kernels.cpu_engine import CpuEngine
from epctx_core.kernels.engines import EnginePolicy

__all__ = ["CpuEngine", "EnginePolicy"]
