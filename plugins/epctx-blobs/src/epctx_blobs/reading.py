"""Reading of the blobs of a payload; a damaged container is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_blobs.layout import FOOTER, LONGEST_TABLE, MAGIC
from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from epctx_core.plugin import PayloadView

_Table: TypeAlias = dict[str, dict[str, Any]]
_HINT = "Fetch the context binary again, or compile the model again."


class Blobs(Mapping[str, memoryview]):
    """Blobs of a payload that `write_blobs` wrote, by name; views without a copy.

    The table's digest is checked here, a blob's on its first use; neither if the core
    has digested the whole payload (`PayloadView.verified`). Make one for each payload,
    not for each node: it reads the whole table.

    Args:
        payload: the payload.
        kind: its expected kind.

    Raises:
        InvalidGraph: it is damaged, of another format, or of another kind.

    Examples:
        >>> payloads = [reader.payload(node) for node in nodes]
        >>> opened = {payload: Blobs(payload) for payload in set(payloads)}
        >>> programs = [
        ...     opened[payload][node.partition_name]
        ...     for payload, node in zip(payloads, nodes)
        ... ]
    """

    def __init__(self, payload: PayloadView, *, kind: str = "") -> None:
        self._name = payload.name
        self._view = payload.view
        self._trusted = payload.verified
        self._checked = set[tuple[int, int, str]]()
        try:
            self._table = self._read(kind)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise self._make_error(f"its table cannot be read ({error})") from error

    def __getitem__(self, name: str) -> memoryview:
        """Return a blob.

        Raises:
            InvalidGraph: there is none of that name, or it was changed.
        """
        entry = self._get_entry(name)
        offset, length, digest = entry["offset"], entry["length"], entry["sha256"]
        blob = self._view[offset : offset + length]
        extent = offset, length, digest
        if not self._trusted and extent not in self._checked:
            if hashlib.sha256(blob).hexdigest() != digest:
                raise self._make_error(
                    f"the blob {name!r:.200} does not have the digest that its table "
                    "says"
                )
            self._checked.add(extent)
        return blob

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return a blob, or the default if there is none of that name."""
        return self[name] if name in self._table else default

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def facts(self, name: str) -> Mapping[str, Any]:
        """Return the facts of a blob.

        Raises:
            InvalidGraph: there is none of that name.
        """
        facts: Mapping[str, Any] = self._get_entry(name)["facts"]
        return facts

    def _get_entry(self, name: str) -> dict[str, Any]:
        try:
            return self._table[name]
        except KeyError:
            raise InvalidGraph(
                f"the payload {self._name} has no blob {name!r:.200}.", hint=_HINT
            ) from None

    def _read(self, kind: str) -> _Table:
        is_short = len(self._view) < FOOTER.size
        mark = bytes(self._view[-len(MAGIC) :])
        is_other = mark[:-1] == MAGIC[:-1] and mark[-1:].isdigit()
        if is_other and mark != MAGIC:
            raise InvalidGraph(
                f"the payload {self._name} has version {mark[-1:].decode()} of its "
                f"format, and this epctx-blobs reads version {MAGIC[-1:].decode()}.",
                hint="Upgrade epctx-blobs, or compile the model again.",
            )
        if is_short or mark != MAGIC:
            raise self._make_error("it does not end as a container of blobs does")

        length, digest, _ = FOOTER.unpack(self._view[-FOOTER.size :])
        end = len(self._view) - FOOTER.size
        if length > min(end, LONGEST_TABLE):
            raise ValueError(f"{length:,} bytes")
        text = bytes(self._view[end - length : end])
        if not self._trusted:
            actual = hashlib.sha256(text).digest()
            if actual != digest:
                raise ValueError("it does not have its digest")

        content = json.loads(text)
        if content["kind"] != kind:
            raise InvalidGraph(
                f"the payload {self._name} is of the kind {content['kind']!r:.80}, and "
                f"this EP reads {kind!r}.",
                hint="Install the version of the plugin that made it, or compile the "
                "model again.",
            )
        table: _Table = content["blobs"]
        _check_entries(table, end - length)
        _refuse_overlaps(table)
        return table

    def _make_error(self, fault: str) -> InvalidGraph:
        return InvalidGraph(
            f"the payload {self._name} is damaged or another EP's: {fault}.",
            hint=_HINT,
        )


def _check_entries(table: _Table, end: int) -> None:
    """Check types of a table, and that all its blobs lie before its own first byte."""
    for name, entry in table.items():
        offset = entry["offset"]
        size = entry["length"]
        if (
            type(offset) is not int
            or type(size) is not int
            or not 0 <= offset <= offset + size <= end
        ):
            raise ValueError(f"the blob {name!r:.200} lies outside of the payload")
        digest = entry["sha256"]
        facts = entry["facts"]
        if type(digest) is not str or type(facts) is not dict:
            raise ValueError(f"what it says of the blob {name!r:.200}")


def _refuse_overlaps(table: _Table) -> None:
    """Refuse blobs that overlap, so that each byte is digested once; only equal weights
    under several names lie at one offset.
    """
    last = 0
    extents = {(entry["offset"], entry["length"]) for entry in table.values()}
    for offset, size in sorted(extents):
        if size and offset < last:
            raise ValueError(f"two blobs overlap at byte {offset:,}")
        last = max(last, offset + size)
