"""Containers of Intel's OpenVINO EP that become one.

onnxruntime writes one for each model that it compiles, and loads only one that is
embedded. Where a model was compiled in pieces, their containers become one; the blobs
stay Intel's, byte by byte.
"""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import TYPE_CHECKING

from epctx_native_formats.openvino import (
    Table,
    align,
    decode_table,
    encode_head,
    lay_out,
)

from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_FIELDS = {"producer", "version"}
_ENTRY = {"data_offset", "size"}


def join_containers(sources: Sequence[Path], target: Path) -> bool:
    """Write one container with the blobs of several.

    Args:
        sources: the containers.
        target: file to write.

    Returns:
        Whether it was written: not if one of them is of another version, has more than
        blobs, or a blob's name twice.
    """
    tables: list[Table] = []
    blobs: dict[str, tuple[Path, int, int]] = {}
    for path in sources:
        table = _read_table(path)
        if table is None or blobs.keys() & table.entries.keys():
            return False
        tables.append(table)
        for name, entry in table.entries.items():
            blobs[name] = path, entry["data_offset"], entry["size"]
    fields = tables[0].fields
    if any(table.fields != fields for table in tables):
        return False
    joined = lay_out(fields, {name: {"size": blobs[name][2]} for name in blobs})
    _write(target, joined, blobs)
    return True


def _read_table(path: Path) -> Table | None:
    """Return the table of a container; None for one that is not known whole."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping,
            memoryview(mapping) as content,
        ):
            table = decode_table(content, path.name)
    # ValueError: an empty file cannot be mapped.
    except (InvalidGraph, ValueError):
        return None
    is_whole = table.fields.keys() == _FIELDS and all(
        entry.keys() == _ENTRY for entry in table.entries.values()
    )
    return table if is_whole else None


def _write(
    target: Path, table: Table, blobs: Mapping[str, tuple[Path, int, int]]
) -> None:
    # The names in Intel's order; blobs stay in that of their containers.
    by_name = replace(table, entries=dict(sorted(table.entries.items())))
    with target.open("wb") as file:
        file.write(encode_head(by_name))
        for name, (path, offset, size) in blobs.items():
            with path.open("rb") as source:
                source.seek(offset)
                file.seek(table.entries[name]["data_offset"])
                file.write(source.read(size))
        file.truncate(align(file.tell()))
