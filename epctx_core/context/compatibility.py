"""Compatibility information in a model's metadata, under ONNX Runtime's keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

PREFIX = "ep_compatibility_info."


def compatibility_info(model: ModelProto) -> dict[str, str]:
    """Return EP type to what that EP once said about the compiled model."""
    return {p.key[len(PREFIX) :]: p.value for p in model.metadata_props if p.key.startswith(PREFIX)}


def set_metadata(model: ModelProto, key: str, value: str) -> None:
    """Set one metadata entry; an entry of that key is replaced where it stands."""
    for entry in model.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    model.metadata_props.add(key=key, value=value)
