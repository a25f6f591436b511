"""Fields of a serialized message, stepped over without decoding; and a model's metadata, read without its graph."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from epctx_core.errors import InvalidGraph, InvalidProtobuf
from epctx_core.graph.mapping import open_model_file

WINDOW: Final = 1 << 14
"""Bytes read at once, so that fields that lie together cost one read."""

BYTES: Final = 2
"""Wire type of a field of bytes: text, data, or a message."""
_VARINT: Final = 0
_FIXED_SIZES: Final = {1: 8, 5: 4}
_LONGEST_HEAD: Final = 20
"""Bytes of a tag and a length at most."""
_MAX_FIELD: Final = (1 << 29) - 1
_GRAPH, _METADATA = 7, 14
"""Numbers of fields of onnx's ModelProto."""
_KEY, _VALUE = 1, 2
"""Numbers of fields of onnx's StringStringEntryProto."""


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
            tag, at = _varint(head, 0)
            number, kind = divmod(tag, 8)
            if kind == BYTES:
                length, at = _varint(head, at)
            else:
                length = _varint(head, at)[1] - at if kind == _VARINT else _FIXED_SIZES[kind]
        except (IndexError, KeyError):
            raise ValueError(f"it is damaged at byte {start:,}") from None
        offset = start + at
        if not 0 < number <= _MAX_FIELD or offset + length > end:
            raise ValueError(f"it is damaged at byte {start:,}")
        yield number, kind, offset, length
        start = offset + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the offset behind it; `epctx_core.graph.counting` has the same, and imports onnx."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
            break
    else:
        raise IndexError(at)
    return value, at


def read_metadata(
    model: str | os.PathLike[str] | bytes, is_selected: Callable[[str], bool]
) -> dict[str, str]:
    """Return metadata entries of a model; of several with one key, the last.

    Reads neither the graph nor the values of other entries, but all of a model in ONNX Runtime's own format.

    Args:
        model: a path or bytes.
        is_selected: predicate of keys.

    Raises:
        NoSuchFile: there is no such file.
        InvalidArgument: neither a path nor bytes, no regular file, or one that cannot be read.
        InvalidProtobuf: neither a protobuf message nor in ONNX Runtime's own format.
        InvalidGraph: a protobuf message without a graph, or a value that is not text.
    """
    try:
        if isinstance(model, bytes):
            return scan_metadata(io.BytesIO(model), len(model), is_selected, where="the model given as bytes")
        with open_model_file(model) as (file, path):
            return scan_metadata(file, os.fstat(file.fileno()).st_size, is_selected, where=path.name)
    except InvalidProtobuf:
        from epctx_core.context.decoding import decode_model  # imports onnx
        from epctx_core.graph.model_io import is_ort_format, read_model

        data, source = read_model(model)
        if not is_ort_format(data):
            raise
        return {p.key: p.value for p in decode_model(data, source).metadata_props if is_selected(p.key)}


def scan_metadata(
    file: BinaryIO, size: int, is_selected: Callable[[str], bool], *, where: str
) -> dict[str, str]:
    """Return the same of an open file of a known size; `where` names it in messages."""
    if not size:
        raise InvalidProtobuf(f"{where} is empty.")

    read = _make_reader(file)
    found: dict[str, str] = {}
    has_graph = False
    try:
        for number, kind, start, length in walk_fields(read, 0, size):
            has_graph |= (number, kind) == (_GRAPH, BYTES)
            if (number, kind) != (_METADATA, BYTES):
                continue
            fields = walk_fields(read, start, start + length)
            extents = {n: extent for n, wire_type, *extent in fields if wire_type == BYTES}
            key = _decode_text(read(*extents.get(_KEY, (start, 0))))
            if key is None or not is_selected(key):
                continue
            value = _decode_text(read(*extents.get(_VALUE, (start, 0))))
            if value is None:
                raise InvalidGraph(
                    f"the metadata {key!r} of {where} is not UTF-8.", hint="Fetch the model again."
                )
            found[key] = value
    except ValueError as error:
        raise InvalidProtobuf(
            f"{where} is not an ONNX model: {error}.", hint="Fetch the file again."
        ) from None
    if not has_graph:
        raise InvalidGraph(
            f"{where} is not an ONNX model: it has no graph.", hint="Is it another kind of file?"
        )
    return found


def _make_reader(file: BinaryIO) -> Callable[[int, int], bytes]:
    """Return a function that reads so many bytes from an offset on."""
    window, begin = b"", 0

    def read(offset: int, length: int) -> bytes:
        nonlocal window, begin
        if not begin <= offset <= begin + len(window) - length:
            file.seek(offset)
            window, begin = file.read(max(length, WINDOW)), offset
            if len(window) < length:
                raise ValueError("it was cut while it was read")
        return window[offset - begin : offset - begin + length]

    return read


def _decode_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
