"""The ONNX models of which tests have `.ort` files: three exported networks, three
quantised models, two with subgraphs; and one with functions.

All in opset 17 and IR 8, which the oldest onnxruntime used here reads. Knows ONNX,
knows nothing of epctx.
"""

from __future__ import annotations

import numpy as np
import onnx.parser
from onnx import ModelProto, TensorProto, helper, numpy_helper
from support.folders import MODELS

NETWORKS = ("bert", "lstm", "resnet")
SMALL = ("qdq", "qlinear", "integers", "branches", "loop")
NAMES = (*NETWORKS, *SMALL)
FUNCTIONS = "functions"
"""A model that is not stored in older versions."""
_MODELS = MODELS
_OPSET = 17


def source(name: str) -> ModelProto:
    """Return a model; the same bytes each time."""
    return (
        _older(onnx.load(_MODELS / name / "model.onnx"))
        if name in NETWORKS
        else globals()[f"_{name}"]()
    )


def inputs_of(name: str) -> dict[str, np.ndarray]:
    """Return inputs for a model, by name."""
    if name in NETWORKS:
        with np.load(_MODELS / name / "input.npz") as stored:
            return dict(stored)
    generator = np.random.default_rng([*NAMES, FUNCTIONS].index(name))
    values = {i.name: i.type.tensor_type for i in source(name).graph.input}
    return {
        key: generator.standard_normal(
            [d.dim_value or 3 for d in kind.shape.dim]
        ).astype(np.float32)
        if kind.elem_type == TensorProto.FLOAT
        else np.array(3)
        for key, kind in values.items()
    }


def _older(model: ModelProto) -> ModelProto:
    """Lower a model's versions, if no operator of it has changed since."""
    changed = {
        node.op_type
        for node in model.graph.node
        if onnx.defs.get_schema(
            node.op_type, model.opset_import[0].version
        ).since_version
        > _OPSET
    }
    if changed - {"Reshape", "Expand", "Add"}:
        message = f"not in opset {_OPSET}: {sorted(changed)}"
        raise ValueError(message)
    model.opset_import[0].version = _OPSET
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    return model


def _model(
    nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], ins: list, outs: list
) -> ModelProto:
    initializers = [
        numpy_helper.from_array(array, name) for name, array in weights.items()
    ]
    graph = helper.make_graph(nodes, "small", ins, outs, initializers)
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=8,
        producer_name="epctx tests",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _value(
    name: str, *shape: int | str, kind: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _scales() -> dict[str, np.ndarray]:
    return {
        "scale": np.array(0.0625, np.float32),
        "zero": np.array(0, np.int8),
        "weight_scale": np.array(0.03125, np.float32),
    }


def _qdq() -> ModelProto:
    """Return a convolution in QDQ form."""
    weight = np.random.default_rng(11).integers(-60, 60, (4, 3, 3, 3), np.int8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "scale", "zero"], ["x_d"]),
        helper.make_node(
            "DequantizeLinear", ["weight", "weight_scale", "zero"], ["w_d"]
        ),
        helper.make_node("Conv", ["x_d", "w_d"], ["c"], name="conv"),
        helper.make_node("QuantizeLinear", ["c", "scale", "zero"], ["c_q"]),
        helper.make_node("DequantizeLinear", ["c_q", "scale", "zero"], ["y"]),
    ]
    return _model(
        nodes,
        _scales() | {"weight": weight},
        [_value("x", "n", 3, 8, 8)],
        [_value("y", "n", 4, 6, 6)],
    )


def _qlinear() -> ModelProto:
    """Return a product of matrices in QOperator form."""
    weight = np.random.default_rng(12).integers(-60, 60, (16, 64), np.int8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["x_q"]),
        helper.make_node(
            "QLinearMatMul",
            ["x_q", "scale", "zero", "weight", "weight_scale", "zero", "scale", "zero"],
            ["p_q"],
            name="product",
        ),
        helper.make_node("DequantizeLinear", ["p_q", "scale", "zero"], ["y"]),
    ]
    return _model(
        nodes,
        _scales() | {"weight": weight},
        [_value("x", "n", 16)],
        [_value("y", "n", 64)],
    )


