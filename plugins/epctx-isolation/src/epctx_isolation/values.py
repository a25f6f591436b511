"""Encoding of small values between processes: attributes, types, context nodes, arrays.

Values from an EP's process are checked; a malformed one is a `ProtocolError`.
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
"""The length of each element of a tensor of text; all lengths precede the text in
UTF-8.
"""
TEXT_KINDS = "OUST"
"""numpy's kinds of arrays that may hold text."""
_PROTOS = {
    cls.__name__: cls
    for cls in (
        onnx.TensorProto,
        onnx.SparseTensorProto,
        onnx.GraphProto,
        onnx.TypeProto,
    )
}
_PLAIN = ("name", "partition_name", "source", "main_context")
_SIDES = ("inputs", "outputs")


def encode_attribute(value: Any) -> Any:
    """Return an attribute's value as JSON can hold it; of an object that is not an
    attribute its type, which the core rejects.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        value = onnx.numpy_helper.from_array(value)
    if type(value).__name__ in _PROTOS:
        return {
            type(value).__name__: base64.b64encode(value.SerializeToString()).decode()
        }
    if isinstance(value, Sequence):
        return [encode_attribute(item) for item in value]
    return encode_foreign(value)


def encode_foreign(value: object) -> dict[str, str]:
    """Return the encoding of any object: it arrives as an empty one of a type of the
    same name.
    """
    return {"type": type(value).__name__}


def decode_attribute(value: Any) -> Any:
    """Return the value that `encode_attribute` encoded; tensors stay protobufs.

    Raises:
        ProtocolError: the encoding is malformed.
    """
    if isinstance(value, list):
        return [decode_attribute(item) for item in value]
    if not isinstance(value, dict):
        return value
    try:
        ((tag, text),) = value.items()
        if tag == "type":
            return type(text[:80], (), {})()
        data = base64.b64decode(text, validate=True)
        return data if tag == "bytes" else _PROTOS[tag].FromString(data)
    except (ValueError, TypeError, KeyError, binascii.Error, DecodeError):
        raise ProtocolError(f"{value!r:.80} is not an attribute") from None


def decode_attributes(pairs: object) -> dict[Any, Any]:
    """Return a node's attributes from pairs of name and value; see
    `decode_attribute`.
    """
    try:
        return {
            decode_attribute(name): decode_attribute(value)
            for name, value in pairs  # type: ignore[attr-defined]
        }
    except (TypeError, ValueError):
        raise ProtocolError(f"{pairs!r:.80} are not attributes") from None
    except RecursionError:
        raise ProtocolError("an attribute in lists within lists") from None


def encode_nodes(nodes: Sequence[ContextNode]) -> list[dict[str, Any]]:
    """Return the nodes of a context model as JSON can hold them."""
    indices = {id(node): index for index, node in enumerate(nodes)}
    return [
        {
            **{name: getattr(node, name) for name in _PLAIN},
            "primary": None if node.primary is None else indices[id(node.primary)],
            **{
                side: [[v.name, *astuple(v.type)] for v in getattr(node, side)]
                for side in _SIDES
            },
            "attributes": {
                name: encode_attribute(value) for name, value in node.attributes.items()
            },
        }
        for node in nodes
    ]


def decode_nodes(items: Sequence[Mapping[str, Any]]) -> list[ContextNode]:
    """Return the nodes that `encode_nodes` encoded."""
    nodes = []
    for item in items:
        fields: dict[str, Any] = {name: item[name] for name in _PLAIN}
        fields |= {
            side: tuple([_make_value(*value) for value in item[side]])
            for side in _SIDES
        }
        attributes = {
            key: _convert_tensor(decode_attribute(v))
            for key, v in item["attributes"].items()
        }
        nodes.append(ContextNode(**fields, primary=None, attributes=attributes))
    for node, item in zip(nodes, items, strict=True):
        if item["primary"] is not None:
            # A frozen value cannot name one that is made later, or itself.
            object.__setattr__(node, "primary", nodes[item["primary"]])
    return nodes


def _make_value(
    name: str,
    elem_type: int | None,
    shape: Sequence[int | str | None] | None,
    is_proven: bool,
) -> ValueInfo:
    lengths = None if shape is None else tuple(shape)
    return ValueInfo(name, TensorType(elem_type, lengths, is_proven=is_proven))


def _convert_tensor(value: Any) -> Any:
    """Return an attribute's value as EPs get it: arrays for tensors."""
    if not isinstance(value, onnx.TensorProto):
        return value
    array = onnx.numpy_helper.to_array(value)
    array.setflags(write=False)
    return array


