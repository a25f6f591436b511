"""Pieces of the default CPU EP: one that is alone is run as onnxruntime would, of
several the heavy ones are optimised.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from epctx_onnxruntime import engine, optimiser
from support.graph_reading import indexed, opened
from support.optimised_networks import WIDE, convolution_and_normalisation

from epctx_core.context.paths import ModelFolder
from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.graph.extraction import NodeGroup
from epctx_core.plugin import EnginePolicy

pytestmark = pytest.mark.internal

X = np.random.default_rng(5).standard_normal((1, 3, 16, 16), np.float32)


@pytest.fixture
def optimised(monkeypatch):
    """The models that were optimised before they were prepared."""
    seen = []
    real = optimiser.optimize

    def noted(given, *rest):
        seen.append(given)
        return real(given, *rest)

    monkeypatch.setattr(optimiser, "optimize", noted)
    return seen


def whole(source):
    graph = indexed(source)
    return NodeGroup(graph, range(len(graph.nodes)))


def prepared(piece, pieces=2):
    return CpuEngine(EnginePolicy(optimizes=True, pieces=pieces)).prepare_group(
        piece.model(), piece.weights
    )


def wanted(made, x=X):
    return onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})


def test_weights_in_memory_are_optimised_in_the_session_that_runs_them(optimised):
    made = convolution_and_normalisation()

    handle = prepared(whole(opened(made)))

    assert not optimised
    np.testing.assert_allclose(
        handle.run([X])[0], wanted(made)[0], rtol=1e-4, atol=1e-4
    )


@pytest.fixture
def source_in_a_file(tmp_path):
    onnx.save(
        convolution_and_normalisation(),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    folder = ModelFolder(tmp_path)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    return opened(
        proto, lambda name, tensor: folder.open(name, what="weights", node=tensor)
    )


def test_weights_in_a_file_stay_there(source_in_a_file, optimised):
    handle = prepared(whole(source_in_a_file))

    assert len(optimised) == 1
    np.testing.assert_allclose(
        handle.run([X])[0], wanted(convolution_and_normalisation())[0], atol=1e-4
    )


def test_the_only_piece_of_a_session_is_onnxruntimes_to_optimise_and_to_map(
    source_in_a_file, optimised
):
    handle = prepared(whole(source_in_a_file), pieces=1)

    assert not optimised
    assert np.array_equal(
        handle.run([X])[0], wanted(convolution_and_normalisation())[0]
    )


def test_weights_that_no_optimiser_changes_are_not_copied_above_a_limit(
    monkeypatch, optimised
):
    made = convolution_and_normalisation()
    monkeypatch.setattr(engine, "PREPACK_LIMIT", 14 * WIDE * 4 - 1)

    prepared(whole(opened(made)))

    assert len(optimised) == 1
