"""Rotary embeddings: an imported program computes what was compiled."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_models import FLOAT, model_of

INPUTS = {
    "x": (FLOAT, [2, 4, 3, 8]),
    "cos": (FLOAT, [2, 3, 4]),
    "sin": (FLOAT, [2, 3, 4]),
}
ROTATION = [
    helper.make_node("Unsqueeze", ["cos", "one"], ["c"]),
    helper.make_node("Unsqueeze", ["sin", "one"], ["s"]),
    helper.make_node("Slice", ["x", "zero", "half", "last"], ["a"]),
    helper.make_node("Slice", ["x", "half", "whole", "last"], ["b"]),
    *(helper.make_node("Mul", list(pair), [pair]) for pair in ("ac", "bs", "bc", "as")),
    helper.make_node("Sub", ["ac", "bs"], ["real"]),
    helper.make_node("Add", ["bc", "as"], ["imaginary"]),
    helper.make_node("Concat", ["real", "imaginary"], ["y"], axis=3),
]
INDICES = {
    name: np.array([i])
    for name, i in {"zero": 0, "one": 1, "last": 3, "half": 4, "whole": 8}.items()
}


def operator(interleaved):
    node = helper.make_node(
        "RotaryEmbedding", list(INPUTS), ["y"], interleaved=interleaved
    )
    return model_of([node], INPUTS, {"y": INPUTS["x"]}, opset=23)


@pytest.mark.parametrize(
    ("model", "interleaved"),
    [
        pytest.param(operator(interleaved=0), False, id="operator"),
        pytest.param(operator(interleaved=1), True, id="interleaved-operator"),
        pytest.param(
            model_of(ROTATION, INPUTS, {"y": INPUTS["x"]}, INDICES), False, id="nodes"
        ),
    ],
)
def test_tables_of_half_a_head_are_read_alike_after_an_import(
    harness, compile_into, model, interleaved
):
    numbers = np.random.Generator(np.random.PCG64(5))
    inputs = {
        name: numbers.standard_normal(kind[1], dtype=np.float32)
        for name, kind in INPUTS.items()
    }
    x, cos, sin = inputs["x"], inputs["cos"][:, None], inputs["sin"][:, None]
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :4], x[..., 4:])
    real, imaginary = a * cos - b * sin, b * cos + a * sin
    rotated = (
        np.stack([real, imaginary], -1).reshape(x.shape)
        if interleaved
        else np.concatenate([real, imaginary], -1)
    )

    path, report = compile_into(harness, model)

    assert not report.refusals
    for source in (model, path):
        np.testing.assert_allclose(
            harness.run(source, inputs)[0], rotated, rtol=1e-5, atol=1e-5
        )
