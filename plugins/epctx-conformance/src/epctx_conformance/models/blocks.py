"""Blocks: small pieces of work of one shape, so that each may follow each. One of them any EP should take.

A block stands between `enter`, which brings a float value to what it computes with, and `leave`, which
brings it back: nothing for float32, a Cast for other types, quantising for 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto, helper

from epctx_conformance.models.building import Growing

Piece: TypeAlias = Callable[[Growing, str], str]
Join: TypeAlias = Callable[[Growing, str, str], str]

IMAGE = (2, 4, 6, 6)
MATRIX = (4, 6)
SCALE = np.float32(0.05)


def _same(_graph: Growing, value: str) -> str:
    return value


@dataclass(frozen=True, kw_only=True)
class Block:
    """A piece of work that keeps a value's shape.

    Attributes:
        name: the operator, with what is special.
        body: adds its nodes; its weights, if it has some, are others each time.
        join: adds a node that makes one value of two, or None.
        shape: of the value.
        enter, leave: see this module.
        weighted: whether it has weights.
        step: the quantisation step of its results, or 0.
    """

    name: str
    body: Piece
    join: Join | None = None
    shape: tuple[int, ...] = IMAGE
    enter: Piece = _same
    leave: Piece = _same
    weighted: bool = False
    step: float = 0.0

    @property
    def operator(self) -> str:
        """The operator that it is about."""
        return self.name.partition(" ")[0]


def _unary(op_type: str, **attributes: Any) -> Piece:
    return lambda graph, value: graph.node(op_type, [value], **attributes)


def _with_weight(op_type: str, shape: tuple[int, ...] = IMAGE, **attributes: Any) -> Piece:
    def body(graph: Growing, value: str) -> str:
        return graph.node(op_type, [value, graph.weight(shape)], **attributes)

    return body


def _sum(graph: Growing, left: str, right: str) -> str:
    return graph.node("Add", [left, right])


def _float(name: str, body: Piece, **others: Any) -> Block:
    return Block(name=name, body=body, join=_sum, **others)


def _gemm(graph: Growing, value: str) -> str:
    return graph.node("Gemm", [value, graph.weight((6, 6)), graph.weight((6,))])


def _conv(graph: Growing, value: str) -> str:
    weight, bias = graph.weight((4, 4, 3, 3)), graph.weight((4,))
    return graph.node("Conv", [value, weight, bias], pads=[1, 1, 1, 1], kernel_shape=[3, 3])


def _reshape(graph: Growing, value: str) -> str:
    return graph.node("Reshape", [value, graph.constant(np.array(IMAGE, np.int64))])


def _layer_normalization(graph: Growing, value: str) -> str:
    return graph.node("LayerNormalization", [value, graph.weight((6,)), graph.weight((6,))])


FLOAT_BLOCKS = (
    _float("Conv", _conv, weighted=True),
    _float("Add", _with_weight("Add"), weighted=True),
    _float("Mul", _with_weight("Mul"), weighted=True),
    _float("MatMul", _with_weight("MatMul", (6, 6)), weighted=True),
    _float("Gemm", _gemm, shape=MATRIX, weighted=True),
    _float("Sub", _with_weight("Sub"), weighted=True),
    _float("Div", _with_weight("Div"), weighted=True),
    _float("LayerNormalization", _layer_normalization, weighted=True),
    _float("PRelu", _with_weight("PRelu", (4, 1, 1)), weighted=True),
    _float("Max", _with_weight("Max"), weighted=True),
    *(
        _float(name, _unary(name))
        for name in (
            "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "HardSwish", "Softmax", "Abs", "Neg", "Floor",
            "Sqrt", "Exp", "Erf", "Sin", "Softplus", "Identity",
        )
    ),
    _float("MaxPool", _unary("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])),
    _float("AveragePool", _unary("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])),
    _float("Transpose", _unary("Transpose", perm=[0, 1, 3, 2])),
    _float("Reshape", _reshape),
)  # fmt: skip


# --- 8 bits ---------------------------------------------------------------------------------------------


def _quantize(graph: Growing, value: str) -> str:
    return graph.node("QuantizeLinear", [value, graph.constant(SCALE), graph.constant(np.int8(0))])


def _dequantize(graph: Growing, value: str) -> str:
    return graph.node("DequantizeLinear", [value, graph.constant(SCALE), graph.constant(np.int8(0))])


def _dequantized_weight(graph: Growing, *shape: int) -> str:
    return _dequantize(graph, graph.weight(shape, np.int8))


def _quantized_conv(graph: Growing, value: str) -> str:
    inputs = [_dequantize(graph, value), _dequantized_weight(graph, 4, 4, 3, 3)]
    return _quantize(graph, graph.node("Conv", inputs, pads=[1, 1, 1, 1], kernel_shape=[3, 3]))


def _quantized_product(graph: Growing, value: str) -> str:
    inputs = [_dequantize(graph, value), _dequantized_weight(graph, 6, 6)]
    return _quantize(graph, graph.node("MatMul", inputs))


def _quantized_relu(graph: Growing, value: str) -> str:
    return _quantize(graph, graph.node("Relu", [_dequantize(graph, value)]))


def _quantized_sum(graph: Growing, left: str, right: str) -> str:
    return _quantize(graph, _sum(graph, _dequantize(graph, left), _dequantize(graph, right)))


def _quantized(name: str, body: Piece, **others: Any) -> Block:
    return Block(
        name=f"{name} of 8 bits",
        body=body,
        join=_quantized_sum,
        enter=_quantize,
        leave=_dequantize,
        step=float(SCALE),
        **others,
    )


QUANTIZED_BLOCKS = (
    _quantized("Conv", _quantized_conv, weighted=True),
    _quantized("MatMul", _quantized_product, weighted=True),
    _quantized("Relu", _quantized_relu),
)


# --- other types ----------------------------------------------------------------------------------------


def _typed(elem_type: int) -> Block:
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    return Block(
        name=f"Add of {TensorProto.DataType.Name(elem_type).lower()}",
        body=lambda graph, value: graph.node("Add", [value, graph.weight(IMAGE, dtype)]),
        join=_sum,
        enter=_unary("Cast", to=elem_type),
        leave=_unary("Cast", to=TensorProto.FLOAT),
        weighted=True,
        # 16 bits keep three digits of sums below 8.
        step=0.05 if dtype.itemsize == 2 else 0.0,  # noqa: PLR2004 - bytes
    )


TYPED_BLOCKS = tuple(
    _typed(elem_type)
    for elem_type in (
        TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64,
    )
)  # fmt: skip

_WIDE = (2, 1024)


def _wide_product(graph: Growing, value: str) -> str:
    return graph.node("MatMul", [value, graph.weight((1024, 1024))])


def _wide_quantized_product(graph: Growing, value: str) -> str:
    inputs = [_dequantize(graph, value), _dequantized_weight(graph, 1024, 1024)]
    return _quantize(graph, graph.node("MatMul", inputs))


LARGE_BLOCKS = (
    _float("MatMul", _wide_product, shape=_WIDE, weighted=True),
    _float("Add", _with_weight("Add", (1024, 1024)), shape=(1024, 1024), weighted=True),
    _quantized("MatMul", _wide_quantized_product, shape=_WIDE, weighted=True),
)
"""Blocks with a weight of a megabyte or more."""

BLOCKS = (*FLOAT_BLOCKS, *QUANTIZED_BLOCKS, *TYPED_BLOCKS)
"""All blocks; those that tell most come first."""


def _through_text(graph: Growing, value: str) -> str:
    text = graph.node("Cast", [value], to=TensorProto.STRING)
    return graph.node("Cast", [text], to=TensorProto.FLOAT)


def _through_sequence(graph: Growing, value: str) -> str:
    sequence = graph.node("SequenceConstruct", [value])
    return graph.node("SequenceAt", [sequence, graph.constant(np.array(0, np.int64))])


BARRIERS: Mapping[str, Piece] = {
    **{name: _unary(name) for name in ("Sin", "Erf", "Softplus", "Celu", "Shrink", "ThresholdedRelu")},
    "text": _through_text,
    "sequence": _through_sequence,
}
"""What may stand between two blocks on float32: one that an EP does not take keeps its pieces apart."""
