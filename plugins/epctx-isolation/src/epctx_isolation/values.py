"""Small values on their way between processes: types, attributes, context nodes, arrays.

What comes from an EP's process is checked against what it may be; a value that is none is a `ProtocolError`.
"""

from __future__ import annotations

import base64
import binascii
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from epctx_core.plugin import ContextNode, TensorType, ValueInfo
from epctx_isolation.channel import Message, ProtocolError, whole_numbers

_LENGTH = np.dtype("<u8")
"""The length of each element of a tensor of text, all of them before the text in UTF-8."""
_PROTOS = {
    cls.__name__: cls for cls in (onnx.TensorProto, onnx.SparseTensorProto, onnx.GraphProto, onnx.TypeProto)
}


_PLAIN, _SIDES = ("name", "partition_name", "source", "main_context"), ("inputs", "outputs")


def encode_attribute(value: Any) -> Any:
    """Return an attribute's value as JSON can hold it; of what no attribute can hold its type, for the core to judge."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        value = onnx.numpy_helper.from_array(value)
    if type(value).__name__ in _PROTOS:
        return {type(value).__name__: base64.b64encode(value.SerializeToString()).decode()}
    if isinstance(value, Sequence):
        return [encode_attribute(item) for item in value]
    return foreign(value)


def foreign(value: object) -> dict[str, str]:
    """Return what arrives as an object without any content, of a type of the same name."""
    return {"type": type(value).__name__}


def decode_attribute(value: Any) -> Any:
    """Return the value that `encode_attribute` made text of; tensors stay protobufs.

    Raises:
        ProtocolError: it made none of this.
    """
    if isinstance(value, list):
        return [decode_attribute(item) for item in value]
    if not isinstance(value, dict):
        return value
    try:
        ((kind, text),) = value.items()
        if kind == "type":
            return type(text[:80], (), {})()
        data = base64.b64decode(text, validate=True)
        return data if kind == "bytes" else _PROTOS[kind].FromString(data)
    except (ValueError, TypeError, KeyError, binascii.Error, DecodeError):
        raise ProtocolError(f"{value!r:.80} is no attribute") from None


def decode_attributes(pairs: object) -> dict[Any, Any]:
    """Return a node's attributes, of which names and values are given; see `decode_attribute`."""
    try:
        return {decode_attribute(name): decode_attribute(value) for name, value in pairs}  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise ProtocolError(f"{pairs!r:.80} are no attributes") from None
    except RecursionError:
        raise ProtocolError("an attribute in lists within lists") from None


def encode_nodes(nodes: Sequence[ContextNode]) -> list[dict[str, Any]]:
    """Return the nodes of a context model as JSON can hold them."""
    places = {id(node): place for place, node in enumerate(nodes)}
    return [
        {
            **{name: getattr(node, name) for name in _PLAIN},
            "primary": None if node.primary is None else places[id(node.primary)],
            **{side: [[v.name, *astuple(v.type)] for v in getattr(node, side)] for side in _SIDES},
            "attributes": {name: encode_attribute(value) for name, value in node.attributes.items()},
        }
        for node in nodes
    ]


def decode_nodes(items: Sequence[Mapping[str, Any]]) -> list[ContextNode]:
    """Return the nodes that `encode_nodes` was given."""
    nodes = []
    for item in items:
        said: dict[str, Any] = {name: item[name] for name in _PLAIN}
        said |= {side: tuple([_value(*value) for value in item[side]]) for side in _SIDES}
        attributes = {name: _as_read(decode_attribute(value)) for name, value in item["attributes"].items()}
        nodes.append(ContextNode(**said, primary=None, attributes=attributes))
    for node, item in zip(nodes, items, strict=True):
        if item["primary"] is not None:
            # A frozen value cannot name one that is made later, or itself.
            object.__setattr__(node, "primary", nodes[item["primary"]])
    return nodes


def _value(name: str, elem_type: int | None, shape: Sequence[int | str | None] | None) -> ValueInfo:
    return ValueInfo(name, TensorType(elem_type, None if shape is None else tuple(shape)))


