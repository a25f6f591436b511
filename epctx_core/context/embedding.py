"""Payloads and weights put into a serialized model, so that no copy of them passes through protobuf.

A node or a tensor holds a marker in place of its bytes. Protobuf's encoding nests messages with their lengths
in front, so that the lengths around a marker are all that changes. Knows the encoding, not ONNX.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Protocol, TypeAlias

from epctx_core.graph.counting import varint

_PREFIX = secrets.token_bytes(24)
_NUMBER_BYTES = 8
_MARKER = re.compile(re.escape(_PREFIX) + b".{%d}" % _NUMBER_BYTES, re.DOTALL)
_numbers = count()

_JOINED = 1 << 20
"""Pieces are joined up to this many bytes; longer ones stay as they are."""
_NESTED = 2
_FIXED = {1: 8, 5: 4}
"""Bytes of a field of each kind that has no length and is not a number of variable length."""


class Content(Protocol):
    """Bytes that are read piece by piece when they are written, such as a weight's."""

    @property
    def nbytes(self) -> int:
        """How many."""

    def chunks(self) -> Iterator[memoryview]:
        """Yield them in order."""


Embeddable: TypeAlias = "memoryview | Content"


_Place: TypeAlias = "tuple[int, int, Embeddable]"
"""Start and end of a marker, and what it stands for."""


class SerializedModel:
    """The bytes of a model, which are in one place nowhere.

    Attributes:
        size: how many.
    """

    def __init__(self, pieces: Sequence[Embeddable], size: int) -> None:
        self.size = size
        self._pieces = pieces

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes in order; small pieces are joined, payloads are not copied."""
        return _joined(
            chunk
            for piece in self._pieces
            for chunk in ((piece,) if isinstance(piece, memoryview) else piece.chunks())
        )


def new_marker() -> bytes:
    """Return bytes that stand for others and occur nowhere else."""
    return _PREFIX + next(_numbers).to_bytes(_NUMBER_BYTES, "big")


def embed(model: bytes, contents: Mapping[bytes, Embeddable]) -> SerializedModel:
    """Return a serialized model with what its markers stand for.

    Args:
        model: in which each marker is the whole of a bytes or string field.
        contents: marker to what belongs there; not copied.
    """
    data = memoryview(model)
    places = [(m.start(), m.end(), contents[m.group()]) for m in _MARKER.finditer(model)]
    return SerializedModel(*_replaced(data, 0, len(data), places))


def _replaced(
    data: memoryview, start: int, end: int, places: Sequence[_Place]
) -> tuple[list[Embeddable], int]:
    """Return the pieces of one message, or of the field that a marker fills, and their length."""
    if places and places[0][:2] == (start, end):
        content = places[0][2]
        return [content], content.nbytes
    pieces: list[Embeddable] = []
    kept = at = start
    done = 0
    while done < len(places):
        tag, at = varint(data, at)
        if tag & 7 != _NESTED:
            at = at + _FIXED[tag & 7] if tag & 7 in _FIXED else varint(data, at)[1]
            continue
        length, body = varint(data, at)
        last = done
        while last < len(places) and places[last][0] < body + length:
            last += 1
        inside = places[done:last]
        if inside:
            inner, size = _replaced(data, body, body + length, inside)
            pieces += [data[kept:at], memoryview(_as_varint(size)), *inner]
            kept, done = body + length, last
        at = body + length
    pieces.append(data[kept:end])
    return pieces, sum(piece.nbytes for piece in pieces)


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:  # noqa: PLR2004
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _joined(pieces: Iterable[memoryview]) -> Iterator[memoryview]:
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