def encode_arrays(arrays: Sequence[np.ndarray]) -> tuple[list[Any], list[np.ndarray]]:
    """Return element types and shapes, and the arrays as bytes.

    Raises:
        TypeError: an element of an array of text is not text.
        UnicodeError: UTF-8 cannot hold it.
    """
    types = []
    blobs = []
    for array in arrays:
        if array.dtype.kind in TEXT_KINDS:
            elem_type = int(onnx.TensorProto.STRING)
            blob = _encode_text(array)
        else:
            elem_type = int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
            blob = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        types.append([elem_type, list(array.shape)])
        blobs.append(blob)
    return types, blobs


def decode_arrays(message: Message) -> list[np.ndarray]:
    """Return the arrays of a message, over its bytes.

    Raises:
        ProtocolError: bytes and shapes do not fit.
    """
    types = message.items("arrays")
    if len(types) != len(message.blobs):
        raise ProtocolError(f"{len(message.blobs)} blobs for {len(types)} arrays")
    return [
        _decode_array(item, blob)
        for item, blob in zip(types, message.blobs, strict=True)
    ]


def _decode_array(item: object, blob: memoryview) -> np.ndarray:
    if type(item) is not list or len(item) != 2 or type(item[0]) is not int:  # noqa: PLR2004 - type and shape
        raise ProtocolError(f"{item!r:.80} is not the type of an array")
    elem_type = item[0]
    shape = whole_numbers(item[1])
    try:
        if elem_type == onnx.TensorProto.STRING:
            return _decode_text(shape, blob)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
        if math.prod(shape) * dtype.itemsize != blob.nbytes:
            raise ProtocolError(f"{blob.nbytes:,} bytes for an array of shape {shape}")
        return (
            np.frombuffer(blob, dtype).reshape(shape)
            if blob.nbytes
            else np.empty(shape, dtype)
        )
    except (KeyError, TypeError, ValueError) as error:
        # An unknown type, more dimensions than numpy has, or text that is not UTF-8.
        raise ProtocolError(
            f"element type {elem_type}, shape {shape}: {error}"
        ) from None


def _encode_text(array: np.ndarray) -> np.ndarray:
    texts = []
    for index, text in enumerate(array.ravel().tolist()):
        if not isinstance(text, (str, bytes)):
            raise TypeError(
                f"element {index} of a tensor of text is a {type(text).__name__}"
            )
        texts.append(text.encode() if isinstance(text, str) else text)
    lengths = np.array([len(text) for text in texts], _LENGTH)
    return np.frombuffer(b"".join([lengths.tobytes(), *texts]), np.uint8)


def _decode_text(shape: Sequence[int], blob: memoryview) -> np.ndarray:
    """Return the array that `_encode_text` encoded, its elements as `str`."""
    count = math.prod(shape)
    start = count * _LENGTH.itemsize
    if start > blob.nbytes:
        raise ProtocolError(f"{blob.nbytes:,} bytes for text of shape {list(shape)}")
    lengths = np.frombuffer(blob[:start], _LENGTH).tolist() if count else []
    if start + sum(lengths) != blob.nbytes:
        raise ProtocolError(
            f"{blob.nbytes:,} bytes for text of {start + sum(lengths):,}"
        )
    array = np.empty(count, object)
    for index, length in enumerate(lengths):
        array[index] = str(blob[start : start + length], "utf-8")
        start += length
    return array.reshape(shape)
