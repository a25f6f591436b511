"""Which pieces of a session on the CPU are optimised."""

from __future__ import annotations

import numpy as np
import pytest
from epctx_onnxruntime.engine import OnnxRuntimeEngine
from support.optimised_networks import convolution_and_normalisation
from support.small_models import saved

import epctx_core as epctx

pytestmark = pytest.mark.internal

LEVEL = epctx.GraphOptimizationLevel


@pytest.fixture
def source(tmp_path):
    return saved(convolution_and_normalisation(), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("number", "count"),
    [
        (LEVEL.ORT_DISABLE_ALL, 0),
        (LEVEL.ORT_ENABLE_ALL, 1),
        (LEVEL.ORT_ENABLE_LAYOUT, 1),
        (LEVEL.ORT_ENABLE_BASIC, 0),
    ],
)
def test_a_sessions_pieces_on_the_cpu_are_optimised_by_default_only(
    source, monkeypatch, number, count
):
    asked, real = [], OnnxRuntimeEngine.prepare_optimized
    monkeypatch.setattr(
        OnnxRuntimeEngine,
        "prepare_optimized",
        lambda self, *given: asked.append(given) or real(self, *given),
    )
    options = epctx.SessionOptions()
    options.graph_optimization_level = number

    epctx.InferenceSession(source, options).run(
        None, {"x": np.ones((1, 3, 16, 16), np.float32)}
    )

    assert len(asked) == count
