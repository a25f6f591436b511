"""OVEP_BIN, the container of onnxruntime's OpenVINO EP: a header, a table in BSON, and
blobs at multiples of 64 KiB. Neither `openvino` nor `onnxruntime` is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidGraph
from epctx_native_formats.binaries import NativeBinary
from epctx_native_formats.bson import decode, encode

if TYPE_CHECKING:
    from epctx_native_formats.binaries import BinaryReader

ALIGNMENT = 1 << 16
"""Blobs begin at multiples of it, and so does what would follow the container."""
TABLE_VERSION = "1.0.0"
"""Version of tables as Intel's EP and this package write them."""

_MAGIC = b"OVEP_BIN"
_VERSION = 1
_HEADER = struct.Struct("<8sQQQQ")
"""Magic, version, own size, offset of the table, size of the table."""
_BLOBS = "blob_metadata_map"
_LARGEST = (1 << 63) - 1
_LONGEST_TABLE = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table of a container.

    Attributes:
        fields: what it says of the container: `version`, `producer`, and what else its
            producer wrote.
        entries: by the name of a blob its `data_offset` and `size`, and what else its
            producer wrote of it.
    """

    fields: Mapping[str, Any]
    entries: Mapping[str, Mapping[str, Any]]


def lay_out(
    fields: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]
) -> Table:
    """Return the table of blobs that lie one behind the other, in the order given.

    Args:
        fields: as those of a `Table`.
        entries: as those of a `Table`, without `data_offset`.
    """
    # As Intel's EP does: room for a table of the largest numbers, whatever they become.
    longest = {
        name: {**entry, "data_offset": _LARGEST, "size": _LARGEST}
        for name, entry in entries.items()
    }
    encoded = _encode_table(fields, longest)
    offset = align(_HEADER.size + len(encoded))
    placed = {}
    for name, entry in entries.items():
        placed[name] = {**entry, "data_offset": offset}
        offset = align(offset + entry["size"])
    return Table(fields=fields, entries=placed)


def align(offset: int) -> int:
    """Return the first multiple of `ALIGNMENT` that is not below an offset."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def encode_head(table: Table) -> bytes:
    """Return the bytes before the first blob: header, table and padding.

    Raises:
        ValueError: the table is above 16 MiB, or a name has a NUL.
    """
    encoded = _encode_table(table.fields, table.entries)
    if len(encoded) > _LONGEST_TABLE:
        raise ValueError(
            f"the table would have {len(encoded):,} bytes, and may have "
            f"{_LONGEST_TABLE:,}"
        )
    head = _HEADER.pack(_MAGIC, _VERSION, _HEADER.size, _HEADER.size, len(encoded))
    offsets = [entry["data_offset"] for entry in table.entries.values()]
    end = align(_HEADER.size + len(encoded))
    first = min(offsets, default=end)
    return (head + encoded).ljust(first, b"\0")


def _encode_table(
    fields: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]
) -> bytes:
    """Return the table in BSON, its keys sorted as Intel's EP does; blobs stay in
    their order.
    """
    blobs = {}
    for name, entry in entries.items():
        blobs[name] = dict(sorted(entry.items()))

    table = {**fields, _BLOBS: blobs}
    return encode(dict(sorted(table.items())))


def is_container(content: memoryview) -> bool:
    """Return whether bytes begin as those of a container."""
    return bytes(content[: len(_MAGIC)]) == _MAGIC


def matches(head: bytes) -> bool:
    """Return whether a binary begins as a container does."""
    return is_container(memoryview(head))


def read(content: memoryview, name: str, _reader: BinaryReader) -> NativeBinary:
    """Return the description of a container; see `NativeFormat.read`. What is in its
    blobs is known to OpenVINO alone.
    """
    table = decode_table(content, name)
    return NativeBinary(
        format="openvino",
        title="container of onnxruntime's OpenVINO EP",
        bytes=len(content),
        source="OpenVINOExecutionProvider",
        sdk=str(table.fields.get("producer", "")),
        facts={"version of the table": str(table.fields["version"])},
        parts={blob: entry["size"] for blob, entry in table.entries.items()},
    )


def decode_table(content: memoryview, name: str) -> Table:
    """Return the table of a container, read whole; blobs are not touched.

    Args:
        content: the container.
        name: what errors call it.

    Raises:
        InvalidGraph: it is damaged, or of another format or version.
    """
    if len(content) % ALIGNMENT:
        raise make_error(name, f"its length is not a multiple of {ALIGNMENT:,}")
    fields = _decode_fields(content, name)
    version = fields.get("version")
    if (
        not isinstance(version, str)
        or version.partition(".")[0] != TABLE_VERSION.partition(".")[0]
    ):
        raise _make_version_error(name, f"{version!r:.80}", f"like {TABLE_VERSION}")
    entries = fields.pop(_BLOBS, None)
    if not isinstance(entries, dict):
        raise make_error(name, "its table has no blobs")
    _check_places(entries, len(content), name)
    return Table(fields=fields, entries=entries)


def _decode_fields(content: memoryview, name: str) -> dict[str, Any]:
    if len(content) < _HEADER.size or not is_container(content):
        raise make_error(
            name, f"it does not begin with {_MAGIC.decode()}, as those of OpenVINO do"
        )
    _, version, header, offset, size = _HEADER.unpack(content[: _HEADER.size])
    if version != _VERSION:
        raise _make_version_error(name, str(version), str(_VERSION))
    if header != _HEADER.size:
        raise make_error(name, f"its header has {header} bytes, not {_HEADER.size}")
    if (
        not _HEADER.size <= offset <= offset + size <= len(content)
        or size > _LONGEST_TABLE
    ):
        raise make_error(
            name,
            f"its table of {size:,} bytes at {offset:,} lies outside of it, or is "
            "too long",
        )
    try:
        return decode(bytes(content[offset : offset + size]))
    except ValueError as error:
        raise make_error(name, f"its table cannot be read ({error})") from error


def _check_places(entries: Mapping[str, Any], length: int, name: str) -> None:
    """Check that each blob lies within the container and none shares bytes: a small
    file could then be as much work as a large one.
    """
    places = []
    for blob, entry in entries.items():
        fields = entry if isinstance(entry, dict) else {}
        offset = fields.get("data_offset")
        size = fields.get("size")
        if type(offset) is not int or type(size) is not int:
            raise make_error(
                name, f"its table has no offset and size of the blob {blob!r:.200}"
            )
        if not _HEADER.size <= offset < offset + size <= length:
            raise make_error(name, f"the blob {blob!r:.200} lies outside of it")
        places.append((offset, size))

    last = 0
    for offset, size in sorted(places):
        if offset < last:
            raise make_error(name, f"two of its blobs overlap at byte {offset:,}")
        last = offset + size


def _make_version_error(name: str, found: str, read: str) -> InvalidGraph:
    """Return the error for a container in a version of the format that is not read."""
    return InvalidGraph(
        f"the payload {name} has version {found} of OpenVINO's container, and versions "
        f"{read} are read.",
        hint="Upgrade epctx-native-formats, or compile the model again.",
    )


def make_error(name: str, fault: str) -> InvalidGraph:
    """Return the error that a container is not what it has to be."""
    return InvalidGraph(
        f"the payload {name} is damaged, or not OpenVINO's: {fault}.",
        hint="Fetch the context binary again, or compile the model again.",
    )
