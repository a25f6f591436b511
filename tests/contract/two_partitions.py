"""A network of which every installed EP takes two parts. Knows no EP."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHAPE = [1, 4, 8, 8]
SCALE = 2.0**-4


def network(seed):
    """Return two quantised convolutions with operators between them that one EP or
    another leaves to the CPU.
    """
    generator = np.random.default_rng(seed)
    weights = {
        "scale": np.float32(SCALE), "zero": np.int8(0), "fine": np.float32(2.0**-7),
        "finer": np.float32(SCALE * 2.0**-7), "zero32": np.int32(0),
        "nothing": np.float32(0),
    }  # fmt: skip
    nodes = []

    def node(op_type, inputs, output, **attributes):
        nodes.append(
            helper.make_node(op_type, inputs, [output], name=output, **attributes)
        )
        return output

    def quantised(value, name):
        stored = node("QuantizeLinear", [value, "scale", "zero"], f"{name}_stored")
        return node("DequantizeLinear", [stored, "scale", "zero"], name)

    def convolution(value, name):
        # Two products of larger ones overflow in onnxruntime on CPUs without VNNI.
        weights[f"{name}_w"] = generator.integers(-64, 64, (4, 4, 3, 3), dtype=np.int8)
        weights[f"{name}_b"] = generator.integers(-100, 100, 4, dtype=np.int32)
        weight = node(
            "DequantizeLinear", [f"{name}_w", "fine", "zero"], f"{name}_weight"
        )
        bias = node(
            "DequantizeLinear", [f"{name}_b", "finer", "zero32"], f"{name}_bias"
        )
        return quantised(
            node("Conv", [value, weight, bias], f"{name}_conv", pads=[1, 1, 1, 1]), name
        )

    first = convolution(quantised("x", "begin"), "first")
    bent = node("Erf", [first], "bent")
    chosen = node("Where", [node("IsNaN", [bent], "odd"), "nothing", bent], "chosen")
    last = convolution(quantised(chosen, "middle"), "last")
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, SHAPE)],
        [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in weights.items()
        ],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    return onnx.shape_inference.infer_shapes(model)
