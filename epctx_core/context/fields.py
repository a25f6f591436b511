"""Steps through the fields of a protobuf message, so that what nobody asks for is never read.

A message is fields one after the other, each saying what it is and how long. Knows neither onnx nor where the
bytes come from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

WINDOW: Final = 1 << 14
"""Bytes read at once, so that fields that lie together cost one read."""

BYTES: Final = 2
"""The kind of a field that holds bytes: text, data, or a message."""
_VARINT, _FIXED64, _FIXED32 = 0, 1, 5
_FIXED_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10
_MAX_FIELD = (1 << 29) - 1


class DamagedError(Exception):
    """What is read is no protobuf message; the text completes "... is not an ONNX model: "."""


class FieldCursor:
    """A place in a message, and the bytes around it.

    Args:
        read: gives bytes from a place on, fewer than asked for at the end.
        size: of the message.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self.place = 0
        self.size = size
        self._read = read
        self._window = b""
        self._start = 0

    def take(self, length: int) -> bytes:
        """Return the next bytes and step over them."""
        self._check(length)
        offset = self.place - self._start
        if not 0 <= offset <= len(self._window) - length:
            self._window = self._read(self.place, max(length, WINDOW))
            self._start, offset = self.place, 0
            if len(self._window) < length:
                raise DamagedError("it was cut while it was read")
        self.place += length
        return self._window[offset : offset + length]

    def skip(self, length: int) -> None:
        """Step over bytes without reading them."""
        self._check(length)
        self.place += length

    def _check(self, length: int) -> None:
        if length > self.size - self.place:
            raise DamagedError(f"it ends inside a field, after {self.size:,} bytes")

    def varint(self) -> int:
        """Return the number that stands here and step over it."""
        value = 0
        for shift in range(0, 7 * _LONGEST_VARINT, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
                return value & ((1 << 64) - 1)
        raise DamagedError("a number in it has no end")

    def field(self) -> tuple[int, int, int]:
        """Return the next field's number, kind and length; the place is then where its content begins."""
        number, kind = divmod(self.varint(), 8)
        if not 0 < number <= _MAX_FIELD:
            raise DamagedError(f"it has a field of number {number}")
        if kind == _VARINT:
            start = self.place
            self.varint()
            self.place, length = start, self.place - start
            return number, kind, length
        if kind == BYTES:
            return number, kind, self.varint()
        if kind in _FIXED_SIZES:
            return number, kind, _FIXED_SIZES[kind]
        raise DamagedError(f"it has a field of kind {kind}")
