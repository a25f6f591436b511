"""Barriers around a model that is compiled for an EP."""

from __future__ import annotations

import numpy as np
import pytest
from epctx_onnxruntime.providers.layout import enclose
from onnx import TensorProto, checker, numpy_helper
from support.graph_models import model, node, value

pytestmark = pytest.mark.internal


def test_a_barrier_reads_an_output_before_any_other_node_does():
    float32 = TensorProto.FLOAT
    made = model(
        [
            node("Relu", ["x"], ["shared"]),
            node("Neg", ["shared"], ["y"]),
            node("Abs", ["shared"], ["z"]),
        ],
        [value("x", float32, [2])],
        [value(name, float32, [2]) for name in ("shared", "y", "z")],
    )

    enclosed = enclose(made, {"x", "y", "z"})

    readers = [n.op_type for n in enclosed.graph.node if "shared" in n.input]
    assert readers == ["SequenceConstruct", "Neg", "Abs"]
    checker.check_model(enclosed)


def test_an_output_that_no_node_makes_stays_as_it_is():
    float32 = TensorProto.FLOAT
    made = model(
        [node("Relu", ["x"], ["y"])],
        [value("x", float32, [2])],
        [value(name, float32, [2]) for name in ("constant", "y")],
        initializers=[numpy_helper.from_array(np.ones(2, np.float32), "constant")],
    )

    enclosed = enclose(made, {"x"})

    outputs = [output.name for output in enclosed.graph.output]
    assert outputs == ["constant", "epctx_outside/y"]
    checker.check_model(enclosed)
