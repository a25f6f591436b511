"""Metadata of a model, read without its graph, and a check of the files that they have
digests of; imports no onnx.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
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
        with (
            open_model_file(model) as (file, path),
            io.BufferedReader(file, WINDOW) as window,
        ):
            size = os.fstat(file.fileno()).st_size
            return scan_metadata(window, size, is_selected, where=path.name)
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


def check_required_files(path: Path, *, once: bool = False) -> None:
    """Check the files beside a context model against the digests in the model.

    Args:
        path: the context model, as a compile wrote it: no key in it twice.
        once: True to skip files with a receipt, which this machine has checked before;
            False to read every byte.

    Raises:
        InvalidGraph, NoSuchFile: a file is another one or is missing.
        OSError: one cannot be read.
    """
    # Most hosts that ask for metadata check no files.
    from epctx_core.context.digests import IN_PLACE
    from epctx_core.context.manifest import MANIFEST, NO_MANIFEST, SEALED, read_manifest
    from epctx_core.context.metadata import INITIALIZERS
    from epctx_core.context.paths import ModelFolder
    from epctx_core.context.weights_folder import WeightsFolder, read_checksum
    from epctx_core.graph.mapping import MappedFile
    from epctx_core.options import Verification

    mode = Verification.ONCE if once else Verification.FULL
    model = read_metadata(path, {MANIFEST, SEALED, INITIALIZERS}.__contains__)
    manifest = read_manifest(model)
    folder = ModelFolder(path.parent, path)
    for entry in (manifest or NO_MANIFEST).payloads:
        if not entry.embedded:
            with folder.open(entry.name, what="the context binary") as file:
                mapped = MappedFile(file.fileno(), file.path)
            IN_PLACE.check(entry, mapped, mode)

    if (checksum := read_checksum(model)) is not None:
        WeightsFolder(path, None, checksum=checksum, verification=mode).open(
            checksum.name, ""
        ).close()


def scan_metadata(
    file: BinaryIO, size: int, is_selected: Callable[[str], bool], *, where: str
) -> dict[str, str]:
    """Return metadata entries of an open, buffered file of a known size, as
    `read_metadata` does; `where` names it in messages.
    """
    if not size:
        raise InvalidProtobuf(f"{where} is empty.")

    def read(offset: int, length: int) -> bytes:
        file.seek(offset)
        data = file.read(length)
        if len(data) < length:
            raise ValueError("it was cut while it was read")
        return data

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


def _decode_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
