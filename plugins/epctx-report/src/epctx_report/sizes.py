"""Bytes of tensors by type and shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx

if TYPE_CHECKING:
    from onnx import TensorProto

    from epctx_core.plugin import TensorType

_PACKED_BITS = {
    "UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2,
}  # fmt: skip
"""Element types of which several are in one byte."""


def count_type_bytes(type_: TensorType) -> int | None:
    """Return the bytes of a tensor of a type; None if its shape is open, its type
    unknown, or text.
    """
    if type_.elem_type is None or type_.shape is None:
        return None
    lengths = [length for length in type_.shape if isinstance(length, int)]
    is_static = len(lengths) == len(type_.shape)
    return _count(type_.elem_type, lengths) if is_static else None


def count_tensor_bytes(tensor: TensorProto) -> int:
    """Return the bytes of a tensor's data, wherever they lie; 0 for text."""
    return _count(tensor.data_type, [max(0, length) for length in tensor.dims]) or 0


def _count(element: int, shape: list[int]) -> int | None:
    if element == onnx.TensorProto.STRING:
        return None
    try:
        name = onnx.TensorProto.DataType.Name(element)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(element)
    except (KeyError, ValueError):
        # A type that this onnx does not know.
        return None
    bits = _PACKED_BITS.get(name) or 8 * dtype.itemsize
    return -(-math.prod(shape) * bits // 8)
