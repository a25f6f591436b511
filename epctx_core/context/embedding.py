"""Payloads put into a serialized model, so that no copy of them passes through protobuf.

A node holds a marker in place of its payload. Protobuf's encoding nests messages with their lengths in
front, so that the lengths around a marker are all that changes. Knows the encoding, not ONNX.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_PREFIX = secrets.token_bytes(24)
_NUMBER_BYTES = 8
_MARKER = re.compile(re.escape(_PREFIX) + b".{%d}" % _NUMBER_BYTES, re.DOTALL)
_numbers = itertools.count()

_JOINED = 1 << 20
"""Pieces are joined up to this many bytes; longer ones stay as they are."""
_VARINT, _FIXED64, _NESTED, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


class _Place(NamedTuple):
    start: int
    end: int
    payload: memoryview


def new_marker() -> bytes:
    """Return bytes that stand for a payload and occur nowhere else."""
    return _PREFIX + next(_numbers).to_bytes(_NUMBER_BYTES, "big")


def embed(model: bytes, payloads: Mapping[bytes, memoryview]) -> list[memoryview]:
    """Return a serialized model with its payloads in place of their markers, in pieces to be written in order.

    Args:
        model: in which each marker is the whole of a bytes or string field.
        payloads: marker to payload; not copied.
    """
    data = memoryview(model)
    places = [_Place(m.start(), m.end(), payloads[m.group()]) for m in _MARKER.finditer(model)]
    pieces, _ = _replaced(data, 0, len(data), places)
    return list(_joined(pieces))


def _replaced(
    data: memoryview, start: int, end: int, places: Sequence[_Place]
) -> tuple[list[memoryview], int]:
    """Return the pieces of one message, and their length."""
    pieces: list[memoryview] = []
    kept = at = start
    done = 0
    while done < len(places):
        tag, at = _varint(data, at)
        if tag & 7 != _NESTED:
            at = at + _FIXED[tag & 7] if tag & 7 in _FIXED else _varint(data, at)[1]
            continue
        length, body = _varint(data, at)
        inside = _before(places, done, body + length)
        if inside:
            content, size = _field(data, body, body + length, inside)
            pieces += [data[kept:at], memoryview(_as_varint(size)), *content]
            kept, done = body + length, done + len(inside)
        at = body + length
    pieces.append(data[kept:end])
    return pieces, sum(map(len, pieces))


def _before(places: Sequence[_Place], first: int, stop: int) -> Sequence[_Place]:
    last = first
    while last < len(places) and places[last].start < stop:
        last += 1
    return places[first:last]


def _field(data: memoryview, start: int, end: int, places: Sequence[_Place]) -> tuple[list[memoryview], int]:
    first = places[0]
    if (first.start, first.end) == (start, end):
        return [first.payload], len(first.payload)
    return _replaced(data, start, end, places)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return a number and where it ends: seven bits a byte, the lowest first."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more follow
            return value, at
        shift += 7


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:  # noqa: PLR2004
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _joined(pieces: Sequence[memoryview]) -> Iterator[memoryview]:
    waiting: list[memoryview] = []
    length = 0
    for piece in pieces:
        if length + len(piece) > _JOINED and waiting:
            yield memoryview(b"".join(waiting))
            waiting, length = [], 0
        if len(piece) > _JOINED:
            yield piece
        else:
            waiting.append(piece)
            length += len(piece)
    if waiting:
        yield memoryview(b"".join(waiting))
