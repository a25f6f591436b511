"""Models of one operator on tensors of any type and shape, with inputs that show what a type can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from epctx_conformance.models.building import Growing, SmallModel

ELEMENT_TYPES = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE,
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
    TensorProto.BOOL,
)  # fmt: skip
"""What a boundary may carry and numpy can compute with."""

MOVING = ("Identity", "Transpose", "Flatten")
"""Operators that give elements as they came."""
COMPUTING = ("Add", "Sub", "Mul", "Neg", "Abs", "Relu", "Max")
"""Operators of numbers whose results for ordinary numbers are exact in any type."""
EXACT_SPECIAL = ("Identity", "Transpose", "Flatten", "Add", "Sub", "Mul", "Neg", "Abs")
"""Operators of which it is agreed what they do with NaN and infinity."""
_BINARY = frozenset({"Add", "Sub", "Mul", "Max"})
SHAPE = (3, 4)


def one_operator(
    op_type: str, elem_type: int = TensorProto.FLOAT, shape: Sequence[int | str] = SHAPE
) -> SmallModel:
    """Return a model of one operator; one with two operands reads two inputs."""
    graph = Growing()
    inputs = [graph.input(name, shape, elem_type) for name in ("a", "b")[: 1 + (op_type in _BINARY)]]
    attributes: dict[str, Any] = {"axis": 1} if op_type == "Flatten" else {}
    given = list(shape[::-1]) if op_type == "Transpose" else list(shape)
    graph.output(graph.node(op_type, inputs, **attributes), given, elem_type)
    kind = TensorProto.DataType.Name(elem_type).lower()
    return graph.model(f"{op_type.lower()}_{kind}")


def is_valid(model: SmallModel) -> bool:
    """Whether ONNX has the operator for the type."""
    try:
        onnx.checker.check_model(model.proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def telling_feeds(model: SmallModel, seed: int = 0) -> dict[str, np.ndarray]:
    """Return inputs that need the whole of their type, digits, width and sign.

    A second input holds zeros and ones, so that sums and products of integers do not overflow.
    """
    numbers = np.random.default_rng(seed)
    return {
        value.name: _telling(numbers, value.type.tensor_type, small=place > 0)
        for place, value in enumerate(model.proto.graph.input)
    }


def _telling(numbers: np.random.Generator, kind: onnx.TypeProto.Tensor, *, small: bool) -> np.ndarray:
    shape = [d.dim_value for d in kind.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if dtype.kind not in "iub":
        return np.asarray(numbers.standard_normal(shape) + 1 / 3).astype(dtype)
    if small or dtype.kind == "b":
        return np.asarray(numbers.integers(0, 2, shape)).astype(dtype)
    limits = np.iinfo(dtype)
    array = np.asarray(numbers.integers(-5 if limits.min else 1, 6, shape)).astype(dtype)
    if array.size:
        array.flat[0] = limits.max - 8
    return array


def filled(feeds: Mapping[str, np.ndarray], values: Sequence[float]) -> dict[str, np.ndarray]:
    """Return inputs of the same shapes made of some values, in another order for each input."""
    return {
        name: np.resize(np.roll(np.asarray(values), place), array.shape).astype(array.dtype)
        for place, (name, array) in enumerate(feeds.items())
    }
