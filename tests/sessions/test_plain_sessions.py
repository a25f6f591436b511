"""Sessions without an EP: what onnxruntime computes at its defaults, to the last bit,
since it is the same work.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx

WIDE = 48
X = np.random.default_rng(1).standard_normal((5, WIDE), np.float32)


def dense_layers(count=4):
    """MatMul of numbers that are quantised on the way, as onnxruntime's quantiser
    writes it.
    """
    draw = np.random.default_rng(7)
    constants = {
        "weight_step": np.float32(0.0021),
        "weight_zero": np.int8(0),
        "bias": np.float32(0.1),
    }
    nodes = []
    for i in range(count):
        x = f"y{i - 1}" if i else "x"
        constants[f"w{i}"] = draw.integers(-127, 128, (WIDE, WIDE)).astype(np.int8)
        nodes += [
            helper.make_node(
                "DynamicQuantizeLinear", [x], [f"q{i}", f"step{i}", f"zero{i}"]
            ),
            helper.make_node(
                "MatMulInteger",
                [f"q{i}", f"w{i}", f"zero{i}", "weight_zero"],
                [f"m{i}"],
            ),
            helper.make_node("Cast", [f"m{i}"], [f"c{i}"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"step{i}", "weight_step"], [f"both{i}"]),
            helper.make_node("Mul", [f"c{i}", f"both{i}"], [f"s{i}"]),
            helper.make_node(
                "Add", [f"s{i}", "bias"], ["y" if i == count - 1 else f"y{i}"]
            ),
        ]
    return nodes, constants


def gelu():
    """Few nodes, none of them heavy: onnxruntime makes one of them."""
    constants = {
        "root": np.float32(2**0.5),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    nodes = [
        helper.make_node("Div", ["x", "root"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["a"]),
        helper.make_node("Mul", ["x", "a"], ["m"]),
        helper.make_node("Mul", ["m", "half"], ["y"]),
    ]
    return nodes, constants


@pytest.mark.parametrize("external", [False, True], ids=["in the model", "in a file"])
@pytest.mark.parametrize("parts", [dense_layers, gelu])
def test_a_plain_session_gives_onnxruntimes_numbers(tmp_path, parts, external):
    nodes, constants = parts()
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [5, WIDE])
        for name in "xy"
    ]
    weights = [
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in constants.items()
    ]
    graph = helper.make_graph(nodes, "layers", values[:1], values[1:], weights)
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(
        made,
        tmp_path / "m.onnx",
        save_as_external_data=external,
        location="m.weights",
        size_threshold=0,
    )

    ours = epctx.InferenceSession(tmp_path / "m.onnx").run(None, {"x": X})[0]

    assert np.array_equal(
        ours, onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": X})[0]
    )
