"""Entries of a context model's metadata: keys, reading and setting one, and what EPs wrote about compatibility."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto


MANIFEST = "epctx.manifest"
INITIALIZERS = "epctx.initializers"
KERNEL_TYPES = "epctx.kernel_type_constraints"
COMPATIBILITY_PREFIX = "ep_compatibility_info."
EARLIER_PREFIX = "epctx.earlier_compatibility_info."


def metadata_value(model: ModelProto, key: str) -> str | bytes | None:
    """Return one metadata entry, bytes if it is not UTF-8, None if there is none; of several with one key, the first."""
    return next((entry.value for entry in model.metadata_props if entry.key == key), None)


def set_metadata(model: ModelProto, key: str, value: str) -> None:
    """Set one metadata entry; an entry of that key is replaced where it stands."""
    for entry in model.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    model.metadata_props.add(key=key, value=value)


MOST_PARTS = 1 << 23
"""Entries of all lists and objects; each takes 20 to 100 bytes of memory, up to 30 times its text.

A manifest of a hundred thousand payloads, or of a hundred of 10 GiB each, has a quarter of them.
"""


def parse_json(text: str | bytes, most: int | None = None) -> Any:
    """Return what a text says.

    Args:
        text: JSON.
        most: entries that it may have; None for `MOST_PARTS`.

    Raises:
        ValueError: no JSON, or too many entries.
        RecursionError: nested too deeply.
    """
    marks: tuple[Any, ...] = (b",", b":", b"[", b"{") if isinstance(text, bytes) else (",", ":", "[", "{")
    most = MOST_PARTS if most is None else most
    if len(text) > most and sum(map(text.count, marks)) > most:
        raise ValueError(f"it has more than {most:,} entries")
    return json.loads(text)


def all_compatibility_info(model: ModelProto) -> dict[str, list[str]]:
    """Return EP type to all that EP said about what it compiled, the newest first.

    Raises:
        InvalidGraph: it is no text.
    """
    metadata: dict[str, str] = {}
    for entry in model.metadata_props:
        # protobuf hands out what is not UTF-8 as bytes.
        key: str | bytes = entry.key
        value: str | bytes = entry.value
        if isinstance(key, str) and key.startswith((COMPATIBILITY_PREFIX, EARLIER_PREFIX)):
            if not isinstance(value, str):
                raise InvalidGraph(
                    f"the model's metadata {key!r} is not UTF-8.", hint="Fetch the model again."
                )
            metadata[key] = value
    eps = dict.fromkeys(
        key.removeprefix(COMPATIBILITY_PREFIX).removeprefix(EARLIER_PREFIX) for key in metadata
    )
    return {ep: texts_of(ep, metadata) for ep in eps}


def texts_of(ep: str, metadata: Mapping[str, str]) -> list[str]:
    """Return all that one EP said, out of a model's metadata; see `all_compatibility_info`."""
    newest = metadata.get(COMPATIBILITY_PREFIX + ep)
    try:
        earlier = parse_json(metadata.get(EARLIER_PREFIX + ep, "[]"))
    except (ValueError, RecursionError):
        earlier = None
    if not isinstance(earlier, list) or not all(isinstance(text, str) for text in earlier):
        raise InvalidGraph(
            f"the model's metadata {EARLIER_PREFIX + ep!r} is damaged.", hint="Fetch the model again."
        )
    return [*([] if newest is None else [newest]), *earlier]