def _as_read(value: Any) -> Any:
    """Return an attribute's value as EPs get it: arrays for tensors."""
    if not isinstance(value, onnx.TensorProto):
        return value
    array = onnx.numpy_helper.to_array(value)
    array.setflags(write=False)
    return array


def encode_arrays(arrays: Sequence[np.ndarray]) -> tuple[list[Any], list[np.ndarray]]:
    """Return element types and shapes, and the arrays as bytes.

    Raises:
        TypeError, UnicodeError: see `_encode_text`.
    """
    encoded = [_encode_array(array) for array in arrays]
    return [[kind, list(a.shape)] for a, (kind, _) in zip(arrays, encoded, strict=True)], [
        b for _, b in encoded
    ]


def _encode_array(array: np.ndarray) -> tuple[int, np.ndarray]:
    if _is_text(array.dtype):
        return int(onnx.TensorProto.STRING), _encode_text(array)
    kind = int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    return kind, np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def decode_arrays(message: Message) -> list[np.ndarray]:
    """Return the arrays of a message, over its bytes.

    Raises:
        ProtocolError: bytes and shapes do not fit.
    """
    kinds = message.items("arrays")
    if len(kinds) != len(message.blobs):
        raise ProtocolError(f"{len(message.blobs)} pieces of bytes for {len(kinds)} arrays")
    return [_array(kind, blob) for kind, blob in zip(kinds, message.blobs, strict=True)]


def _array(kind: object, blob: memoryview) -> np.ndarray:
    if type(kind) is not list or len(kind) != 2 or type(kind[0]) is not int:  # noqa: PLR2004 - type and shape
        raise ProtocolError(f"{kind!r:.80} is no kind of array")
    shape = whole_numbers(kind[1])
    if kind[0] == onnx.TensorProto.STRING:
        return _decode_text(shape, blob)
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind[0]))
    except (KeyError, TypeError, ValueError):
        raise ProtocolError(f"element type {kind[0]}") from None
    if math.prod(shape) * dtype.itemsize != blob.nbytes:
        raise ProtocolError(f"{blob.nbytes:,} bytes for an array of shape {shape}")
    try:
        return np.frombuffer(blob, dtype).reshape(shape) if blob.nbytes else np.empty(shape, dtype)
    except ValueError as error:  # more dimensions than numpy has
        raise ProtocolError(str(error)) from None


def _is_text(dtype: np.dtype[np.generic]) -> bool:
    """Whether arrays of this type hold text: as objects or as one of numpy's own kinds."""
    return dtype.kind in "OUST"


def _encode_text(array: np.ndarray) -> np.ndarray:
    """Return the bytes of an array of text.

    Raises:
        TypeError: an element is no text.
        UnicodeError: one that UTF-8 cannot hold.
    """
    texts = [_utf8(place, text) for place, text in enumerate(array.ravel().tolist())]
    lengths = np.array([len(text) for text in texts], _LENGTH)
    return np.frombuffer(b"".join([lengths.tobytes(), *texts]), np.uint8)


def _utf8(place: int, text: object) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise TypeError(f"element {place} of a tensor of text is a {type(text).__name__}")


def _decode_text(shape: Sequence[int], blob: memoryview) -> np.ndarray:
    """Return the array that `_encode_text` was given, its elements as `str`.

    Raises:
        ProtocolError: the bytes are not those of such an array.
    """
    count = math.prod(shape)
    start = count * _LENGTH.itemsize
    if start > blob.nbytes:
        raise ProtocolError(f"{blob.nbytes:,} bytes for text of shape {list(shape)}")
    lengths = np.frombuffer(blob[:start], _LENGTH).tolist() if count else []
    if start + sum(lengths) != blob.nbytes:
        raise ProtocolError(f"{blob.nbytes:,} bytes for text of {start + sum(lengths):,}")
    array = np.empty(count, object)
    try:
        for place, length in enumerate(lengths):
            array[place] = str(blob[start : start + length], "utf-8")
            start += length
        return array.reshape(shape)
    except ValueError as error:  # no UTF-8, or more dimensions than numpy has
        raise ProtocolError(str(error)) from None
