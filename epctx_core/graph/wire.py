"""Fields of a serialised protobuf message, stepped over without decoding, and a model
separated from its weights by them; needs no onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from operator import attrgetter
from typing import Any, Final, TypeAlias

VARINT: Final = 0
BYTES: Final = 2
"""Wire type of a field of bytes: text, data, or a message."""
FIXED_SIZES: Final = {1: 8, 5: 4}
"""Bytes of a field by wire type, for those of one size."""
MORE: Final = 0x80
"""The bit of a number's byte that says that another one follows."""
_MOST_BITS: Final = 70
"""Bits of a number's longest form, which has ten bytes."""
_HEAD_BITS: Final = 35
"""Bits of a tag or a length, which have five bytes at most."""
_LONGEST_HEAD: Final = 20
"""Bytes of a tag and a length at most."""
_MAX_FIELD: Final = (1 << 29) - 1

_GRAPH: Final = 7
"""Number of a field of onnx's ModelProto."""
_INITIALIZER: Final = 5
"""Number of a field of onnx's GraphProto."""
_RAW_DATA: Final = 9
"""Number of a field of onnx's TensorProto."""

_ENDLESS: Final = count()
_size_of = attrgetter("nbytes")

Field: TypeAlias = "tuple[int, int, int, int]"
"""Number, wire type, offset and length of a field."""
Extent: TypeAlias = "tuple[int, int]"
"""Offset and length of bytes."""
Pieces: TypeAlias = "list[Any]"
"""Pieces of a message in order: each has `nbytes`."""


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
        number, kind, at, length = read_field(head, 0, end - start, start)
        start += at
        yield number, kind, start, length
        start += length


def read_field(
    data: bytes | memoryview, start: int, end: int, passed: int = 0
) -> Field:
    """Return the field of a message that begins at an offset.

    Args:
        data: the message, of which the head of the field is enough.
        start: offset of the field.
        end: offset behind the message.
        passed: bytes before the data, which the error's text counts.

    Raises:
        ValueError: see `walk_fields`.
    """
    try:
        # Nearly all tags and most lengths are one byte; none that protobuf takes has
        # more than five.
        tag = data[start]
        at = start + 1
        if tag >= MORE:
            tag, at = read_varint(data, start, _HEAD_BITS)
        number, kind = tag >> 3, tag & 7
        if kind == BYTES:
            length = data[at]
            at += 1
            if length >= MORE:
                length, at = read_varint(data, at - 1, _HEAD_BITS)
        elif kind == VARINT:
            length = read_varint(data, at)[1] - at
        else:
            length = FIXED_SIZES[kind]
    except (IndexError, KeyError):
        number = 0  # that of no field
    if not 0 < number <= _MAX_FIELD or at + length > end:
        raise ValueError(f"it is damaged at byte {passed + start:,}")
    return number, kind, at, length


def read_varint(
    data: bytes | memoryview, at: int, bits: int = _MOST_BITS
) -> tuple[int, int]:
    """Return a number of so many bits at most, and where it ends: seven bits a byte,
    the lowest first.

    Raises:
        IndexError: the data end before it does, or it is longer than any that protobuf
            reads.
    """
    value = 0
    for shift in range(0, bits, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < MORE:
            return value, at
    raise IndexError(at)


def decode_name(name: str | bytes) -> str:
    """Return a name out of a model.

    Raises:
        UnicodeDecodeError: it is not UTF-8. Protobuf gives bytes then; see
            `epctx_core.graph.model_io.require_text_names`.
    """
    return name.decode() if isinstance(name, bytes) else name


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
) -> tuple[Pieces, dict[int, Extent]]:
    """Separate a model from the raw data of its main graph's initializers, which are
    empty in what is left: it can be decoded, checked and searched without reading them.

    Args:
        data: the serialised model.
        smallest: bytes from which raw data are separated.
        most_fields: fields to step over at most.

    Returns:
        The pieces of the model without those data, and the extent of each by the
        position of its initializer.

    Raises:
        ValueError: the model is damaged, or has more fields; the text completes "... is
            not an ONNX model: ".
    """
    if not data:
        raise ValueError("it is empty")
    left = iter(range(most_fields))
    # For each initializer, in the order in which the decoder merges pieces of a graph.
    raw: list[Extent | None] = []

    def cut_data(extent: Extent) -> Pieces | None:
        if raw[-1]:
            # The decoder takes the last, whatever its length.
            raise ValueError("a tensor has its data twice")
        raw[-1] = extent
        return [] if extent[1] >= smallest else None

    def cut_tensor(tensor: Extent) -> Pieces | None:
        raw.append(None)
        if tensor[1] < smallest:
            return None
        return replace_fields(data, tensor, cut_data, _RAW_DATA, left)

    def cut_graph(graph: Extent) -> Pieces:
        return replace_fields(data, graph, cut_tensor, _INITIALIZER, left)

    pieces = replace_fields(data, (0, len(data)), cut_graph, _GRAPH, left)
    return pieces, {
        position: extent
        for position, extent in enumerate(raw)
        if extent and extent[1] >= smallest
    }


def replace_fields(
    data: memoryview,
    message: Extent,
    replace: Callable[[Extent], Pieces | None],
    number: int = 0,
    left: Iterator[int] = _ENDLESS,
) -> Pieces:
    """Return the pieces of a message with the content of some fields replaced.

    Args:
        data: the model.
        message: its extent.
        replace: returns the new content for the extent of the old one, None to keep it.
        number: of the fields; 0 for all.
        left: gives an item for each field that may be stepped over.

    Raises:
        ValueError: the message is damaged, or has more fields; see `separate_weights`.
    """
    kept = before = message[0]
    end = sum(message)
    pieces: Pieces = []
    while before < end:
        if next(left, None) is None:
            raise ValueError("it has very many fields")
        field, kind, offset, length = read_field(data, before, end)
        content = None
        if kind == BYTES and number in (0, field):
            content = replace((offset, length))
        if content is not None:
            # Lengths stand in front, and may be encoded in more bytes than needed.
            size = sum(map(_size_of, content))
            head = encode_varint(field << 3 | BYTES) + encode_varint(size)
            pieces += (data[kept:before], memoryview(head), *content)
            kept = offset + length
        before = offset + length
    return [*pieces, data[kept:before]]
