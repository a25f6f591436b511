"""Engines that compute on the CPU, and the matching of kernels to nodes (`matching`). EPs may import it."""

from __future__ import annotations

from epctx_core.kernels.engines import CpuEngine, EnginePolicy

__all__ = ["CpuEngine", "EnginePolicy"]
