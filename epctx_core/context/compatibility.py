"""Compatibility information in a model's metadata, under ONNX Runtime's keys.

ONNX Runtime has one text an EP. Where an EP compiled parts of a model at different times, its earlier texts
stand under a key of ours: the model runs only where each of them is supported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from epctx_core.context.json_text import parse_json
from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from onnx import ModelProto

PREFIX = "ep_compatibility_info."
EARLIER_PREFIX = "epctx.earlier_compatibility_info."


def compatibility_info(model: ModelProto) -> dict[str, str]:
    """Return EP type to what that EP once said about the compiled model.

    Raises:
        InvalidGraph: it is no text.
    """
    return _texts(model, PREFIX)


def all_compatibility_info(model: ModelProto) -> dict[str, list[str]]:
    """Return EP type to all that EP said about what it compiled, the newest first.

    Raises:
        InvalidGraph: as `compatibility_info`.
    """
    metadata = {PREFIX + ep: info for ep, info in _texts(model, PREFIX).items()}
    metadata |= {EARLIER_PREFIX + ep: info for ep, info in _texts(model, EARLIER_PREFIX).items()}
    eps = dict.fromkeys(key.removeprefix(PREFIX).removeprefix(EARLIER_PREFIX) for key in metadata)
    return {ep: texts_of(ep, metadata) for ep in eps}


def texts_of(ep: str, metadata: Mapping[str, str]) -> list[str]:
    """Return all that one EP said, out of a model's metadata; see `all_compatibility_info`."""
    newest = metadata.get(PREFIX + ep)
    try:
        earlier = parse_json(metadata.get(EARLIER_PREFIX + ep, "[]"))
    except (ValueError, RecursionError):
        earlier = None
    if not isinstance(earlier, list) or not all(isinstance(text, str) for text in earlier):
        raise InvalidGraph(
            f"the model's metadata {EARLIER_PREFIX + ep!r} is damaged.", hint="Fetch the model again."
        )
    return [*([] if newest is None else [newest]), *earlier]


def set_compatibility_info(model: ModelProto, ep: str, info: str, *, keep_others: bool) -> None:
    """Write what an EP says now.

    Args:
        model: gets it.
        ep: the EP type.
        info: its text.
        keep_others: whether what it said before is about nodes that are still there.
    """
    earlier = [text for text in all_compatibility_info(model).get(ep, ()) if text != info]
    set_metadata(model, PREFIX + ep, info)
    if keep_others and earlier:
        set_metadata(model, EARLIER_PREFIX + ep, json.dumps(earlier))


def _texts(model: ModelProto, prefix: str) -> dict[str, str]:
    infos: dict[str, str] = {}
    for entry in model.metadata_props:
        # protobuf hands out what is not UTF-8 as bytes.
        key: str | bytes = entry.key
        value: str | bytes = entry.value
        if not isinstance(key, str) or not key.startswith(prefix):
            continue
        if not isinstance(value, str):
            raise InvalidGraph(f"the model's metadata {key!r} is not UTF-8.", hint="Fetch the model again.")
        infos[key[len(prefix) :]] = value
    return infos


def set_metadata(model: ModelProto, key: str, value: str) -> None:
    """Set one metadata entry; an entry of that key is replaced where it stands."""
    for entry in model.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    model.metadata_props.add(key=key, value=value)
