"""OVEP_BIN, the container of Intel's OpenVINO EP: a header, a table in BSON, blobs at
multiples of 64 KiB.

onnxruntime writes one for each model that it compiles, and loads only one that is
embedded. Where a model was compiled in pieces, their containers become one; the blobs
stay Intel's, byte by byte.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_HEADER = struct.Struct("<8s4Q")
"""Magic, version, own size, offset of the table, size of the table."""
_MAGIC = b"OVEP_BIN"
_BLOBS = "blob_metadata_map"
_KEYS = {_BLOBS, "producer", "version"}
_ALIGNMENT = 1 << 16
_INT32_LIMIT = 1 << 31
_TEXT, _DOCUMENT, _INT32, _INT64 = 0x02, 0x03, 0x10, 0x12
"""Types of elements of BSON."""


def join_containers(sources: Sequence[Path], target: Path) -> bool:
    """Write one container with the blobs of several.

    Args:
        sources: the containers.
        target: file to write.

    Returns:
        Whether it was written: not if one of them is of another version, has more than
        blobs, or a blob's name twice.
    """
    tables = []
    blobs: dict[str, tuple[Path, int, int]] = {}
    for path in sources:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            table = _read_table(content)
        if table is None or blobs.keys() & table[_BLOBS].keys():
            return False
        tables.append(table)
        for name, place in table[_BLOBS].items():
            blobs[name] = path, place["data_offset"], place["size"]
    first = tables[0]
    if any({**table, _BLOBS: {}} != {**first, _BLOBS: {}} for table in tables):
        return False
    _write(target, first, blobs)
    return True


def _write(
    target: Path, first: Mapping[str, Any], blobs: Mapping[str, tuple[Path, int, int]]
) -> None:
    places: dict[str, dict[str, int]] = {}
    # A table of the largest numbers is at least as long as the one to be written.
    longest = _encode(
        {
            **first,
            _BLOBS: {name: {"data_offset": 1 << 62, "size": 1 << 62} for name in blobs},
        }
    )
    end = _align(_HEADER.size + len(longest))
    for name, (_, _, size) in blobs.items():
        places[name] = {"data_offset": end, "size": size}
        end = _align(end + size)
    table = _encode({**first, _BLOBS: places})
    with target.open("wb") as file:
        file.write(
            _HEADER.pack(_MAGIC, 1, _HEADER.size, _HEADER.size, len(table)) + table
        )
        for name, (path, offset, size) in blobs.items():
            with path.open("rb") as source:
                source.seek(offset)
                file.seek(places[name]["data_offset"])
                file.write(source.read(size))
        file.truncate(end)


def _align(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _read_table(content: mmap.mmap) -> dict[str, Any] | None:
    """Return the table of a container; None for one that is not known whole."""
    try:
        magic, version, size, start, length = _HEADER.unpack_from(content)
        table = _decode(content[start : start + length])
    except (struct.error, ValueError, IndexError):
        return None
    known = (magic, version, size) == (
        _MAGIC,
        1,
        _HEADER.size,
    ) and table.keys() == _KEYS
    return table if known and str(table["version"]).startswith("1.") else None


def _encode(document: Mapping[str, Any]) -> bytes:
    """Return a BSON document of documents, texts and integers."""
    parts = []
    for key, value in sorted(document.items()):
        if isinstance(value, str):
            text = value.encode() + b"\0"
            kind, data = _TEXT, struct.pack("<i", len(text)) + text
        elif isinstance(value, int):
            kind = _INT32 if value < _INT32_LIMIT else _INT64
            data = struct.pack("<i" if kind == _INT32 else "<q", value)
        else:
            kind, data = _DOCUMENT, _encode(value)
        parts.append(bytes([kind]) + key.encode() + b"\0" + data)
    body = b"".join(parts) + b"\0"
    return struct.pack("<i", 4 + len(body)) + body


def _decode(data: bytes) -> dict[str, Any]:
    """Return a BSON document of documents, texts and integers.

    Raises:
        ValueError, IndexError, struct.error: it is none, or has other elements.
    """
    found: dict[str, Any] = {}
    at = 4
    while data[at]:
        kind = data[at]
        end = data.index(b"\0", at + 1)
        key = data[at + 1 : end].decode()
        at = end + 1
        if kind == _INT32:
            (found[key],) = struct.unpack_from("<i", data, at)
            at += 4
        elif kind == _INT64:
            (found[key],) = struct.unpack_from("<q", data, at)
            at += 8
        elif kind == _TEXT:
            (length,) = struct.unpack_from("<i", data, at)
            found[key] = data[at + 4 : at + 3 + length].decode()
            at += 4 + length
        elif kind == _DOCUMENT:
            (length,) = struct.unpack_from("<i", data, at)
            found[key] = _decode(data[at : at + length])
            at += length
        else:
            raise ValueError(f"an element of type {kind}")
    return found
