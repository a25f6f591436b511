"""Small models for the uses, as bytes; the same ones in each run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
X = np.arange(8, dtype=np.float32).reshape(2, 4)
"""Input `x` of `linear`."""


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """Return a model of opset 18."""
    return helper.make_model(
        helper.make_graph(nodes, "graph", inputs, outputs, weights),
        opset_imports=[
            helper.make_opsetid("", 18),
            helper.make_opsetid("ai.onnx.ml", 3),
            helper.make_opsetid("com.microsoft", 1),
        ],
        ir_version=9,
    )


def tensor(
    name: str, shape: Sequence[int | str] | None, kind: int = FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def sequence(name: str) -> onnx.ValueInfoProto:
    element = helper.make_tensor_type_proto(FLOAT, None)
    return helper.make_value_info(name, helper.make_sequence_type_proto(element))


def linear() -> bytes:
    """Return `y = x @ w + b`, of which hosts may give `b`, with metadata."""
    rng = np.random.default_rng(0)
    w = rng.integers(-3, 4, (4, 3)).astype(np.float32)
    b = np.array([1, 2, 3], np.float32)
    model = build(
        [
            helper.make_node("MatMul", ["x", "w"], ["xw"], name="product"),
            helper.make_node("Add", ["xw", "b"], ["y"], name="sum"),
        ],
        [tensor("x", ["n", 4]), tensor("b", [3])],
        [tensor("y", ["n", 3])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")],
    )
    model.producer_name, model.domain, model.model_version = "maker", "some.where", 7
    model.doc_string, model.graph.doc_string = "a product", "the graph"
    helper.set_model_props(model, {"author": "nobody", "task": "none"})
    return model.SerializeToString()


def two_outputs() -> bytes:
    """Return the sum and the difference of `a` and `b`, of shape 2x2."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Sub", ["a", "b"], ["difference"]),
    ]
    inputs = [tensor("a", [2, 2]), tensor("b", [2, 2])]
    outputs = [tensor("sum", [2, 2]), tensor("difference", [2, 2])]
    return build(nodes, inputs, outputs).SerializeToString()


def identity(kind: int, shape: Sequence[int | str]) -> bytes:
    """Return `y = x` for tensors of a type."""
    node = helper.make_node("Identity", ["x"], ["y"])
    given, made = tensor("x", shape, kind), tensor("y", shape, kind)
    return build([node], [given], [made]).SerializeToString()


def spelt() -> bytes:
    """Return the numbers of `x` as text."""
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)
    given = tensor("x", ["n"], TensorProto.INT64)
    made = tensor("y", ["n"], TensorProto.STRING)
    return build([node], [given], [made]).SerializeToString()


def splits() -> bytes:
    """Return a sequence of the rows of `x`."""
    node = helper.make_node("SplitToSequence", ["x"], ["rows"], axis=0)
    return build([node], [tensor("x", [2, 3])], [sequence("rows")]).SerializeToString()


def joins() -> bytes:
    """Return the tensor of a sequence of rows."""
    node = helper.make_node("ConcatFromSequence", ["rows"], ["y"], axis=0)
    made = tensor("y", ["n", 3])
    return build([node], [sequence("rows")], [made]).SerializeToString()


def maps() -> bytes:
    """Return the scores of `x` by label, as classifiers do."""
    node = helper.make_node(
        "ZipMap", ["x"], ["scores"], domain="ai.onnx.ml", classlabels_strings=["a", "b"]
    )
    kind = helper.make_sequence_type_proto(
        helper.make_map_type_proto(
            TensorProto.STRING, helper.make_tensor_type_proto(FLOAT, [])
        )
    )
    made = helper.make_value_info("scores", kind)
    return build([node], [tensor("x", ["n", 2])], [made]).SerializeToString()


def optional() -> bytes:
    """Return whether an optional tensor is there."""
    node = helper.make_node("OptionalHasElement", ["x"], ["there"])
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    given = helper.make_value_info("x", kind)
    made = tensor("there", [], TensorProto.BOOL)
    return build([node], [given], [made]).SerializeToString()


def sparse() -> bytes:
    """Return `y = a @ b` with a sparse `a` of shape 3x3."""
    node = helper.make_node(
        "SparseToDenseMatMul", ["a", "b"], ["y"], domain="com.microsoft"
    )
    kind = helper.make_sparse_tensor_type_proto(FLOAT, [3, 3])
    given = [helper.make_value_info("a", kind), tensor("b", [3, 2])]
    return build([node], given, [tensor("y", [3, 2])]).SerializeToString()


def denoted() -> bytes:
    """Return `y = x + x` with open lengths that have a name and a denotation."""
    node = helper.make_node("Add", ["x", "x"], ["y"])
    model = build([node], [tensor("x", ["n", "m"])], [tensor("y", ["n", "m"])])
    dimension = model.graph.input[0].type.tensor_type.shape.dim[0]
    dimension.denotation = "DATA_BATCH"
    return model.SerializeToString()


def gathers() -> bytes:
    """Return the rows of a table by `rows`: a row that is not there fails."""
    table = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "t")
    node = helper.make_node("Gather", ["t", "rows"], ["y"])
    given = tensor("rows", ["n"], TensorProto.INT64)
    return build([node], [given], [tensor("y", ["n", 2])], [table]).SerializeToString()


def random() -> bytes:
    """Return random numbers."""
    node = helper.make_node("RandomUniform", [], ["y"], shape=[4])
    return build([node], [], [tensor("y", [4])]).SerializeToString()


def external(values: np.ndarray, location: str) -> bytes:
    """Return `y = x + w` with `w` in a file."""
    weight = numpy_helper.from_array(values, "w")
    onnx.external_data_helper.set_external_data(
        weight, location, offset=0, length=values.nbytes
    )
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    shape = list(values.shape)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    made = [tensor("y", shape)]
    return build([node], [tensor("x", shape)], made, [weight]).SerializeToString()
