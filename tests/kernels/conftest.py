"""The engine of one session."""

from __future__ import annotations

import pytest

from epctx_core.kernels import CpuEngine, EnginePolicy


@pytest.fixture
def engine():
    return CpuEngine(EnginePolicy())
