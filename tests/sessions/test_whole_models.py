"""A plain model of which no EP is asked is handed to onnxruntime as it is: nothing of it
is typed or cut.
"""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from support.folders import MODELS

import epctx_core as epctx

NETWORKS = ("bert", "lstm", "resnet")


def parsed(text):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    return model.SerializeToString()


def recording():
    """Return options of a session that looks at each node."""
    options = epctx.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def signature(session):
    return [
        (value.name, value.type, value.shape)
        for value in (*session.get_inputs(), *session.get_outputs())
    ]


@pytest.mark.parametrize(
    "model",
    [
        *(str(MODELS / network / "model.onnx") for network in NETWORKS),
        parsed("g (float[n, 2] x) => (float[m, k] y) {y = Transpose (x)}"),
        parsed("g (float[n, 2] x) => (float y) {y = ReduceSum <keepdims = 0> (x)}"),
        parsed("g (float[n] x) => (int64[1] y) {y = Shape (x)}"),
        parsed("g (float[n] x) => (float[] y) {y = Relu (x)}"),
        parsed("g (float[2] x) => (seq(float[2]) y) {y = SequenceConstruct (x, x)}"),
        parsed("g (float[2] x) => (float[3] y) {y = Relu (x)}"),
        parsed("g (float[n] x) => (float[3, 1] y) {y = Relu (x)}"),
        parsed("g (string[n] x) => (string[n] y) {y = Identity (x)}"),
    ],
)
def test_inputs_and_outputs_are_those_that_onnxruntime_shows(model):
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    expected = signature(
        onnxruntime.InferenceSession(model, quiet, providers=["CPUExecutionProvider"])
    )

    with epctx.InferenceSession(model) as session:
        assert signature(session) == expected


@pytest.mark.parametrize(
    "text",
    [
        "g (float[n] x) => (int64[1] y) <float[3] h> {h = Relu (x)  y = Shape (h)}",
        "g (float[n] x) => (float[3] h, int64[1] y) {h = Relu (x)  y = Shape (h)}",
        (
            "g (bool c, float[n] x) => (int64[1] y) {"
            "y = If (c) <then_branch = t () => (int64[1] v) <float[3] h> "
            "{h = Relu (x)  v = Shape (h)},"
            "else_branch = e () => (int64[1] v) {v = Shape (x)}> }"
        ),
        (
            "g (bool c, float[n] x) => (int64[1] y) {"
            "h = If (c) <then_branch = t () => (float[3] v) {v = Relu (x)},"
            "else_branch = e () => (float[3] v) {v = Neg (x)}>  y = Shape (h)}"
        ),
        (
            "g (bool c, float[n] x) => (float[m] h, int64[1] y) {"
            "h, y = If (c) <"
            "then_branch = t () => (float[3] v, int64[1] s) {v = Relu (x)  s = Shape (v)},"
            "else_branch = e () => (float[3] v, int64[1] s) {v = Neg (x)  s = Shape (v)}> }"
        ),
        (
            "g (float[1, n] x) => (float[1, m] h, int64[1, 1] y) {"
            "h, y = Scan <num_scan_inputs = 1, "
            "body = b (float[3] a) => (float[3] v, int64[1] s) "
            "{v = Relu (a)  s = Shape (a)}> (x)}"
        ),
    ],
    ids=[
        "inner value",
        "output",
        "value in a subgraph",
        "output of a subgraph",
        "output of a subgraph that is read there",
        "input of a subgraph",
    ],
)
def test_a_wrong_declared_length_changes_no_result(text):
    with epctx.InferenceSession(parsed(text)) as session:
        feeds = {
            value.name: np.ones(
                [5 if length == "n" else length for length in value.shape],
                value.tensor_type.dtype,
            )
            for value in session.get_inputs()
        }
        *_, result = session.run(None, feeds)

    assert result.ravel().tolist() == [5]


def test_a_model_without_outputs_runs():
    with epctx.InferenceSession(
        parsed("g (float[2] x) => () {y = Relu (x)}")
    ) as session:
        assert session.run(None, {"x": np.ones(2, np.float32)}) == []


@pytest.mark.parametrize(
    "text",
    [
        'g () => (float y) {y = Constant <value_string = "a"> ()}',
        'g () => (float[2] y) {y = Constant <value_strings = ["a", "b"]> ()}',
    ],
)
def test_a_constant_output_of_another_type_than_declared_is_a_fault_of_the_model(text):
    model = parsed(text)

    with pytest.raises(epctx.InvalidGraph, match="type inference refuses"):
        epctx.InferenceSession(model)


def test_a_name_of_a_length_that_is_not_utf_8_is_no_fault_of_the_engine():
    model = parsed("g (float[length] x) => (float[length] y) {y = Relu (x)}")

    with epctx.InferenceSession(model.replace(b"length", b"lengt\xff")) as session:
        (result,) = session.run(None, {"x": np.array([-1, 2], np.float32)})

    assert result.tolist() == [0, 2]


@pytest.mark.parametrize("name", [b"input", b"label", b"inner", b"weight", b"result"])
def test_a_name_that_is_not_utf_8_is_a_fault_of_the_model(name):
    model = parsed(
        "g (float[n] input) => (float[n] result) <float[1] weight = {2}> "
        "{[label] inner = Relu (input)  result = Mul (inner, weight)}"
    )

    with pytest.raises(epctx.InvalidGraph, match="not UTF-8"):
        epctx.InferenceSession(model.replace(name, name[:-1] + b"\xff"))


@pytest.mark.parametrize("network", NETWORKS)
def test_the_placement_is_that_of_a_session_that_looks_at_each_node(network):
    model = MODELS / network / "model.onnx"

    with epctx.InferenceSession(model) as whole:
        placement = whole.placement()
    with epctx.InferenceSession(model, recording()) as looking:
        assert placement == looking.placement()


def test_nodes_in_subgraphs_are_counted():
    model = parsed(
        "g (bool c, float[2] x) => (float[2] y) {"
        "y = If (c) <then_branch = t () => (float[2] v) {v = Neg (x)},"
        "else_branch = e () => (float[2] v) {w = Relu (x)  v = Neg (w)}> }"
    )

    with epctx.InferenceSession(model) as whole:
        placement = whole.placement()
    with epctx.InferenceSession(model, recording()) as looking:
        assert placement == looking.placement()

    assert (placement.nodes, placement.inside_nodes) == (4, 3)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2] x, float[2] d) => (float[2] y) <float[2] d = {1, 2}> {y = Add (x, d)}",
        "g (float[2] x) => (float[2] x, float[2] y) {y = Relu (x)}",
        "g (float[2] x) => (float[2] k, float[2] y) <float[2] k = {1, 2}> {y = Add (x, k)}",
        "g (float[2] x) => (float[2] y, float[2] y) {y = Relu (x)}",
    ],
    ids=["default of an input", "input", "initializer", "one output twice"],
)
def test_values_that_no_node_computes_are_given_by_the_session_itself(text):
    x = np.array([-1, 3], np.float32)

    with epctx.InferenceSession(parsed(text)) as session:
        names = [value.name for value in session.get_outputs()]
        results = session.run(None, {"x": x})
        again = session.run(None, {"x": x})

    known = {"x": x, "k": [1, 2], "y": [0, 3]}
    if "Add" in text:
        known["y"] = [0, 5]
    for name, result, other in zip(names, results, again, strict=True):
        np.testing.assert_array_equal(result, known[name])
        assert not np.may_share_memory(result, x)
        assert not np.may_share_memory(result, other)
