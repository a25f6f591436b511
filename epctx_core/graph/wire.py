"""Fields of a serialized protobuf message, stepped over without decoding, and a model
separated from its weights by them; needs no onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

VARINT: Final = 0
BYTES: Final = 2
"""Wire type of a field of bytes: text, data, or a message."""
FIXED_SIZES: Final = {1: 8, 5: 4}
"""Bytes of a field by wire type, for those of one size."""
MORE: Final = 0x80
"""The bit of a number's byte that says that another one follows."""
_MOST_BITS: Final = 70
"""Bits of a number's longest form, which has ten bytes."""
_LONGEST_HEAD: Final = 20
"""Bytes of a tag and a length at most."""
_MAX_FIELD: Final = (1 << 29) - 1

_GRAPH: Final = 7
"""Number of a field of onnx's ModelProto."""
_INITIALIZER: Final = 5
"""Number of a field of onnx's GraphProto."""
_RAW_DATA: Final = 9
"""Number of a field of onnx's TensorProto."""

Field: TypeAlias = "tuple[int, int, int, int]"
"""Number, wire type, offset and length of a field."""
Extent: TypeAlias = "tuple[int, int]"
"""Offset and length of bytes."""


def walk_fields(
    read: Callable[[int, int], bytes], start: int, end: int
) -> Iterator[Field]:
    """Yield number, wire type, offset and length of each field of a message.

    Args:
        read: returns so many bytes from an offset on.
        start: offset of the message.
        end: offset behind it.

    Raises:
        ValueError: it is damaged; the text completes "... is not an ONNX model: ".
    """
    while start < end:
        head = read(start, min(_LONGEST_HEAD, end - start))
        try:
            # Nearly all tags and most lengths are one byte.
            tag, at = (head[0], 1) if head[0] < MORE else read_varint(head, 0)
            number, kind = tag >> 3, tag & 7
            if kind == BYTES:
                length = head[at]
                at += 1
                if length >= MORE:
                    length, at = read_varint(head, at - 1)
            else:
                length = (
                    read_varint(head, at)[1] - at
                    if kind == VARINT
                    else FIXED_SIZES[kind]
                )
        except (IndexError, KeyError):
            raise ValueError(f"it is damaged at byte {start:,}") from None
        offset = start + at
        if not 0 < number <= _MAX_FIELD or offset + length > end:
            raise ValueError(f"it is damaged at byte {start:,}")
        yield number, kind, offset, length
        start = offset + length


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return a number and where it ends: seven bits a byte, the lowest first.

    Raises:
        IndexError: the data end before it does, or it is longer than any that protobuf
            reads.
    """
    value = 0
    for shift in range(0, _MOST_BITS, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < MORE:
            return value, at
    raise IndexError(at)


def encode_varint(value: int) -> bytes:
    """Return a number as `read_varint` reads it, in its shortest form."""
    out = bytearray()
    while value >= MORE:
        out.append(value & (MORE - 1) | MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


def separate_weights(
    data: memoryview, smallest: int, most_fields: int
) -> tuple[list[memoryview | bytes], dict[int, Extent]]:
    """Separate a model from the raw data of its main graph's initializers, which are
    empty in what is left.

    That is decoded, checked and searched in no time for the weights.

    Args:
        data: the serialized model.
        smallest: bytes of an initializer from which its data are separated.
        most_fields: fields that are worth stepping over.

    Returns:
        The pieces of the model without those data, and the extent of each by the
        position of its initializer. The whole model, and none, if it has more fields,
        or is damaged: the decoder says that better.
    """
    left = most_fields

    def read(at: int, count: int) -> bytes:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError("it has many fields")
        return bytes(data[at : at + count])

    raw: list[Extent | None] = []
    path = (_GRAPH, _INITIALIZER, _RAW_DATA)
    try:
        pieces = _cut(data, read, (0, len(data)), path, smallest, raw)
    except ValueError:
        return [data], {}
    return pieces, {n: extent for n, extent in enumerate(raw) if extent is not None}


def _cut(
    data: memoryview,
    read: Callable[[int, int], bytes],
    message: Extent,
    path: tuple[int, ...],
    smallest: int,
    raw: list[Extent | None],
) -> list[memoryview | bytes]:
    """Return the pieces of a message without the raw data that its initializers have.

    Args:
        data: the model.
        read: see `walk_fields`.
        message: its extent.
        path: numbers of the fields that lead from it to raw data.
        smallest: see `separate_weights`.
        raw: gets the extent for each initializer, None for one whose data stay.
    """
    number, *inner = path
    kept = before = message[0]
    end = sum(message)
    pieces: list[memoryview | bytes] = []
    for field, kind, offset, length in walk_fields(read, before, end):
        if (field, kind) == (number, BYTES):
            content: list[memoryview | bytes] | None = None
            # The decoder merges a graph in several pieces in this order, too.
            if number == _INITIALIZER:
                raw.append(None)
            if not inner:
                # Of several the decoder takes the last.
                raw[-1] = offset, length
                content = []
            elif number != _INITIALIZER or length >= smallest:
                within = offset, length
                content = _cut(data, read, within, tuple(inner), smallest, raw)
            if content is not None:
                # Lengths stand in front, and may be encoded in more bytes than needed.
                head = encode_varint(number << 3 | BYTES)
                head += encode_varint(sum(map(len, content)))
                pieces += (data[kept:before], head, *content)
                kept = offset + length
        before = offset + length
    return [*pieces, data[kept:end]]
