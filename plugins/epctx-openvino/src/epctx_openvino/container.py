"""OVEP_BIN, the container of onnxruntime's OpenVINO EP: a header, a table in BSON,
blobs at multiples of 64 KiB.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import bson

from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from epctx_core.plugin import Payload, PayloadView

PRODUCER = "epctx-openvino-0.1.0"
_MAGIC = b"OVEP_BIN"
_VERSION = 1
_HEADER = struct.Struct("<8sQQQQ")
"""Magic, version, own size, offset of the table, size of the table."""
_TABLE_VERSION = "1.0.0"
_BLOBS, _WEIGHTS = "blob_metadata_map", "weights_metadata_map"
_ALIGNMENT = 1 << 16
_LONGEST_TABLE = 1 << 24
_HINT = "Fetch the context binary again, or compile the model again."


@dataclass(frozen=True, kw_only=True)
class Blob:
    """Compiled program of one partition.

    Attributes:
        data: the bytes that OpenVINO exported.
        precision: the option `precision` that it was compiled with; None in a container
            of onnxruntime's EP.
    """

    data: memoryview
    precision: str | None


def write_container(payload: Payload, blobs: Mapping[str, Blob]) -> None:
    """Write blobs into an empty payload.

    Args:
        payload: empty.
        blobs: by the name that their nodes have in `partition_name`.

    Raises:
        ValueError: a table above 16 MiB.
    """
    table = _lay_out(blobs)
    payload.write(
        _HEADER.pack(_MAGIC, _VERSION, _HEADER.size, _HEADER.size, len(table)) + table
    )
    for blob in blobs.values():
        payload.align(_ALIGNMENT)
        payload.write(blob.data)
    payload.align(_ALIGNMENT)


def _lay_out(blobs: Mapping[str, Blob]) -> bytes:
    """Return the table; it stands before the blobs, whose offsets it contains."""
    digests = {
        name: hashlib.sha256(blob.data).hexdigest() for name, blob in blobs.items()
    }
    start, table = 0, b""
    while start < (needed := _round_up(_HEADER.size + len(table))):
        start = offset = needed
        entries = {}
        for name, blob in blobs.items():
            entries[name] = {
                "data_offset": offset,
                "precision": blob.precision or "",
                "sha256": digests[name],
                "size": len(blob.data),
            }
            offset = _round_up(offset + len(blob.data))
        table = bson.encode(
            {_BLOBS: entries, "producer": PRODUCER, "version": _TABLE_VERSION}
        )
    if len(table) > _LONGEST_TABLE:
        raise ValueError(
            f"the table would have {len(table):,} bytes, and may have "
            f"{_LONGEST_TABLE:,}"
        )
    return table


def _round_up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Container(Mapping[str, Blob]):
    """Blobs of a payload by name: views of it, without a copy.

    The table is read whole and every entry's bounds are checked here. A blob's digest
    is checked on its first use, unless the model has digests of the payload, which the
    core checks. Containers of onnxruntime's EP have none.

    Args:
        payload: the payload.

    Raises:
        InvalidGraph: it is damaged, of another format or version, or keeps its weights
            elsewhere.
    """

    def __init__(self, payload: PayloadView) -> None:
        self._name = payload.name
        self._unchecked: dict[str, str] = {}
        view = payload.view
        if len(view) % _ALIGNMENT:
            raise self._error(f"its length is not a multiple of {_ALIGNMENT:,}")
        table = self._read_table(view)
        version, entries = table.get("version"), table.get(_BLOBS)
        if (
            not isinstance(version, str)
            or version.partition(".")[0] != _TABLE_VERSION.partition(".")[0]
        ):
            raise self._error(
                f"its table has version {version!r:.80}, and this EP reads those like "
                f"{_TABLE_VERSION}"
            )
        if table.get(_WEIGHTS):
            raise self._error(
                "its weights lie in other files, which this EP does not read"
            )
        if not isinstance(entries, dict):
            raise self._error("its table has no blobs")
        self._blobs = {
            name: self._read_blob(view, name, entry) for name, entry in entries.items()
        }
        self._refuse_overlaps(entries)
        if payload.digest is None and not payload.verified:
            found = {name: entry.get("sha256") for name, entry in entries.items()}
            self._unchecked = {
                name: digest for name, digest in found.items() if digest is not None
            }

    def __getitem__(self, name: str) -> Blob:
        """Return a blob.

        Raises:
            InvalidGraph: there is none of that name, or it was changed.
        """
        try:
            blob = self._blobs[name]
        except KeyError:
            raise InvalidGraph(
                f"the payload {self._name} has no blob {name!r:.200}.", hint=_HINT
            ) from None
        digest = self._unchecked.get(name)
        if digest is not None and hashlib.sha256(blob.data).hexdigest() != digest:
            raise self._error(
                f"the blob {name!r:.200} does not have the digest that its table says"
            )
        self._unchecked.pop(name, None)
        return blob

    def __iter__(self) -> Iterator[str]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)

    def _read_table(self, view: memoryview) -> dict[str, Any]:
        if len(view) < _HEADER.size or bytes(view[: len(_MAGIC)]) != _MAGIC:
            raise self._error(
                f"it does not begin with {_MAGIC.decode()}, as those of OpenVINO do"
            )
        _, version, header, offset, size = _HEADER.unpack(view[: _HEADER.size])
        if (version, header) != (_VERSION, _HEADER.size):
            raise self._error(
                f"it has version {version} and a header of {header} bytes, not 1 and 40"
            )
        if (
            not _HEADER.size <= offset <= offset + size <= len(view)
            or size > _LONGEST_TABLE
        ):
            raise self._error(
                f"its table of {size:,} bytes at {offset:,} lies outside of it, or is "
                "too long"
            )
        try:
            table: dict[str, Any] = bson.decode(bytes(view[offset : offset + size]))
        # bson raises its own errors, and for some bytes those of Python.
        except Exception as error:
            raise self._error(f"its table cannot be read ({error})") from error
        return table

    def _read_blob(self, view: memoryview, name: str, entry: Any) -> Blob:
        found = entry if isinstance(entry, dict) else {}
        offset, size, precision = (
            found.get("data_offset"),
            found.get("size"),
            found.get("precision", ""),
        )
        if (
            not isinstance(offset, int)
            or not isinstance(size, int)
            or not isinstance(precision, str)
        ):
            raise self._error(
                f"its table has no offset, size and precision of the blob {name!r:.200}"
            )
        if not _HEADER.size <= offset <= offset + size <= len(view) or size == 0:
            raise self._error(f"the blob {name!r:.200} lies outside of it")
        return Blob(data=view[offset : offset + size], precision=precision or None)

    def _refuse_overlaps(self, entries: Mapping[str, Mapping[str, int]]) -> None:
        """Refuse blobs that share bytes: a small file could then be as much work as a
        large one.
        """
        last = 0
        for offset, size in sorted(
            (entry["data_offset"], entry["size"]) for entry in entries.values()
        ):
            if offset < last:
                raise self._error(f"two of its blobs overlap at byte {offset:,}")
            last = offset + size

    def _error(self, fault: str) -> InvalidGraph:
        return InvalidGraph(
            f"the payload {self._name} is damaged, or not OpenVINO's: {fault}.",
            hint=_HINT,
        )
