"""Compiled programs in a container of onnxruntime's OpenVINO EP, each with the
precision and the digest that the EP's own lack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epctx_native_formats.openvino import (
    ALIGNMENT,
    TABLE_VERSION,
    decode_table,
    encode_head,
    lay_out,
    make_error,
)

from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from epctx_core.plugin import Payload, PayloadView

PRODUCER = "epctx-openvino-0.1.0"
_WEIGHTS = "weights_metadata_map"


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
    entries = {
        name: {
            "precision": blob.precision or "",
            "sha256": hashlib.sha256(blob.data).hexdigest(),
            "size": len(blob.data),
        }
        for name, blob in blobs.items()
    }
    table = lay_out({"producer": PRODUCER, "version": TABLE_VERSION}, entries)
    payload.write(encode_head(table))
    for blob in blobs.values():
        payload.write(blob.data)
        payload.align(ALIGNMENT)


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
        table = decode_table(view, payload.name)
        if table.fields.get(_WEIGHTS):
            raise make_error(
                self._name,
                "its weights lie in other files, which this EP does not read",
            )
        self._blobs = {
            name: self._read_blob(view, name, entry)
            for name, entry in table.entries.items()
        }
        if payload.digest is None and not payload.verified:
            digests = {
                name: entry.get("sha256") for name, entry in table.entries.items()
            }
            self._unchecked = {
                name: digest for name, digest in digests.items() if digest is not None
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
                f"the payload {self._name} has no blob {name!r:.200}.",
                hint="Fetch the context binary again, or compile the model again.",
            ) from None
        digest = self._unchecked.get(name)
        if digest is not None and hashlib.sha256(blob.data).hexdigest() != digest:
            raise make_error(
                self._name,
                f"the blob {name!r:.200} does not have the digest that its table says",
            )
        self._unchecked.pop(name, None)
        return blob

    def __iter__(self) -> Iterator[str]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)

    def _read_blob(self, view: memoryview, name: str, entry: Mapping[str, Any]) -> Blob:
        precision = entry.get("precision", "")
        if not isinstance(precision, str):
            raise make_error(
                self._name, f"the precision of the blob {name!r:.200} is not a text"
            )
        offset = entry["data_offset"]
        data = view[offset : offset + entry["size"]]
        return Blob(data=data, precision=precision or None)
