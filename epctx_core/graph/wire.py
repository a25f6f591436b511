"""Fields of a serialized protobuf message, stepped over without decoding; needs no
onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

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


def walk_fields(
    read: Callable[[int, int], bytes], start: int, end: int
) -> Iterator[tuple[int, int, int, int]]:
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
            tag, at = read_varint(head, 0)
            number, kind = divmod(tag, 8)
            if kind == BYTES:
                length, at = read_varint(head, at)
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
