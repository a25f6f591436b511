"""The exported bert at other lengths of its sequence, with the same weights, and with
its products in int8.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LENGTH = 32
"""Of the sequence, as exported; by chance that of an attention head, too."""

_SCALE = np.float32(2**-5)
_WEIGHT_SCALE = np.float32(2**-9)


def at_length(model: onnx.ModelProto, length: int) -> onnx.ModelProto:
    """Return the model for a shorter sequence: its shapes and positions are
    constants.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.value_info[:]
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = length
    # [batch, sequence, heads, head] and the like: which 32 is the sequence's follows
    # from how they are used.
    shapes = {
        "val_62": [1, length, -1, 32], "val_89": [-1, length, 32],
        "val_92": [1, 4, 32, length], "val_116": [1, length, -1],
    }  # fmt: skip
    for tensor in made.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if tensor.name in shapes:
            array = np.array(shapes[tensor.name])
        elif tensor.name == "slice_1":
            array = array[:, :length]
        elif tensor.name in ("bitwise_and", "val_47"):
            array = array[..., :length, :]
        else:
            continue
        tensor.CopyFrom(
            numpy_helper.from_array(np.ascontiguousarray(array), tensor.name)
        )
    return made


def with_int8_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with each product with a weight between DequantizeLinear and
    QuantizeLinear.

    Scales are powers of two, so that sums are exact in any order; they fit nothing and
    clip.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    weights = {
        t.name: t
        for t in graph.initializer
        if len(t.dims) == 2 and t.data_type == TensorProto.FLOAT
    }
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights:
            nodes += _int8_product(
                node.input[0], weights[node.input[1]], node.output[0]
            )
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    for name, value in (
        ("scale", _SCALE),
        ("weight_scale", _WEIGHT_SCALE),
        ("zero", np.int8(0)),
    ):
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return made


def _int8_product(x: str, weight: TensorProto, y: str) -> list[onnx.NodeProto]:
    """Return the nodes of one product; the weight becomes int8 where it stands."""
    if weight.data_type == TensorProto.FLOAT:
        values = np.clip(
            np.rint(numpy_helper.to_array(weight) / _WEIGHT_SCALE), -128, 127
        ).astype(np.int8)
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    return [
        helper.make_node("QuantizeLinear", [x, "scale", "zero"], [f"{y}_q"]),
        helper.make_node("DequantizeLinear", [f"{y}_q", "scale", "zero"], [f"{y}_x"]),
        helper.make_node(
            "DequantizeLinear", [weight.name, "weight_scale", "zero"], [f"{y}_w"]
        ),
        helper.make_node("MatMul", [f"{y}_x", f"{y}_w"], [f"{y}_m"]),
        helper.make_node("QuantizeLinear", [f"{y}_m", "scale", "zero"], [f"{y}_r"]),
        helper.make_node("DequantizeLinear", [f"{y}_r", "scale", "zero"], [y]),
    ]
