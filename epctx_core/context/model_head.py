"""A model's metadata, read with a few small reads however large the model is.

A model file is a protobuf message: fields one after the other, each saying what it is and how long. The
graph, which holds weights and payloads, is one of them and is stepped over. Knows neither onnx nor what the
metadata means.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from epctx_core.errors import InvalidArgument, InvalidGraph, InvalidProtobuf, NoSuchFile

WINDOW: Final = 1 << 14
"""Bytes read at once, so that fields that lie together cost one read."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_GRAPH, _METADATA = 7, 14
"""Numbers of fields of onnx's ModelProto."""
_KEY, _VALUE = 1, 2
"""Numbers of fields of onnx's StringStringEntryProto."""
_LONGEST_VARINT = 10
_MAX_FIELD = (1 << 29) - 1


class _DamagedError(Exception):
    """What is read is no protobuf message; the text completes "... is not an ONNX model: "."""


class _Cursor:
    """A place in a file, and the bytes around it."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.place = 0
        self.size = size
        self._file = file
        self._window = b""
        self._start = 0

    def take(self, length: int) -> bytes:
        """Return the next bytes and step over them."""
        self._check(length)
        offset = self.place - self._start
        if not 0 <= offset <= len(self._window) - length:
            self._window = self._read(max(length, WINDOW))
            self._start, offset = self.place, 0
            if len(self._window) < length:
                raise _DamagedError("it was cut while it was read")
        self.place += length
        return self._window[offset : offset + length]

    def _read(self, wanted: int) -> bytes:
        """Read from here; a raw file gives less than it was asked for where it likes."""
        self._file.seek(self.place)
        pieces = []
        while wanted and (piece := self._file.read(wanted)):
            pieces.append(piece)
            wanted -= len(piece)
        return b"".join(pieces)

    def skip(self, length: int) -> None:
        """Step over bytes without reading them."""
        self._check(length)
        self.place += length

    def _check(self, length: int) -> None:
        if length > self.size - self.place:
            raise _DamagedError(f"it ends inside a field, after {self.size:,} bytes")

    def varint(self) -> int:
        value = 0
        for shift in range(0, 7 * _LONGEST_VARINT, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
                return value & ((1 << 64) - 1)
        raise _DamagedError("a number in it has no end")

    def field(self) -> tuple[int, int, int]:
        """Return the next field's number, kind and length; the place is then where its content begins."""
        number, kind = divmod(self.varint(), 8)
        if not 0 < number <= _MAX_FIELD:
            raise _DamagedError(f"it has a field of number {number}")
        if kind == _VARINT:
            start = self.place
            self.varint()
            self.place, length = start, self.place - start
            return number, kind, length
        if kind == _BYTES:
            return number, kind, self.varint()
        if kind in _FIXED_SIZES:
            return number, kind, _FIXED_SIZES[kind]
        raise _DamagedError(f"it has a field of kind {kind}")


def read_metadata(model: str | os.PathLike[str] | bytes, wanted: Callable[[str], bool]) -> dict[str, str]:
    """Return metadata entries of a model; of several with one key, the last.

    Reads neither the graph nor the values of other entries.

    Args:
        model: a path or bytes.
        wanted: which keys.

    Raises:
        NoSuchFile: there is no such file.
        InvalidArgument: neither a path nor bytes, a folder, or a file that cannot be read.
        InvalidProtobuf: no protobuf message.
        InvalidGraph: a protobuf message without a graph, or a wanted value that is no text.
    """
    if isinstance(model, bytes):
        return scan_metadata(io.BytesIO(model), len(model), wanted, where="the model given as bytes")
    if not isinstance(model, (str, os.PathLike)) or not os.fspath(model):
        raise InvalidArgument(f"a model is a path or bytes, not {model!r:.80}.")
    path = Path(model)
    try:
        return _scan_file(path, wanted)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFile(f"there is no model file {str(path)!r}.", path=path) from None
    except IsADirectoryError:
        raise InvalidArgument(f"{str(path)!r} is a folder, not a model file.", path=path) from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the model file {str(path)!r} cannot be read: {error}.", path=path) from error


def _scan_file(path: Path, wanted: Callable[[str], bool]) -> dict[str, str]:
    with path.open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode):
            return scan_metadata(file, status.st_size, wanted, where=path.name)
        # A pipe cannot be stepped through.
        data = file.readall()
    return scan_metadata(io.BytesIO(data), len(data), wanted, where=path.name)


def scan_metadata(file: BinaryIO, size: int, wanted: Callable[[str], bool], *, where: str) -> dict[str, str]:
    """Do the same for an open file of a known size; `where` names it in messages."""
    if not size:
        raise InvalidProtobuf(f"{where} is empty.")
    cursor = _Cursor(file, size)
    found: dict[str, str] = {}
    has_graph = False
    try:
        while cursor.place < size:
            number, kind, length = cursor.field()
            if (number, kind) == (_METADATA, _BYTES):
                _read_entry(cursor, length, wanted, found, where)
            else:
                has_graph |= (number, kind) == (_GRAPH, _BYTES)
                cursor.skip(length)
    except _DamagedError as error:
        raise InvalidProtobuf(
            f"{where} is not an ONNX model: {error}.", hint="Fetch the file again."
        ) from None
    if not has_graph:
        raise InvalidGraph(
            f"{where} is not an ONNX model: it has no graph.", hint="Is it another kind of file?"
        )
    return found


def _read_entry(
    cursor: _Cursor, length: int, wanted: Callable[[str], bool], found: dict[str, str], where: str
) -> None:
    """Read one entry of the metadata if its key is wanted, and step over it."""
    if length > cursor.size - cursor.place:
        raise _DamagedError(f"it ends inside a field, after {cursor.size:,} bytes")
    end = cursor.place + length
    places = {_KEY: (end, 0), _VALUE: (end, 0)}
    while cursor.place < end:
        number, kind, size = cursor.field()
        if size > end - cursor.place:
            raise _DamagedError("an entry of its metadata is longer than it says")
        if kind == _BYTES and number in places:
            places[number] = (cursor.place, size)
        cursor.skip(size)
    if cursor.place > end:
        raise _DamagedError("an entry of its metadata is longer than it says")
    key = _text(cursor, *places[_KEY])
    if key is not None and wanted(key):
        value = _text(cursor, *places[_VALUE])
        if value is None:
            raise InvalidGraph(
                f"the metadata {key!r} of {where} is not UTF-8.", hint="Fetch the model again."
            )
        found[key] = value
    cursor.place = end


def _text(cursor: _Cursor, place: int, length: int) -> str | None:
    cursor.place = place
    try:
        return cursor.take(length).decode()
    except UnicodeDecodeError:
        return None
