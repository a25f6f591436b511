"""Entries of a model's metadata, and the compatibility texts of EPs among them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

INITIALIZERS = "epctx.initializers"
COMPATIBILITY_PREFIX = "ep_compatibility_info."
EARLIER_PREFIX = "epctx.earlier_compatibility_info."
MODE_KEY = "weightless_mode"
"""ONNX Runtime's key for the weightless mode that a model was compiled with."""


def get_metadata(
    model: ModelProto | NodeProto | Mapping[str, str], key: str
) -> str | bytes | None:
    """Return one metadata entry of a model or a node, or of those read of one before;
    bytes if it is not UTF-8, None if there is none; of several in a model, the first.
    """
    if isinstance(model, Mapping):
        return model.get(key)
    return next(
        (entry.value for entry in model.metadata_props if entry.key == key), None
    )


def set_metadata(model: ModelProto, key: str, value: str) -> None:
    """Set one metadata entry; an existing entry keeps its position."""
    for entry in model.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    model.metadata_props.add(key=key, value=value)


def remove_metadata(model: ModelProto, keys: Collection[str]) -> None:
    """Remove the metadata entries with these keys."""
    # It imports onnx, which readers of metadata do without.
    from epctx_core.graph.walks import keep_messages

    keep_messages(model.metadata_props, lambda entry: entry.key not in keys)


MOST_PARTS = 1 << 23
"""Entries of all lists and objects; each takes 20 to 100 bytes of memory, up to 30
times its text.

A manifest of a hundred thousand payloads, or of a hundred of 10 GiB each, has a quarter
of them.
"""


def parse_json(text: str | bytes, limit: int = MOST_PARTS) -> Any:
    """Return the value of a JSON text.

    Args:
        text: JSON.
        limit: entries that it may have.

    Raises:
        ValueError: no JSON, or too many entries.
        RecursionError: nested too deeply.
    """
    # `count` of bytes takes the numbers that bytes are.
    marks: Any = b",:[{" if isinstance(text, bytes) else ",:[{"
    if len(text) > limit and sum(map(text.count, marks)) > limit:
        raise ValueError(f"it has more than {limit:,} entries")
    return json.loads(text)


_T = TypeVar("_T")


def read_json(
    model: ModelProto | Mapping[str, str],
    key: str,
    read: Callable[[Any], _T],
    limit: int = MOST_PARTS,
) -> _T | None:
    """Return the value of a metadata entry of JSON, None if there is no such entry.

    Args:
        model: has it in its metadata.
        key: the entry's.
        read: makes it of the parsed text.
        limit: entries that its lists and objects may have; see `parse_json`.

    Raises:
        InvalidGraph: it is damaged.
    """
    text = get_metadata(model, key)
    return (
        None
        if text is None
        else read_json_text(text, f"the model's {key} metadata", read, limit)
    )


def read_json_text(
    text: str | bytes, what: str, read: Callable[[Any], _T], limit: int = MOST_PARTS
) -> _T:
    """Return the value of a text of JSON that `what` names; see `read_json`."""
    try:
        return read(parse_json(text, limit))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidGraph(
            f"{what} is damaged: {error!r:.200}.",
            hint="Fetch the model again, or compile again.",
        ) from error


def read_compatibility_info(model: ModelProto) -> dict[str, list[str]]:
    """Return the compatibility information of each EP, by EP name, the newest first.

    Raises:
        InvalidGraph: it is damaged.
    """
    # protobuf gives bytes for text that is not UTF-8.
    metadata: dict[str, str | bytes] = {
        entry.key: entry.value
        for entry in model.metadata_props
        if isinstance(entry.key, str)
    }
    prefixes = (COMPATIBILITY_PREFIX, EARLIER_PREFIX)
    eps = dict.fromkeys(
        key.removeprefix(p) for key in metadata for p in prefixes if key.startswith(p)
    )
    return {ep: read_compatibility_texts(ep, metadata) for ep in eps}


def read_compatibility_texts(ep: str, metadata: Mapping[str, str | bytes]) -> list[str]:
    """Return the same for one EP, from a model's metadata."""
    newest = metadata.get(COMPATIBILITY_PREFIX + ep)
    with suppress(ValueError, RecursionError):
        texts = parse_json(metadata.get(EARLIER_PREFIX + ep, "[]"))
        if isinstance(texts, list):
            texts[:0] = [] if newest is None else [newest]
            if all(isinstance(text, str) for text in texts):
                return texts
    raise InvalidGraph(
        f"the model's metadata of what {ep} wrote about compatibility is damaged.",
        hint="Fetch the model again.",
    )
