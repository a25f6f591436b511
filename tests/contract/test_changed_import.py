"""Hosts that change their import: functions of the module, runs with a callback."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from support.small_models import example

import epctx_core as epctx
from epctx_core import InvalidArgument

CPU = "CPUExecutionProvider"


@pytest.mark.parametrize(
    "name", ["set_providers", "enable_fallback", "disable_fallback"]
)
def test_what_would_change_the_providers_of_a_session_is_of_the_drop_in(source, name):
    with (
        epctx.InferenceSession(source) as opened,
        pytest.raises(AttributeError, match="EPs are fixed when it is made"),
    ):
        getattr(opened, name)


def test_run_async_calls_back_with_results_or_the_error_like_onnxruntime(source):
    said = {}
    for ort in (onnxruntime, epctx):
        opened = ort.InferenceSession(str(source), providers=[CPU])
        name, calls, done = opened.get_inputs()[0].name, [], threading.Semaphore(0)

        def callback(results, user_data, error, calls=calls, done=done):
            calls.append((results, user_data, error))
            done.release()

        for feed in ({name: example()}, {name: np.zeros((7, 7, 7), np.float32)}):
            opened.run_async(None, feed, callback, "mine")
            assert done.acquire(timeout=60)
        said[ort] = calls
    (right, mine, error), (nothing, _, why) = said[epctx]
    np.testing.assert_allclose(right[0], said[onnxruntime][0][0][0], rtol=1e-6)
    assert (mine, error, nothing) == ("mine", "", [])
    assert name in why
    with pytest.raises(InvalidArgument, match="takes a function"):
        opened.run_async(None, {}, None, None)


def test_close_waits_for_what_run_async_accepted(source):
    results = []
    opened = epctx.InferenceSession(source)

    for _ in range(4):
        opened.run_async(
            None,
            {"x": example()},
            lambda given, _user, error: results.append((given, error)),
            None,
        )
    opened.close()

    until = time.monotonic() + 30
    while len(results) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    assert [error for _, error in results] == [""] * 4


def test_functions_of_the_module_are_there(caplog):
    assert epctx.get_device() == onnxruntime.get_device() == "CPU"
    assert epctx.get_version_string() == epctx.__version__
    assert set(epctx.get_available_providers()) <= set(epctx.get_all_providers())
    assert epctx.get_all_providers()[-1] == CPU
    logger = logging.getLogger("epctx")
    before = logger.level
    try:
        epctx.set_default_logger_severity(3)
        assert logger.level == logging.ERROR
    finally:
        logger.setLevel(before)
    for function, wrong in (
        (epctx.set_default_logger_severity, 5),
        (epctx.set_seed, 0.5),
    ):
        with pytest.raises(InvalidArgument):
            function(wrong)
    epctx.set_default_logger_verbosity(1)
    epctx.enable_telemetry_events()
    epctx.disable_telemetry_events()


def test_a_seed_makes_random_operators_repeatable(tmp_path):
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g () => (float[4] y) { y = '
        "RandomNormal<shape = [4]>() }"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "r.onnx")
    drawn = []
    for seed in (7, 7, 8):
        epctx.set_seed(seed)
        with epctx.InferenceSession(tmp_path / "r.onnx") as opened:
            drawn.append(opened.run(None, {})[0].tolist())

    assert drawn[0] == drawn[1] != drawn[2]
