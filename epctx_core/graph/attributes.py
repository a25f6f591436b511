"""Values of attributes, out of `onnx.AttributeProto`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
from onnx import AttributeProto, TensorProto

from epctx_core.graph.weights import is_detached

if TYPE_CHECKING:
    import numpy as np


def attribute_value(attribute: AttributeProto) -> Any:
    """Decode an attribute: str where UTF-8, arrays for tensors, copies of everything that can change.

    A tensor whose bytes lie in a file stays a `TensorProto`: which file a name out of a model means is not for
    onnx to say, which would look for it where the process happens to be.

    Raises:
        ValueError, TypeError: the attribute contradicts itself, or has a type that ONNX does not have.
    """
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.STRING:
        return as_text(value)
    if attribute.type == AttributeProto.STRINGS:
        return [as_text(v) for v in value]
    if attribute.type == AttributeProto.TENSOR and not is_detached(value):
        return _array(value)
    if attribute.type in (AttributeProto.INT, AttributeProto.FLOAT):
        return value
    if hasattr(value, "CopyFrom"):
        return copied(value)
    return [copied(v) if hasattr(v, "CopyFrom") else v for v in value]


def _array(tensor: TensorProto) -> np.ndarray:
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except KeyError:
        raise ValueError(f"the element type {tensor.data_type} is none of ONNX's") from None
    array.setflags(write=False)
    return array


def copied(message: Any) -> Any:
    """Return a copy of a protobuf message."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def as_text(data: bytes) -> str | bytes:
    """Decode a text; one that is not UTF-8 stays bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
