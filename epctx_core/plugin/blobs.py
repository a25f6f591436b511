"""A container for EPs whose payload is several blobs, such as one a partition: aligned, in a table, with digests.

Blobs first, each at a multiple of 4096; behind them the table as JSON, then a foot: so that it is written front to back.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.plugin.storage import Payload, PayloadView
    from epctx_core.plugin.views import TensorView

    Blob: TypeAlias = "Buffer | TensorView | str | os.PathLike[str]"

_ALIGNMENT = 4096
_MAGIC = b"EPCTXBL1"
_FOOT = struct.Struct("<Q32s8s")
_LONGEST_TABLE = 1 << 24
_HINT = "Fetch the context binary again, or compile the model again."


def write_blobs(
    payload: Payload,
    blobs: Mapping[str, Blob],
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    kind: str = "",
) -> None:
    """Write blobs and their table into a payload; nothing may be written behind them.

    Args:
        payload: empty.
        blobs: by name, such as `partition.name`: bytes, a weight, or a file's path. Equal weights are stored once.
        facts: by the same names, what else a load needs to know, as JSON can hold it.
        kind: what tells these payloads from other EPs', and versions of them apart.

    Raises:
        ValueError: facts about no blob, or a table above 16 MiB.
    """
    table, content = {}, dict[str, Any](blobs)
    if strange := (facts or {}).keys() - content.keys():
        raise ValueError(f"there are facts about {min(strange)!r:.200}, but no such blob")
    for name, blob in content.items():
        offset, length = payload.align(_ALIGNMENT), None
        if hasattr(blob, "chunks"):
            offset, length, digest = payload.write_tensor(blob), blob.nbytes, blob.digest
        elif isinstance(blob, (str, os.PathLike)):
            with Path(blob).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            payload.add_file(blob)
        else:
            digest = hashlib.sha256(blob).hexdigest()
            payload.write(blob)
        own = {} if facts is None else dict(facts.get(name, {}))
        length = payload.size - offset if length is None else length
        table[name] = {"offset": offset, "length": length, "sha256": digest, "facts": own}
    text = json.dumps({"blobs": table, "kind": kind}, sort_keys=True).encode()
    if len(text) > _LONGEST_TABLE:
        raise ValueError(
            f"the table would have {len(text):,} bytes, and may have {_LONGEST_TABLE:,}: put facts in a blob"
        )
    payload.write(text + _FOOT.pack(len(text), hashlib.sha256(text).digest(), _MAGIC))


class Blobs(Mapping[str, memoryview]):
    """The blobs of a payload that `write_blobs` wrote, by name; views of it, nothing is copied.

    The table's digest is checked here, a blob's when it is first asked for; neither where the core has digested the
    whole payload (`PayloadView.verified`). Make one for each payload, not for each node: it reads the whole table.

    Args:
        payload: to read.
        kind: the one that it has to be of.

    Raises:
        InvalidGraph: it is damaged, something else, or of another kind.

    Example:
        >>> opened = {payload: Blobs(payload) for payload in set(map(reader.payload, nodes))}
        >>> programs = [opened[reader.payload(node)][node.partition_name] for node in nodes]
    """

    def __init__(self, payload: PayloadView, *, kind: str = "") -> None:
        self._name, self._view, self._trusted = payload.name, payload.view, payload.verified
        self._checked = set[tuple[int, int, str]]()
        try:
            self._table = self._read(kind)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._damaged(f"its table cannot be read ({error})") from error

    def __getitem__(self, name: str) -> memoryview:
        """Return a blob.

        Raises:
            InvalidGraph: there is none of that name, or it is not what was written.
        """
        entry = self._entry(name)
        blob = self._view[entry["offset"] : entry["offset"] + entry["length"]]
        known = entry["offset"], entry["length"], entry["sha256"]
        if not self._trusted and known not in self._checked:
            if hashlib.sha256(blob).hexdigest() != entry["sha256"]:
                raise self._damaged(f"the blob {name!r:.200} does not have the digest that its table says")
            self._checked.add(known)
        return blob

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return a blob, or the default if there is none of that name."""
        found = name in self._table
        return self[name] if found else default

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def facts(self, name: str) -> Mapping[str, Any]:
        """Return what `write_blobs` was told about a blob.

        Raises:
            InvalidGraph: there is none of that name.
        """
        facts: Mapping[str, Any] = self._entry(name)["facts"]
        return facts

    def _entry(self, name: str) -> dict[str, Any]:
        try:
            return self._table[name]
        except KeyError:
            raise InvalidGraph(f"the payload {self._name} has no blob {name!r:.200}.", hint=_HINT) from None

    def _read(self, kind: str) -> dict[str, dict[str, Any]]:
        if len(self._view) < _FOOT.size or bytes(self._view[-len(_MAGIC) :]) != _MAGIC:
            raise self._damaged("it does not end as a container of blobs does")
        length, digest, _ = _FOOT.unpack(self._view[-_FOOT.size :])
        end = len(self._view) - _FOOT.size
        if length > min(end, _LONGEST_TABLE):
            raise ValueError(f"{length:,} bytes")
        text = bytes(self._view[end - length : end])
        if not self._trusted and hashlib.sha256(text).digest() != digest:
            raise ValueError("it does not have its digest")
        content = json.loads(text)
        if content["kind"] != kind:
            raise self._damaged(f"it is of the kind {content['kind']!r:.80}, and read as {kind!r}")
        table: dict[str, dict[str, Any]] = content["blobs"]
        for name, entry in table.items():
            offset, size = entry["offset"], entry["length"]
            if (
                type(offset) is not int
                or type(size) is not int
                or not 0 <= offset <= offset + size <= end - length
            ):
                raise ValueError(f"the blob {name!r:.200} lies outside of the payload")
            if type(entry["sha256"]) is not str or type(entry["facts"]) is not dict:
                raise ValueError(f"what it says of the blob {name!r:.200}")
        # Each byte is digested once: blobs lie apart, but for equal weights under several names.
        last = 0
        for offset, size in sorted({(entry["offset"], entry["length"]) for entry in table.values()}):
            if size and offset < last:
                raise ValueError(f"two blobs overlap at byte {offset:,}")
            last = max(last, offset + size)
        return table

    def _damaged(self, what: str) -> InvalidGraph:
        return InvalidGraph(f"the payload {self._name} is damaged or another EP's: {what}.", hint=_HINT)
