"""Compatibility information in a model's metadata, under ONNX Runtime's keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from onnx import ModelProto

PREFIX = "ep_compatibility_info."


def compatibility_info(model: ModelProto) -> dict[str, str]:
    """Return EP type to what that EP once said about the compiled model.

    Raises:
        InvalidGraph: it is no text.
    """
    infos: dict[str, str] = {}
    for entry in model.metadata_props:
        # protobuf hands out what is not UTF-8 as bytes.
        key: str | bytes = entry.key
        value: str | bytes = entry.value
        if not isinstance(key, str) or not key.startswith(PREFIX):
            continue
        if not isinstance(value, str):
            raise InvalidGraph(f"the model's metadata {key!r} is not UTF-8.", hint="Fetch the model again.")
        infos[key[len(PREFIX) :]] = value
    return infos


def set_metadata(model: ModelProto, key: str, value: str) -> None:
    """Set one metadata entry; an entry of that key is replaced where it stands."""
    for entry in model.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    model.metadata_props.add(key=key, value=value)
