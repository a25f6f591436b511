"""Writing of blobs and their table into a payload."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_blobs.layout import ALIGNMENT, FOOTER, LONGEST_TABLE, MAGIC

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.plugin import Payload, TensorView

    Blob: TypeAlias = "Buffer | TensorView | str | os.PathLike[str]"


def write_blobs(
    payload: Payload,
    blobs: Mapping[str, Blob],
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    kind: str = "",
) -> None:
    """Write blobs and their table into a payload; nothing may be written after them.

    Args:
        payload: empty.
        blobs: by name, such as `partition.name`: bytes, a weight, or a file's path.
            Equal weights are stored once.
        facts: by the same names, further values for a load, which JSON can represent.
        kind: text that distinguishes these payloads from those of other EPs, and their
            versions.

    Raises:
        TypeError: facts, or those of a blob, that are not a mapping.
        ValueError: facts for a missing blob, or a table above 16 MiB.
    """
    content = dict[str, Any](blobs)
    facts = {} if facts is None else facts
    _check_facts(facts, content)

    table = {}
    for name, blob in content.items():
        offset, length, digest = _write_blob(payload, blob)
        table[name] = {
            "offset": offset,
            "length": length,
            "sha256": digest,
            "facts": dict(facts.get(name, {})),
        }

    text = json.dumps({"blobs": table, "kind": kind}, sort_keys=True).encode()
    if len(text) > LONGEST_TABLE:
        raise ValueError(
            f"the table would have {len(text):,} bytes, and may have "
            f"{LONGEST_TABLE:,}: put facts in a blob"
        )

    table_digest = hashlib.sha256(text).digest()
    footer = FOOTER.pack(len(text), table_digest, MAGIC)
    payload.write(text + footer)


def _check_facts(facts: object, blobs: Mapping[str, Any]) -> None:
    """Refuse facts that are not mappings, or of a blob that is not there."""
    if not isinstance(facts, Mapping):
        raise TypeError(f"facts are of type {type(facts).__name__}, not a mapping")

    for name, blob_facts in facts.items():
        if not isinstance(blob_facts, Mapping):
            raise TypeError(
                f"facts of the blob {name!r:.200} are of type "
                f"{type(blob_facts).__name__}, not a mapping"
            )

    if strange := facts.keys() - blobs.keys():
        raise ValueError(f"there are facts for {min(strange)!r:.200}, but no such blob")


def _write_blob(payload: Payload, blob: Any) -> tuple[int, int, str]:
    """Write one blob; return its offset, length and digest."""
    offset = payload.align(ALIGNMENT)
    if hasattr(blob, "chunks"):
        # An equal weight may be there already, at another offset.
        return payload.write_tensor(blob), blob.nbytes, blob.digest

    if isinstance(blob, (str, os.PathLike)):
        with Path(blob).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        payload.add_file(blob)
    else:
        digest = hashlib.sha256(blob).hexdigest()
        payload.write(blob)
    return offset, payload.size - offset, digest
