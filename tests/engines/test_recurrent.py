"""Operators that get no rows and end onnxruntime's process; a host of epctx gets an
error, or the result.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUT, HIDDEN = 2, 3


def weights(operator):
    shapes = {
        "w": (1, GATES[operator] * HIDDEN, INPUT),
        "r": (1, GATES[operator] * HIDDEN, HIDDEN),
    }
    return [
        numpy_helper.from_array(np.ones(shape, np.float32), name)
        for name, shape in shapes.items()
    ]


def recurrent(operator, x):
    return helper.make_node(
        operator, [x, "w", "r"], ["y"], name="cell", hidden_size=HIDDEN
    )


def tensors(**types):
    return [
        helper.make_tensor_value_info(name, *given) for name, given in types.items()
    ]


def finished(nodes, inputs, initializers, functions=()):
    outputs = tensors(y=(TensorProto.FLOAT, [None] * 4))
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=8, functions=functions
    )


def picking(operator, axis, way):
    """Return a model that leaves rows or steps out, before a recurrent operator in the
    graph, a subgraph or a function.
    """
    inputs = tensors(
        x=(TensorProto.FLOAT, ["steps", "rows", INPUT]), keep=(TensorProto.BOOL, ["n"])
    )
    pick = helper.make_node("Compress", ["x", "keep"], ["kept"], axis=axis)
    cell = recurrent(operator, "kept")
    if way == "graph":
        return finished([pick, cell], inputs, weights(operator))
    if way == "function":
        opsets = [helper.make_opsetid("", 17)]
        function = helper.make_function(
            "own", "Cell", ["kept", "w", "r"], ["y"], [cell], opsets
        )
        call = helper.make_node("Cell", ["kept", "w", "r"], ["y"], domain="own")
        return finished([pick, call], inputs, weights(operator), [function])
    body = helper.make_graph(
        [cell], "body", [], tensors(y=(TensorProto.FLOAT, [None] * 4))
    )
    always = numpy_helper.from_array(np.array(True), "always")
    either = helper.make_node(
        "If", ["always"], ["y"], then_branch=body, else_branch=body
    )
    return finished(
        [pick, either],
        [*inputs, *tensors(always=(TensorProto.BOOL, []))],
        [*weights(operator), always],
    )


@pytest.mark.parametrize("way", ["graph", "body", "function"])
@pytest.mark.parametrize(("operator", "axis"), [("LSTM", 1), ("GRU", 1), ("GRU", 0)])
def test_rows_that_end_inside_the_model_are_an_error_that_names_the_operator(
    operator, axis, way
):
    x = np.ones((4, 3, INPUT), np.float32)
    some = np.arange(x.shape[axis]) > 0
    with epctx.InferenceSession(
        picking(operator, axis, way).SerializeToString()
    ) as session:
        kept = session.run(None, {"x": x, "keep": some})[0]
        with pytest.raises(
            epctx.InvalidArgument, match=f"the input of {operator} 'cell.*' is empty"
        ):
            session.run(None, {"x": x, "keep": some & False})

    assert kept.shape[2 if axis else 0] == x.shape[axis] - 1


def test_an_operator_that_survives_no_rows_gives_what_it_gives():
    x = np.ones((4, 3, INPUT), np.float32)
    with epctx.InferenceSession(
        picking("RNN", 1, "graph").SerializeToString()
    ) as session:
        (y,) = session.run(None, {"x": x, "keep": np.zeros(3, bool)})

    assert y.shape == (4, 1, 0, HIDDEN)


@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_constants_without_rows_are_not_computed_while_a_model_is_optimised(
    operator, tmp_path
):
    nothing = numpy_helper.from_array(np.zeros((4, 0, INPUT), np.float32), "x")
    source = tmp_path / "m.onnx"
    source.write_bytes(
        finished(
            [recurrent(operator, "x")], [], [nothing, *weights(operator)]
        ).SerializeToString()
    )
    options, level = (
        epctx.SessionOptions(),
        epctx.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    )
    options.add_provider("QNN")

    with epctx.InferenceSession(source, options) as session:
        assert session.run(None, {})[0].shape == (4, 1, 0, HIDDEN)
    with pytest.raises(epctx.Fail, match="constants alone"):
        epctx.ModelCompiler(
            options, source, graph_optimization_level=level
        ).compile_to_file()
    with pytest.raises(epctx.NotImplementedByProvider, match="constants alone"):
        epctx.convert_model(source, tmp_path / "m.ort")


def test_columns_of_no_rows_that_are_put_together_are_an_error_too():
    columns = tensors(a=(TensorProto.FLOAT, ["n", 2]), b=(TensorProto.FLOAT, ["n", 3]))
    node = helper.make_node(
        "FeatureVectorizer",
        ["a", "b"],
        ["y"],
        name="join",
        domain="ai.onnx.ml",
        inputdimensions=[2, 3],
    )
    graph = helper.make_graph(
        [node], "g", columns, tensors(y=(TensorProto.FLOAT, ["n", 5]))
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)

    with epctx.InferenceSession(model.SerializeToString()) as session:
        (y,) = session.run(
            None, {"a": np.ones((4, 2), np.float32), "b": np.zeros((4, 3), np.float32)}
        )
        assert y.tolist() == [[1, 1, 0, 0, 0]] * 4
        with pytest.raises(
            epctx.InvalidArgument,
            match="the input of FeatureVectorizer 'join' is empty",
        ):
            session.run(
                None,
                {"a": np.ones((0, 2), np.float32), "b": np.zeros((0, 3), np.float32)},
            )


def joining(nodes, initializers=(), inputs=("a", "x"), shape=("n", 2), more=()):
    """Return a model that puts columns together: of `x`, which has a shape, and of what
    nodes or the model give.
    """
    join = helper.make_node(
        "FeatureVectorizer",
        inputs,
        ["y"],
        name="join",
        domain="ai.onnx.ml",
        inputdimensions=[2] * len(inputs),
    )
    ends = (
        [*tensors(x=(TensorProto.FLOAT, shape)), *more],
        tensors(y=(TensorProto.FLOAT, None)),
    )
    graph = helper.make_graph([*nodes, join], "g", *ends, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=8
    ).SerializeToString()


@pytest.mark.parametrize("rest", [(2,), (2, 2)])
def test_columns_of_no_rows_that_the_model_computes_are_an_error_too(rest):
    model = joining([helper.make_node("Neg", ["x"], ["a"])], shape=["n", *rest])
    with epctx.InferenceSession(model) as session:
        some = session.run(None, {"x": np.ones((3, *rest), np.float32)})[0]
        with pytest.raises(
            epctx.InvalidArgument,
            match="the input of FeatureVectorizer 'join' is empty",
        ):
            session.run(None, {"x": np.ones((0, *rest), np.float32)})

    assert some.tolist() == [[-1, -1, 1, 1]] * 3


def test_columns_of_no_rows_that_the_model_holds_are_put_together_by_the_reference():
    empty = np.ones((0, 2), np.float32)

    with epctx.InferenceSession(
        joining([], [numpy_helper.from_array(empty, "a")])
    ) as session:
        assert session.run(None, {"x": empty})[0].shape == (0, 4)


@pytest.mark.parametrize("shape", [(0, 2), (0, 2, 2), (0,), (2,), (3, 2), (3, 2, 2)])
def test_columns_whose_rank_nothing_says_are_put_together_by_the_reference(shape):
    x = np.ones(shape, np.float32)

    with epctx.InferenceSession(joining([], inputs=("x", "x"), shape=None)) as session:
        (y,) = session.run(None, {"x": x})

    row = [0] * 4 if shape == (0,) else [1] * 4
    assert y.tolist() == [row] * (1 if x.ndim == 1 else shape[0])


def test_beside_columns_whose_rank_nothing_says_all_else_stays_on_onnxruntime(caplog):
    given = tensors(s=(TensorProto.INT64, ["r"]))
    reshape = helper.make_node("Reshape", ["x", "s"], ["a"], allowzero=1)
    with epctx.InferenceSession(joining([], inputs=("x", "x"))):
        pass

    with (
        caplog.at_level("WARNING", "epctx.engines"),
        epctx.InferenceSession(joining([reshape], more=given)) as session,
    ):
        (y,) = session.run(
            None, {"x": np.ones((0, 2), np.float32), "s": np.array([0, 2])}
        )

    assert y.shape == (0, 4)
    (message,) = caplog.messages
    assert "1 of the 2 nodes" in message
    assert message.endswith(": FeatureVectorizer")


def test_one_input_of_no_rows_gives_no_rows():
    model = joining([helper.make_node("Neg", ["x"], ["a"])], inputs=("a",))
    with epctx.InferenceSession(model) as session:
        assert session.run(None, {"x": np.ones((0, 2), np.float32)})[0].shape == (0, 2)


def test_a_value_of_another_body_says_nothing_of_a_rank():
    def body(name, *nodes):
        join = helper.make_node(
            "FeatureVectorizer",
            ["a", "a"],
            ["z"],
            name="join",
            domain="ai.onnx.ml",
            inputdimensions=[2, 2],
        )
        return helper.make_graph(
            [*nodes, join], name, [], tensors(z=(TensorProto.FLOAT, None))
        )

    vector = helper.make_node(
        "Constant", [], ["a"], value=numpy_helper.from_array(np.ones(2, np.float32))
    )
    rows = body("rows", helper.make_node("Neg", ["x"], ["a"]))
    either = helper.make_node(
        "If", ["c"], ["y"], then_branch=rows, else_branch=body("vector", vector)
    )
    inputs = tensors(x=(TensorProto.FLOAT, ["n", 2]), c=(TensorProto.BOOL, []))
    graph = helper.make_graph(
        [either], "g", inputs, tensors(y=(TensorProto.FLOAT, None))
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)

    with epctx.InferenceSession(model.SerializeToString()) as session:
        empty = np.ones((0, 2), np.float32)
        assert session.run(None, {"x": empty, "c": np.array(False)})[0].tolist() == [
            [1] * 4
        ]
        with pytest.raises(
            epctx.InvalidArgument,
            match="the input of FeatureVectorizer 'join' is empty",
        ):
            session.run(None, {"x": empty, "c": np.array(True)})
