"""Operators that get no rows and end onnxruntime's process; a host of epctx gets an error, or the result."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUT, HIDDEN = 2, 3


def weights(operator):
    shapes = {"w": (1, GATES[operator] * HIDDEN, INPUT), "r": (1, GATES[operator] * HIDDEN, HIDDEN)}
    return [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]


def recurrent(operator, x):
    return helper.make_node(operator, [x, "w", "r"], ["y"], name="cell", hidden_size=HIDDEN)


def tensors(**types):
    return [helper.make_tensor_value_info(name, *given) for name, given in types.items()]


def finished(nodes, inputs, initializers, functions=()):
    outputs = tensors(y=(TensorProto.FLOAT, [None] * 4))
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)


def picking(operator, axis, way):
    """Return a model that leaves rows or steps out, before a recurrent operator in the graph, a body or a function."""
    inputs = tensors(x=(TensorProto.FLOAT, ["steps", "rows", INPUT]), keep=(TensorProto.BOOL, ["n"]))
    pick = helper.make_node("Compress", ["x", "keep"], ["kept"], axis=axis)
    cell = recurrent(operator, "kept")
    if way == "graph":
        return finished([pick, cell], inputs, weights(operator))
    if way == "function":
        opsets = [helper.make_opsetid("", 17)]
        function = helper.make_function("own", "Cell", ["kept", "w", "r"], ["y"], [cell], opsets)
        call = helper.make_node("Cell", ["kept", "w", "r"], ["y"], domain="own")
        return finished([pick, call], inputs, weights(operator), [function])
    body = helper.make_graph([cell], "body", [], tensors(y=(TensorProto.FLOAT, [None] * 4)))
    always = numpy_helper.from_array(np.array(True), "always")
    either = helper.make_node("If", ["always"], ["y"], then_branch=body, else_branch=body)
    return finished(
        [pick, either], [*inputs, *tensors(always=(TensorProto.BOOL, []))], [*weights(operator), always]
    )


@pytest.mark.parametrize("way", ["graph", "body", "function"])
@pytest.mark.parametrize(("operator", "axis"), [("LSTM", 1), ("GRU", 1), ("GRU", 0)])
def test_rows_that_end_inside_the_model_are_an_error_that_names_the_operator(operator, axis, way):
    x = np.ones((4, 3, INPUT), np.float32)
    some = np.arange(x.shape[axis]) > 0
    with epctx.InferenceSession(picking(operator, axis, way).SerializeToString()) as session:
        kept = session.run(None, {"x": x, "keep": some})[0]
        with pytest.raises(epctx.InvalidArgument, match=f"the input of {operator} 'cell.*' is empty"):
            session.run(None, {"x": x, "keep": some & False})

    assert kept.shape[2 if axis else 0] == x.shape[axis] - 1


def test_an_operator_that_survives_no_rows_gives_what_it_gives():
    x = np.ones((4, 3, INPUT), np.float32)
    with epctx.InferenceSession(picking("RNN", 1, "graph").SerializeToString()) as session:
        (y,) = session.run(None, {"x": x, "keep": np.zeros(3, bool)})

    assert y.shape == (4, 1, 0, HIDDEN)


@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_constants_without_rows_are_not_computed_while_a_model_is_optimised(operator, tmp_path):
    nothing = numpy_helper.from_array(np.zeros((4, 0, INPUT), np.float32), "x")
    source = tmp_path / "m.onnx"
    source.write_bytes(
        finished([recurrent(operator, "x")], [], [nothing, *weights(operator)]).SerializeToString()
    )
    options, level = epctx.SessionOptions(), epctx.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.add_provider("QNN")

    with epctx.InferenceSession(source, options) as session:
        assert session.run(None, {})[0].shape == (4, 1, 0, HIDDEN)
    with pytest.raises(epctx.Fail, match="constants alone"):
        epctx.ModelCompiler(options, source, graph_optimization_level=level).compile_to_file()
    with pytest.raises(epctx.NotImplementedByProvider, match="constants alone"):
        epctx.convert_model(source, tmp_path / "m.ort")


def test_columns_of_no_rows_that_are_put_together_are_an_error_too():
    columns = tensors(a=(TensorProto.FLOAT, ["n", 2]), b=(TensorProto.FLOAT, ["n", 3]))
    node = helper.make_node(
        "FeatureVectorizer", ["a", "b"], ["y"], name="join", domain="ai.onnx.ml", inputdimensions=[2, 3]
    )
    graph = helper.make_graph([node], "g", columns, tensors(y=(TensorProto.FLOAT, ["n", 5])))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)

    with epctx.InferenceSession(model.SerializeToString()) as session:
        (y,) = session.run(None, {"a": np.ones((4, 2), np.float32), "b": np.zeros((4, 3), np.float32)})
        assert y.tolist() == [[1, 1, 0, 0, 0]] * 4
        with pytest.raises(epctx.InvalidArgument, match="the input of FeatureVectorizer 'join' is empty"):
            session.run(None, {"a": np.ones((0, 2), np.float32), "b": np.zeros((0, 3), np.float32)})


def joining(nodes, initializers=()):
    """Return a model that puts columns `a` and `x` together."""
    join = helper.make_node(
        "FeatureVectorizer", ["a", "x"], ["y"], name="join", domain="ai.onnx.ml", inputdimensions=[2, 2]
    )
    ends = tensors(x=(TensorProto.FLOAT, ["n", 2])), tensors(y=(TensorProto.FLOAT, ["n", 4]))
    graph = helper.make_graph([*nodes, join], "g", *ends, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def test_columns_of_no_rows_that_the_model_computes_are_an_error_too():
    with (
        epctx.InferenceSession(joining([helper.make_node("Neg", ["x"], ["a"])])) as session,
        pytest.raises(epctx.InvalidArgument, match="the input of FeatureVectorizer 'join' is empty"),
    ):
        session.run(None, {"x": np.ones((0, 2), np.float32)})


def test_columns_of_no_rows_that_the_model_holds_are_put_together_by_the_reference():
    empty = np.ones((0, 2), np.float32)

    with epctx.InferenceSession(joining([], [numpy_helper.from_array(empty, "a")])) as session:
        assert session.run(None, {"x": empty})[0].shape == (0, 4)
