"""Engines that compute on the CPU, and the matching of kernels to nodes. EPs may import it."""

from __future__ import annotations

from epctx_core.kernels.engines import CpuEngine, EnginePolicy
from epctx_core.kernels.matching import KernelMatcher, RegistryLookup, described

__all__ = ["CpuEngine", "EnginePolicy", "KernelMatcher", "RegistryLookup", "described"]
