"""Which pieces of a session on the CPU are optimised."""

from __future__ import annotations

import numpy as np
import pytest
from end_to_end.small_models import saved
from engines.networks import convolution_and_normalisation
from epctx_onnxruntime.engine import OnnxRuntimeEngine

import epctx_core as epctx

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
