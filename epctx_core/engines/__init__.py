"""Engines that compute on the CPU, their choice, and the matching of EPs' kernels to nodes (`matching`)."""

from __future__ import annotations

from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.plugin import EnginePolicy

__all__ = ["CpuEngine", "EnginePolicy"]
