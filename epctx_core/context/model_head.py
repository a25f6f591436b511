"""Metadata of a model, read without its graph."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import BinaryIO, Final

from epctx_core.errors import InvalidGraph, InvalidProtobuf
from epctx_core.graph.mapping import ModelInput, open_model_file
from epctx_core.graph.wire import BYTES, walk_fields

WINDOW: Final = 1 << 14
"""Bytes read at once, so that fields that lie together cost one read."""

_GRAPH = 7
_METADATA = 14
"""Numbers of fields of onnx's ModelProto."""
_KEY = 1
_VALUE = 2
"""Numbers of fields of onnx's StringStringEntryProto."""


def read_metadata(
    model: ModelInput, is_selected: Callable[[str], bool]
) -> dict[str, str]:
    """Return metadata entries of a model; of several with one key, the last.

    Reads neither the graph nor the values of other entries, but all of a model in
    another format than ONNX.

    Args:
        model: a path or bytes.
        is_selected: predicate of keys.

    Raises:
        NoSuchFile: there is no such file.
        InvalidArgument: neither a path nor bytes, no regular file, or one that cannot
            be read.
        InvalidProtobuf: neither a protobuf message nor in a format that is installed.
        InvalidGraph: a protobuf message without a graph, or a value that is not text.
        PackageMissing, PluginError: see `find_format`, `decode_model`.
    """
    try:
        if isinstance(model, bytes):
            return scan_metadata(
                io.BytesIO(model),
                len(model),
                is_selected,
                where="the model given as bytes",
            )
        with open_model_file(model) as (file, path):
            return scan_metadata(
                file, os.fstat(file.fileno()).st_size, is_selected, where=path.name
            )
    except (InvalidProtobuf, InvalidGraph):
        # They import onnx.
        from epctx_core.context.model_formats import decode_model, find_format
        from epctx_core.graph.model_io import read_model

        data, source = read_model(model)
        other = find_format(data, source)
        if other is None:
            raise
        return {
            p.key: p.value
            for p in decode_model(data, source, None, other).metadata_props
            if is_selected(p.key)
        }


def scan_metadata(
    file: BinaryIO, size: int, is_selected: Callable[[str], bool], *, where: str
) -> dict[str, str]:
    """Return the same of an open file of a known size; `where` names it in messages."""
    if not size:
        raise InvalidProtobuf(f"{where} is empty.")

    read = _make_reader(file)
    entries: dict[str, str] = {}
    has_graph = False
    try:
        for number, kind, start, length in walk_fields(read, 0, size):
            has_graph |= (number, kind) == (_GRAPH, BYTES)
            if (number, kind) != (_METADATA, BYTES):
                continue
            fields = walk_fields(read, start, start + length)
            extents = {
                n: extent for n, wire_type, *extent in fields if wire_type == BYTES
            }
            key = _decode_text(read(*extents.get(_KEY, (start, 0))))
            if key is None or not is_selected(key):
                continue
            value = _decode_text(read(*extents.get(_VALUE, (start, 0))))
            if value is None:
                raise InvalidGraph(
                    f"the metadata {key!r} of {where} is not UTF-8.",
                    hint="Fetch it again.",
                )
            entries[key] = value
    except ValueError as error:
        raise InvalidProtobuf(
            f"{where} is not an ONNX model: {error}.", hint="Fetch it again."
        ) from None

    if not has_graph:
        raise InvalidGraph(
            f"{where} is not an ONNX model: it has no graph.",
            hint="Is it of another kind?",
        )

    return entries


def _make_reader(file: BinaryIO) -> Callable[[int, int], bytes]:
    """Return a function that reads so many bytes from an offset on."""
    window = b""
    begin = 0

    def read(offset: int, length: int) -> bytes:
        nonlocal window, begin
        if not begin <= offset <= begin + len(window) - length:
            file.seek(offset)
            window = file.read(max(length, WINDOW))
            begin = offset
            if len(window) < length:
                raise ValueError("it was cut while it was read")
        return window[offset - begin : offset - begin + length]

    return read


def _decode_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
