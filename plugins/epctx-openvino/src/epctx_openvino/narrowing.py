"""Integers and doubles that OpenVINO computes in fewer bits, and nodes that it must not
take for that reason.

OpenVINO's CPU device computes 64-bit and unsigned integers in 32 bits, doubles and some
operators on integers as floats, and does not wrap small integers around; it does not
say so. Refusing every node with such a type would take transformers apart, as shapes
and indices are 64-bit integers in ONNX. Those that come from lengths of tensors fit in
32 bits, so what computes them is allowed. The tables were found by comparing OpenVINO
2026.4 with onnxruntime on each operator and type.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from epctx_openvino.conversion import casts_to_bool

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView, NodeView

_NARROWED: dict[int, str] = {
    TensorProto.INT64: "int64 in 32 bits",
    TensorProto.UINT64: "uint64 in 32 bits",
    TensorProto.UINT32: "uint32 in 32 bits with a sign",
    TensorProto.DOUBLE: "double as float",
}
_CAST_TO = {
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT32,
    TensorProto.INT8,
    TensorProto.UINT8,
}
_LIMIT = 2**31 - 1
_MOST_OF_A_CONSTANT = 1 << 20
_SMALL_CONSTANT = 1024
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


class Width(IntEnum):
    """Bound of a value's elements, from what it is computed of."""

    ANY = 0
    """Any number of its type."""
    BITS_32 = 1
    """It fits in 32 bits; a sum or a product of two may not."""
    LENGTH = 2
    """A length or an index of a tensor, or computed of those and of constants: sums and
    products of them fit in 32 bits.
    """
    CONSTANT = 3
    """A constant of no more than a million: with a length, sums and products fit in 32
    bits; without one nothing is known.
    """


_LENGTHS = frozenset(
    {"ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Shape", "Size"}
)
"""Operators whose integer results are lengths or indices whatever their inputs are."""
_SMALL = {TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8}
_FITTING = {TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32}
_SHORT = {TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16}
_WRAPPING = frozenset(
    {
        "Abs",
        "Add",
        "BitShift",
        "Div",
        "Einsum",
        "GridSample",
        "Mul",
        "Neg",
        "Shrink",
        "Sub",
        "Sum",
    }
)
"""Operators whose results on types of 8 and 16 bits OpenVINO cuts off at the limits, or
leaves beyond them.
"""
_AS_FLOAT = frozenset(
    {
        "Div", "Einsum", "Gemm", "GridSample", "MatMul", "Mod", "PRelu", "Pow",
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
        "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu",
        "Resize", "ReverseSequence", "Shrink",
    }
)  # fmt: skip
"""Operators that OpenVINO computes as floats on integers of 32 bits: beyond 24 bits the
last digits are lost.
"""
_GROWING = frozenset({"Pow", "ReduceProd"})
"""Those of them that make more than 24 bits out of lengths."""
_INDICES: dict[str, set[int]] = {
    "ConstantOfShape": {0},
    "Expand": {1},
    "Gather": {1},
    "GatherElements": {1},
    "GatherND": {1},
    "OneHot": {0, 1},
    "Pad": {1, 3},
    "Reshape": {1},
    "Resize": {3},
    "ScatterElements": {1},
    "ScatterND": {1},
    "Slice": {1, 2, 3, 4},
    "TopK": {1},
    "Trilu": {1},
}
"""By operator, the inputs that are lengths or indices: a number beyond 32 bits is no
valid one.
"""
_MOVES = frozenset(
    {
        "Cast", "Clip", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten",
        "Gather", "GatherElements", "GatherND", "Identity", "Max", "Min", "Pad",
        "Range", "Reshape", "ScatterElements", "ScatterND", "Slice", "Split", "Squeeze",
        "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
    }
)  # fmt: skip
"""Operators whose results are elements of their inputs, or lie between them."""


