"""Metadata out of a model's head: its top-level fields are walked, and what is not asked for is stepped over."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from epctx_core.errors import InvalidGraph, InvalidProtobuf
from epctx_core.graph.mapping import opened_model

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
        if length > self.size - self.place:
            raise DamagedError(f"it ends inside a field, after {self.size:,} bytes")
        offset = self.place - self._start
        if not 0 <= offset <= len(self._window) - length:
            self._window = self._read(self.place, max(length, WINDOW))
            self._start, offset = self.place, 0
            if len(self._window) < length:
                raise DamagedError("it was cut while it was read")
        self.place += length
        return self._window[offset : offset + length]

    def varint(self) -> int:
        """Return the number that stands here and step over it."""
        value = 0
        for shift in range(0, 7 * _LONGEST_VARINT, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
                return value & ((1 << 64) - 1)
        raise DamagedError("a number in it has no end")

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield number, kind, place and length of the fields between two places; whoever gets one may move on from it."""
        self.place = start
        while self.place < end:
            number, kind = divmod(self.varint(), 8)
            if not 0 < number <= _MAX_FIELD:
                raise DamagedError(f"it has a field of number {number}")
            if kind == _VARINT:
                begin = self.place
                self.varint()
                self.place, length = begin, self.place - begin
            elif kind == BYTES:
                length = self.varint()
            elif kind in _FIXED_SIZES:
                length = _FIXED_SIZES[kind]
            else:
                raise DamagedError(f"it has a field of kind {kind}")
            place, after = self.place, self.place + length
            if after > self.size:
                raise DamagedError(f"it ends inside a field, after {self.size:,} bytes")
            if after > end:
                raise DamagedError("a field in it is longer than what holds it")
            yield number, kind, place, length
            self.place = after


_GRAPH, _METADATA = 7, 14
"""Numbers of fields of onnx's ModelProto."""
_KEY, _VALUE = 1, 2
"""Numbers of fields of onnx's StringStringEntryProto."""


def read_metadata(model: str | os.PathLike[str] | bytes, wanted: Callable[[str], bool]) -> dict[str, str]:
    """Return metadata entries of a model; of several with one key, the last.

    Reads neither the graph nor the values of other entries, but all of a model in ONNX Runtime's own format.

    Args:
        model: a path or bytes.
        wanted: which keys.

    Raises:
        NoSuchFile: there is no such file.
        InvalidArgument: neither a path nor bytes, no regular file, or one that cannot be read.
        InvalidProtobuf: neither a protobuf message nor in ONNX Runtime's own format.
        InvalidGraph: a protobuf message without a graph, or a wanted value that is no text.
    """
    try:
        if isinstance(model, bytes):
            return scan_metadata(io.BytesIO(model), len(model), wanted, where="the model given as bytes")
        with opened_model(model) as (file, path):
            return scan_metadata(file, os.fstat(file.fileno()).st_size, wanted, where=path.name)
    except InvalidProtobuf:
        from epctx_core.context.decoding import decode_model  # brings onnx
        from epctx_core.graph.model_io import is_ort_format, read_model

        data, source = read_model(model)
        if not is_ort_format(data):
            raise
        return {p.key: p.value for p in decode_model(data, source).metadata_props if wanted(p.key)}


def scan_metadata(file: BinaryIO, size: int, wanted: Callable[[str], bool], *, where: str) -> dict[str, str]:
    """Do the same for an open file of a known size; `where` names it in messages."""
    if not size:
        raise InvalidProtobuf(f"{where} is empty.")
    cursor = FieldCursor(_reading(file), size)
    found: dict[str, str] = {}
    has_graph = False
    try:
        for number, kind, place, length in cursor.fields(0, size):
            has_graph |= (number, kind) == (_GRAPH, BYTES)
            if (number, kind) == (_METADATA, BYTES):
                _read_entry(cursor, (place, place + length), wanted, found, where)
    except DamagedError as error:
        raise InvalidProtobuf(
            f"{where} is not an ONNX model: {error}.", hint="Fetch the file again."
        ) from None
    if not has_graph:
        raise InvalidGraph(
            f"{where} is not an ONNX model: it has no graph.", hint="Is it another kind of file?"
        )
    return found


def _reading(file: BinaryIO) -> Callable[[int, int], bytes]:
    """Return what reads bytes of a file; a raw file gives less than it was asked for where it likes."""

    def read(place: int, wanted: int) -> bytes:
        file.seek(place)
        pieces = []
        while wanted and (piece := file.read(wanted)):
            pieces.append(piece)
            wanted -= len(piece)
        return b"".join(pieces)

    return read


def _read_entry(
    cursor: FieldCursor,
    extent: tuple[int, int],
    wanted: Callable[[str], bool],
    found: dict[str, str],
    where: str,
) -> None:
    """Read one entry of the metadata if its key is wanted."""
    places = {_KEY: (extent[1], 0), _VALUE: (extent[1], 0)}
    for number, kind, place, length in cursor.fields(*extent):
        if kind == BYTES and number in places:
            places[number] = (place, length)
    key = _entry_text(cursor, *places[_KEY])
    if key is not None and wanted(key):
        value = _entry_text(cursor, *places[_VALUE])
        if value is None:
            raise InvalidGraph(
                f"the metadata {key!r} of {where} is not UTF-8.", hint="Fetch the model again."
            )
        found[key] = value


def _entry_text(cursor: FieldCursor, place: int, length: int) -> str | None:
    cursor.place = place
    try:
        return cursor.take(length).decode()
    except UnicodeDecodeError:
        return None
