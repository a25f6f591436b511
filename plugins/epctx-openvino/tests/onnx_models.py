"""Small ONNX models from nodes, inputs and outputs."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


def model_of(nodes, inputs, outputs, weights=None, opset=18):
    """Return the bytes of a model; inputs and outputs by name: (element type,
    shape).
    """
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in (weights or {}).items()
        ],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    return model.SerializeToString()


def single(op_type, inputs, outputs, weights=None, opset=18, **attributes):
    """Return a model of one node, which reads the inputs and weights in the order
    given.
    """
    names = [*inputs, *(weights or {})]
    nodes = [helper.make_node(op_type, names, list(outputs), **attributes)]
    return model_of(nodes, inputs, outputs, weights, opset)


def two_partitions(rows="n"):
    """Return two MatMuls with a node between that OpenVINO does not take, a double
    addition.
    """
    numbers = np.random.Generator(np.random.PCG64(3))
    weights = {
        f"w{i}": numbers.standard_normal((32, 32), dtype=np.float32) for i in (1, 2)
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Cast", ["a"], ["b"], name="to_double", to=TensorProto.DOUBLE),
        helper.make_node("Add", ["b", "b"], ["c"], name="double_sum"),
        helper.make_node("Cast", ["c"], ["d"], name="to_float", to=FLOAT),
        helper.make_node("MatMul", ["d", "w2"], ["y"], name="last"),
    ]
    return model_of(
        nodes, {"x": (FLOAT, [rows, 32])}, {"y": (FLOAT, [rows, 32])}, weights
    )
