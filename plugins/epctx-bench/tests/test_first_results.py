"""Times to the first result of real small models."""

from __future__ import annotations

import pytest
from epctx_bench import measure_first_results

from epctx_core.errors import InvalidArgument, NoSuchFile


def test_both_models_have_a_time_for_each_turn(folder):
    found = measure_first_results(
        folder / "fixed_ctx.onnx", folder / "fixed.onnx", turns=2, time_limit=200
    )

    assert len(found.context) == len(found.source) == 2
    assert all(0 < sample < 60 for sample in (*found.context, *found.source))
    assert found.simulated == ["QNNExecutionProvider"]


def test_the_time_limit_ends_after_one_turn_and_given_modules_need_no_rehearsal(folder):
    found = measure_first_results(
        folder / "fixed_ctx.onnx",
        folder / "fixed.onnx",
        turns=50,
        time_limit=0,
        modules=["onnxruntime"],
    )

    assert len(found.context) == len(found.source) == 1


def test_a_missing_source_and_no_turns_are_refused(folder):
    with pytest.raises(NoSuchFile, match="absent"):
        measure_first_results(folder / "fixed_ctx.onnx", folder / "absent.onnx")
    with pytest.raises(InvalidArgument, match="turns is 0"):
        measure_first_results(folder / "fixed_ctx.onnx", folder / "fixed.onnx", turns=0)
