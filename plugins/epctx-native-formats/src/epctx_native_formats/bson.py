"""BSON, as far as tables of OVEP_BIN use it.

Intel's EP writes its table through a JSON library (nlohmann::json): documents, texts
and integers today. A later minor version may add what else that library writes, so
these types are read, too.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXT = 0x02
_DOCUMENT = 0x03
_ARRAY = 0x04
_BINARY = 0x05
_BOOL = 0x08
_NULL = 0x0A
_INT32 = 0x10
_INT64 = 0x12
_INT = struct.Struct("<i")
_NUMBERS = {
    0x01: struct.Struct("<d"),
    _INT32: _INT,
    # The JSON library writes integers above those of int64 as MongoDB's timestamps.
    0x11: struct.Struct("<Q"),
    _INT64: struct.Struct("<q"),
}
_EXTRA_BYTES = {_TEXT: _INT.size, _DOCUMENT: 0, _ARRAY: 0, _BINARY: _INT.size + 1}
"""Bytes of a value that its length, with which it begins, does not count."""
_EMPTY_DOCUMENT = _INT.size + 1
_DEEPEST = 16
"""Levels of documents; a table has three."""


def encode(document: Mapping[str, Any]) -> bytes:
    """Return a document of documents, texts and integers in BSON, in its own order.

    Raises:
        ValueError: a key has a NUL, or a text is not Unicode.
    """
    elements = [_encode_element(key, value) for key, value in document.items()]
    content = b"".join(elements)
    length = _INT.pack(_EMPTY_DOCUMENT + len(content))
    return length + content + b"\0"


def _encode_element(key: str, value: str | int | Mapping[str, Any]) -> bytes:
    if "\0" in key:
        raise ValueError(f"the key {key!r:.200} has a NUL, which BSON does not allow")
    if isinstance(value, str):
        text = value.encode() + b"\0"
        kind = _TEXT
        data = _INT.pack(len(text)) + text
    elif isinstance(value, int):
        # As MongoDB's and Intel's writers do: the shortest type that has the value.
        kind = _INT32 if -(1 << 31) <= value < 1 << 31 else _INT64
        data = _NUMBERS[kind].pack(value)
    else:
        kind = _DOCUMENT
        data = encode(value)
    return bytes([kind]) + key.encode() + b"\0" + data


def decode(data: bytes) -> dict[str, Any]:
    """Return the document of types of JSON that bytes are, all of them.

    Each byte is read once, so the cost is that of their number.

    Raises:
        ValueError: they are damaged, have a key twice, or other types.
    """
    return _decode_document(data, 0, len(data), _DEEPEST)


def _decode_document(data: bytes, start: int, end: int, levels: int) -> dict[str, Any]:
    """Return the document that fills `data[start:end]`."""
    if levels == 0:
        raise ValueError(f"its documents are nested more than {_DEEPEST} deep")
    size = end - start
    is_short = size < _EMPTY_DOCUMENT
    if is_short or _INT.unpack_from(data, start)[0] != size:
        raise ValueError(f"no document of {size:,} bytes begins at byte {start:,}")

    document: dict[str, Any] = {}
    at = start + _INT.size
    last = end - 1
    while at < last:
        key_end = data.find(b"\0", at + 1, last)
        if key_end < 0:
            raise ValueError(f"the key at byte {at + 1:,} does not end")
        key = data[at + 1 : key_end].decode()
        if key in document:
            raise ValueError(f"the key {key!r:.200} is there twice")
        kind = data[at]
        at = key_end + 1
        value_end = _find_end(data, kind, at, last)
        document[key] = _decode_value(data, kind, at, value_end, levels)
        at = value_end
    if data[last] != 0:
        raise ValueError(f"the document at byte {start:,} does not end with a NUL")
    return document


def _find_end(data: bytes, kind: int, start: int, last: int) -> int:
    """Return where a value ends: at `last` or before it."""
    if kind in _NUMBERS:
        end = start + _NUMBERS[kind].size
    elif kind in {_BOOL, _NULL}:
        end = start + (kind == _BOOL)
    elif kind in _EXTRA_BYTES and start + _INT.size <= last:
        (length,) = _INT.unpack_from(data, start)
        # What is too short for its type would read bytes of its neighbours.
        end = start + max(length, 0) + _EXTRA_BYTES[kind]
    else:
        raise ValueError(f"the element before byte {start:,} has the type {kind:#04x}")
    if end > last:
        raise ValueError(f"the value at byte {start:,} is longer than its document")
    return end


def _decode_value(data: bytes, kind: int, start: int, end: int, levels: int) -> Any:
    """Return the value that fills `data[start:end]`."""
    if kind in _NUMBERS:
        return _NUMBERS[kind].unpack_from(data, start)[0]
    if kind == _NULL:
        return None
    if kind == _BOOL:
        return data[start] != 0
    if kind == _BINARY:
        return data[start + _EXTRA_BYTES[_BINARY] : end]
    if kind == _TEXT:
        first = start + _INT.size
        last = end - 1
        if last < first or data[last] != 0:
            raise ValueError(f"the text at byte {start:,} does not end with a NUL")
        return data[first:last].decode()
    document = _decode_document(data, start, end, levels - 1)
    return list(document.values()) if kind == _ARRAY else document
