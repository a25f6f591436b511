"""Engines that compute on the CPU, and the matching of kernels to nodes (`matching`). EPs may import it."""

from __future__ import annotations

from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.engines.interface import EnginePolicy

__all__ = ["CpuEngine", "EnginePolicy"]
