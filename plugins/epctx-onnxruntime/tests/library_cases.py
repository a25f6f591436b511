"""Cases for checks of libraries: right ones, and ones that end or stop the process.

Children import them by name.
"""

from __future__ import annotations

import os
import time

import numpy as np
import onnx
from epctx_conformance.cases.case import Case, Data

RELU = "agraph (float[3] x) => (float[3] y) { y = Relu(x) }"
X = np.array([-1, 0, 2], np.float32)
HOSTILE = '<script>alert("1")</script>&\'=$(id)'


def load_cases() -> dict[str, Case]:
    """Return all cases."""
    given = {"x": X}
    made = [
        _case("right", RELU, given, [0, 0, 2]),
        _case("near", RELU, given, [0, 0, 2.01]),
        _case(
            "in_part",
            "agraph (float[3] x) => (float[3] y) { a = Relu(x) s = SequenceConstruct(a)"
            " i = Constant <value = int64 {0}> () b = SequenceAt(s, i) y = Relu(b) }",
            given,
            [0, 0, 2],
        ),
        _case(
            "behind_a_sequence",
            "agraph (seq(float[3]) s) => (float[3] y) { i = Constant <value = int64 "
            "{0}> () b = SequenceAt(s, i) y = Relu(b) }",
            {"s": [X]},
            [0, 0, 2],
        ),
        _case(HOSTILE, RELU, given, [1, 1, 1]),
        # There is no kernel for doubles.
        _case(
            "lacking",
            "agraph (double[3] x) => (double[3] y) { y = HardSwish(x) }",
            {"x": X},
            X,
        ),
        _case(
            "refused",
            "agraph (float[3] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }",
            {"x": X, "i": np.array([7])},
            [0],
        ),
        Case(
            name="unknown",
            model=_bytes_of(RELU),
            data=lambda: [Data(inputs=given, outputs=[])],
        ),
        Case(
            name="two_tolerances",
            model=_bytes_of(
                "agraph (float[3] x) => (float[3] y, float[3] z) { y = Relu(x) z = "
                "Neg(x) }"
            ),
            data=lambda: [
                Data(
                    inputs=given,
                    outputs=[np.float32([0.1, 0, 2]), np.float32([1, 0, -2])],
                ),
            ],
            atol=(0.2, 1e-7),
        ),
        Case(name="crash", model=_bytes_of(RELU), data=os.abort),
        Case(name="hang", model=_bytes_of(RELU), data=lambda: time.sleep(600)),  # type: ignore[arg-type]
    ]
    return {case.name: case for case in made}


def _bytes_of(text):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]>' + text)
    return model.SerializeToString


def _case(name, text, inputs, expected):
    data = [Data(inputs=inputs, outputs=[np.asarray(expected, np.float32)])]
    return Case(name=name, model=_bytes_of(text), data=lambda: data)