def _integers() -> ModelProto:
    """Return a dynamically quantised product of matrices."""
    weight = np.random.default_rng(13).integers(-60, 60, (16, 128), np.int8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["x_q", "x_scale", "x_zero"]),
        helper.make_node(
            "MatMulInteger", ["x_q", "weight", "x_zero", "zero"], ["p"], name="product"
        ),
        helper.make_node("Cast", ["p"], ["p_f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x_scale", "weight_scale"], ["s"]),
        helper.make_node("Mul", ["p_f", "s"], ["y"]),
    ]
    weights = {k: v for k, v in _scales().items() if k != "scale"} | {"weight": weight}
    return _model(nodes, weights, [_value("x", "n", 16)], [_value("y", "n", 128)])


def _branches() -> ModelProto:
    """Return an If whose branches read weights and values from outside."""
    weight = np.random.default_rng(14).standard_normal((16, 32), np.float32)
    then = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["a"])],
        "positive",
        [],
        [_value("a", "n", 32)],
    )
    other = helper.make_graph(
        [helper.make_node("MatMul", ["doubled", "weight"], ["b"])],
        "negative",
        [],
        [_value("b", "n", 32)],
    )
    nodes = [
        helper.make_node("Add", ["x", "x"], ["doubled"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "nothing"], ["positive"]),
        helper.make_node(
            "If",
            ["positive"],
            ["y"],
            name="choice",
            then_branch=then,
            else_branch=other,
        ),
    ]
    weights = {"weight": weight, "nothing": np.array(0, np.float32)}
    return _model(nodes, weights, [_value("x", "n", 16)], [_value("y", "n", 32)])


def _loop() -> ModelProto:
    """Return a Loop that carries a value and collects another."""
    weight = np.random.default_rng(15).standard_normal((16, 16), np.float32) / 4
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["carried", "weight"], ["product"]),
            helper.make_node("Tanh", ["product"], ["next"]),
            helper.make_node("Identity", ["next"], ["collected"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "step",
        [
            _value("i", kind=TensorProto.INT64),
            _value("go", kind=TensorProto.BOOL),
            _value("carried", "n", 16),
        ],
        [
            _value("go_on", kind=TensorProto.BOOL),
            _value("next", "n", 16),
            _value("collected", "n", 16),
        ],
    )
    nodes = [
        helper.make_node(
            "Loop", ["count", "", "x"], ["y", "all"], name="steps", body=body
        )
    ]
    ins = [_value("x", "n", 16), _value("count", kind=TensorProto.INT64)]
    return _model(
        nodes,
        {"weight": weight},
        ins,
        [_value("y", "n", 16), _value("all", "steps", "n", 16)],
    )


def _functions() -> ModelProto:
    """Return functions that call one another, from a graph and from subgraphs at two
    depths: onnxruntime inlines them graph by graph, with the same names in each.
    """
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (float[n] x) => (float[n] y, float[n] first, bool high) {
            first = local.outer (x)
            zero = Constant <value_float = 0.0> ()
            sum = ReduceSum <keepdims = 0> (x)
            high = Greater (sum, zero)
            low = Not (high)
            chosen = If (high) <
                then_branch = above () => (float[n] a) {
                    a_before = local.outer (first)
                    a_inside = If (low) <
                        then_branch = never () => (float[n] b) { b = Neg (a_before) },
                        else_branch = always () => (float[n] c) {
                            c_before = local.outer (a_before)
                            c = Add (c_before, a_before)
                        }
                    >
                    a = local.inner (a_inside)
                },
                else_branch = below () => (float[n] d) {
                    d_before = local.inner (first)
                    d = local.outer (d_before)
                }
            >
            y = local.outer (chosen)
        }
        <domain: "local", opset_import: ["": 17, "local": 1]>
        outer (a) => (b) { t = local.inner (a) u = Tanh (t) b = local.inner (u) }
        <domain: "local", opset_import: ["": 17]>
        inner (a) => (b) { t = Sigmoid (a) s = Add (t, a) b = Mul (s, t) }
        """
    )
    onnx.checker.check_model(model, full_check=True)
    return model
