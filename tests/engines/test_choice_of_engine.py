"""The engine of a node follows from the operators that engines take, never from
onnxruntime's messages.
"""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

import epctx_core as epctx

LSTM = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2,3,4] x, float[1,20,4] w, float[1,20,5] r) => (float[2,3,1,5] y) {
        [first] a = Relu(x)
        [second] b = LSTM<hidden_size = 5, layout = 1>(a, w, r)
        [third] y = Neg(b)
    }"""
"""onnxruntime has an LSTM, and refuses this one when it makes the kernel: batches in
front.
"""


def drawn(*shape):
    return np.random.default_rng(5).standard_normal(shape, np.float32)


def test_a_node_that_onnxruntime_refuses_in_any_words_runs_on_the_reference_and_the_log_says_so(
    caplog,
):
    model = parser.parse_model(LSTM)
    feeds = {"x": drawn(2, 3, 4), "w": drawn(1, 20, 4), "r": drawn(1, 20, 5)}
    with pytest.raises(Exception, match="layout"):
        onnxruntime.InferenceSession(model.SerializeToString())

    with caplog.at_level(logging.INFO, "epctx.engines"):
        session = epctx.InferenceSession(model.SerializeToString())

    said = [record.getMessage() for record in caplog.records]
    assert any(
        "onnxruntime" in text and "runs 1 node of the model (Relu 'first')" in text
        for text in said
    )
    assert any(
        "onnx.reference" in text and "runs 1 node of the model (LSTM 'second')" in text
        for text in said
    )
    model.graph.node[1].attribute[1].i = 0
    turned = {**feeds, "x": feeds["x"].swapaxes(0, 1)}
    for values, shape in (
        (model.graph.input[0], (3, 2, 4)),
        (model.graph.output[0], (3, 1, 2, 5)),
    ):
        for dimension, length in zip(
            values.type.tensor_type.shape.dim, shape, strict=True
        ):
            dimension.dim_value = length
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(
        None, turned
    )[0]
    np.testing.assert_allclose(
        session.run(None, feeds)[0], expected.transpose(2, 0, 1, 3), atol=1e-6
    )


def test_the_node_that_no_engine_has_is_named_though_its_operator_is_called_like_anothers():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="Neg"),
        helper.make_node("Neg", ["a"], ["b"], name="plain"),
        helper.make_node("Neg", ["b"], ["y"], name="special", domain="made.up"),
    ]
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4])
        for name in "xy"
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("made.up", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)

    with pytest.raises(
        epctx.EpctxError, match=r"node 'special' \(made\.up::Neg\)"
    ) as caught:
        epctx.InferenceSession(model.SerializeToString())

    assert type(caught.value).__name__ == "NotImplementedByProvider"
    assert caught.value.node == "special"


def test_nodes_that_share_a_name_run_on_onnxruntime(caplog):
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[4] x, bool c) => (float[4] y) {
            [same] a = Relu(x)
            [same] b = Neg(a)
            y = If(c)<
                then_branch = t () => (float[4] d) { [same] d = Neg(b) },
                else_branch = e () => (float[4] f) { [same] e1 = Abs(b) [same] f = Neg(e1) }
            >
        }"""
    )

    with caplog.at_level(logging.WARNING, "epctx.engines"):
        session = epctx.InferenceSession(model.SerializeToString())

    assert not caplog.records
    found = session.run(
        None, {"x": np.array([1, -2, 3, -4], np.float32), "c": np.array(False)}
    )[0]
    assert found.tolist() == [-1, 0, -3, 0]


def test_a_model_that_inference_proves_wrong_is_refused_as_wrong():
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[4] x, int64[4] i) => (float[4] y) {
            [one] a = Relu(x)
            [two] y = Add(a, i)
        }"""
    )

    with pytest.raises(epctx.EpctxError, match="two") as caught:
        epctx.InferenceSession(model.SerializeToString())

    assert type(caught.value).__name__ == "InvalidGraph"
