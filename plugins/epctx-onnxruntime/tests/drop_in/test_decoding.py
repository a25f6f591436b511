"""A decoder's loop by `io_binding` gives onnxruntime's tokens, and copies no cache."""

from __future__ import annotations

import epctx_onnxruntime
import numpy as np
import onnx
import onnxruntime
import pytest
from drop_in.decoders import decode_fixed, decode_growing, make_fixed
from epctx_onnxruntime.engine import OnnxRuntimeModel
from support.folders import CAMPAIGNS

import epctx_core

pytestmark = pytest.mark.internal

MODELS = CAMPAIGNS / "zoo" / "models"
STEPS = 200


@pytest.fixture
def runs(monkeypatch):
    """Return a list that gets the addresses of inputs and outputs of each run of the
    engine.
    """
    seen = []
    run = OnnxRuntimeModel.run

    def noting(self, inputs, outputs=None):
        results = run(self, inputs, outputs)
        seen.append(tuple({a.ctypes.data for a in each} for each in (inputs, results)))
        return results

    monkeypatch.setattr(OnnxRuntimeModel, "run", noting)
    return seen


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("transformers_llama_cached", STEPS),
        ("transformers_gpt2_cached", 64),  # its positions
    ],
)
def test_a_cache_that_grows_is_handed_on_from_step_to_step(name, steps, runs):
    path = MODELS / f"{name}.onnx"
    expected = decode_growing(onnxruntime.InferenceSession(path), steps)
    given = []

    def note(binding):
        given.append({value.data_ptr() for value in binding.get_outputs()[1:]})

    with epctx_onnxruntime.InferenceSession(path) as session:
        tokens = decode_growing(session, steps, note)

    assert tokens == expected
    assert len(set(tokens)) > 1
    assert len(runs) == steps
    # What the engine made is what the host gets, and what the next run reads.
    copies = [
        step
        for step in range(steps)
        if not given[step] <= runs[step][1]
        or (step and not given[step - 1] <= runs[step][0])
    ]
    assert copies == []


def test_a_cache_of_fixed_length_stays_in_the_hosts_memory(tmp_path, runs):
    path = tmp_path / "decoder.onnx"
    onnx.save(make_fixed(), path)
    expected = decode_fixed(onnxruntime, onnxruntime.InferenceSession(path), STEPS)
    given = []

    def note(binding):
        given.append({value.data_ptr() for value in binding.get_outputs()})

    with epctx_onnxruntime.InferenceSession(path) as session:
        tokens = decode_fixed(epctx_onnxruntime, session, STEPS, note)

    assert tokens == expected
    assert len(set(tokens)) > 1
    assert [outputs for _, outputs in runs] == given
    # Logits, and two sets of the cache.
    assert len(set().union(*given)) == 1 + 2 * 4


def test_an_ep_writes_a_decoders_cache_into_the_hosts_memory(tmp_path, runs):
    path = tmp_path / "decoder.onnx"
    onnx.save(make_fixed(), path)
    expected = decode_fixed(onnxruntime, onnxruntime.InferenceSession(path), STEPS)
    options = epctx_core.SessionOptions()
    options.add_provider("OpenVINO")
    given = []

    def note(binding):
        given.append({value.data_ptr() for value in binding.get_outputs()})

    report = epctx_core.ModelCompiler(options, path).compile_to_file()

    with epctx_onnxruntime.InferenceSession(report.output) as session:
        assert session.get_providers()[0] == "OpenVINOExecutionProvider"
        runs.clear()
        tokens = decode_fixed(epctx_onnxruntime, session, STEPS, note)

    assert report.compiled
    assert [outputs for _, outputs in runs] == given
    assert tokens == expected
    assert np.asarray(expected).std() > 0