class Widths:
    """Widths of a graph's values, each found once.

    Args:
        graph: the graph whose nodes are asked about.
    """

    def __init__(self, graph: GraphView) -> None:
        self._graph = graph
        self._widths: dict[str, Width] = {}
        for node in graph.nodes:
            for position, name in enumerate(node.outputs):
                self._widths[name] = max(
                    self._find(name), self._compute(node, position)
                )

    def explain_narrowing(self, node: NodeView) -> str:
        """Return why OpenVINO would compute a node in too few bits; an empty text if it
        does not.
        """
        read = [] if self._converts_at_the_border(node) else _list_data_inputs(node)
        for name in (*node.outputs, *read):
            kind = (
                (self._graph.initializer(name) or self._graph.value(name)).elem_type
                if name
                else None
            )
            if kind in _NARROWED and not (
                kind == TensorProto.INT64 and self._find(name)
            ):
                return f"OpenVINO computes {_NARROWED[kind]}"
        return self._explain_integers(node)

    def _converts_at_the_border(self, node: NodeView) -> bool:
        """Return whether a Cast makes a type of what it is given that OpenVINO has; it
        then reads all bits.

        What it is given is then an input of the partition, as OpenVINO computes no
        other wide value.
        """
        return (
            node.op_type == "Cast"
            and self._graph.initializer(node.inputs[0]) is None
            and (
                self._graph.value(node.outputs[0]).elem_type in _CAST_TO
                or casts_to_bool(self._graph, node.inputs[0], node.outputs[0])
            )
        )

    def _explain_integers(self, node: NodeView) -> str:
        """Return why an operator gives other integers than ONNX says; an empty text if
        it does not.
        """
        for name in _list_data_inputs(node):
            kind = (self._graph.initializer(name) or self._graph.value(name)).elem_type
            if kind in _SHORT and node.op_type in _WRAPPING:
                return "OpenVINO does not wrap integers of 8 and 16 bits around"
            is_length = (
                self._find(name) >= Width.LENGTH and node.op_type not in _GROWING
            )
            if (
                kind in {TensorProto.INT32, TensorProto.INT64}
                and node.op_type in _AS_FLOAT
                and not is_length
            ):
                return f"OpenVINO computes {node.op_type} of integers as floats"
        return ""

    def _find(self, name: str) -> Width:
        """Return the width of a value: by its type or, where that says less, by what it
        is computed of.
        """
        if name not in self._widths:
            weight = self._graph.initializer(name)
            width = _find_width_of_type((weight or self._graph.value(name)).elem_type)
            if weight and (
                weight.elem_type == TensorProto.INT64
                or weight.nbytes <= _SMALL_CONSTANT
            ):
                width = max(width, _find_width_of_constant(weight.array()))
            self._widths[name] = width
        return self._widths[name]

    def _compute(self, node: NodeView, position: int) -> Width:
        """Return the width of a result by the operator and the widths of its inputs."""
        if node.domain:
            return Width.ANY
        if node.op_type in _LENGTHS or (
            node.op_type in {"TopK", "MaxPool"} and position == 1
        ):
            return Width.LENGTH
        constants = [
            value
            for value in node.attributes.values()
            if isinstance(value, np.ndarray | int | list)
        ]
        widths = [self._find(name) for name in _list_data_inputs(node)]
        if node.op_type in {"Constant", "ConstantOfShape"}:
            widths += map(_find_width_of_constant, constants)
        elif not widths or node.op_type in _CONTROL_FLOW:
            return Width.ANY
        narrowest = min(widths, default=Width.ANY)
        return (
            narrowest
            if node.op_type in _MOVES or narrowest is Width.LENGTH
            else Width.ANY
        )


def _list_data_inputs(node: NodeView) -> list[str]:
    """Return the inputs of a node that are neither omitted nor lengths or indices."""
    indices = _INDICES.get(node.op_type, set())
    return [
        name
        for position, name in enumerate(node.inputs)
        if name and position not in indices
    ]


def _find_width_of_type(elem_type: int | None) -> Width:
    if elem_type in _SMALL:
        return Width.LENGTH
    return Width.BITS_32 if elem_type in _FITTING else Width.ANY


def _find_width_of_constant(value: np.ndarray | int | list[Any]) -> Width:
    array = np.asarray(value)
    if not array.size:
        return Width.CONSTANT
    if array.dtype.kind not in "biuf":
        return Width.ANY
    lowest = float(array.min())
    highest = float(array.max())
    if lowest >= -_MOST_OF_A_CONSTANT and highest <= _MOST_OF_A_CONSTANT:
        return Width.CONSTANT
    return Width.BITS_32 if lowest >= -_LIMIT and highest <= _LIMIT else Width.ANY
