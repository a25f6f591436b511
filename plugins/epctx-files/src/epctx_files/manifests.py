"""Manifests of context models as JSON: read from a model, changed, and written back.

Payloads keep their digests: work on files gives them other names and other places, and
never other bytes.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from onnx import ModelProto

from epctx_core.errors import InvalidArgument, InvalidGraph
from epctx_core.ext import parse_json
from epctx_files.structure import (
    MANIFEST,
    SEALED,
    find_metadata,
    remove_metadata,
    set_metadata,
)

BESIDE: Final = ".epctx.json"
"""Suffix of the file that has the seal beside a model."""

Manifest: TypeAlias = dict[str, Any]
"""JSON of a manifest or of a seal; empty for a model without either."""

_LISTS = ("payloads", "pending", "kernel_providers", "graph_transformers")
_TABLES = ("providers", "custom_domains", "source_weights")


def take_manifest(path: Path, model: ModelProto) -> Manifest:
    """Return the manifest or the seal of a model, and remove it from the metadata.

    Raises:
        InvalidGraph: it is damaged.
    """
    text: str | None = find_metadata(model, MANIFEST) or find_metadata(model, SEALED)
    beside = path.with_name(path.name + BESIDE)
    if text is None and beside.is_file():
        text = beside.read_text("utf-8", errors="replace")
    remove_metadata(model, {MANIFEST, SEALED})
    if text is None:
        return {}

    try:
        manifest = parse_json(text)
        names = [payload["name"] for payload in manifest["payloads"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidGraph(
            f"the manifest of {path.name} is damaged: {error}.",
            path=path,
            hint="Fetch the model again, or compile again.",
        ) from error
    if not all(isinstance(name, str) for name in names):
        raise InvalidGraph(
            f"the manifest of {path.name} is damaged: a payload has no name.", path=path
        )
    return dict(manifest)


def encode_model(model: ModelProto, manifest: Manifest) -> bytes:
    """Return the bytes of a model with its manifest in the metadata, or with its seal
    as the last bytes.
    """
    if manifest and "sealed" not in manifest:
        set_metadata(model, MANIFEST, _dump(manifest))

    data: bytes = model.SerializeToString()
    if "sealed" not in manifest:
        return data
    digest = hashlib.sha256(data).hexdigest()
    seal = {**manifest["sealed"], "bytes": len(data), "sha256": digest}
    text = _dump({**manifest, "sealed": seal})
    end = ModelProto(metadata_props=[{"key": SEALED, "value": text}])
    return data + bytes(end.SerializeToString())


def _dump(manifest: Manifest) -> str:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"))


def find_payloads(manifest: Manifest, name: str, *, embedded: bool) -> list[Manifest]:
    """Return the entries of a payload: of a file, or of a node with an embedded one."""
    return [
        payload
        for payload in manifest.get("payloads", ())
        if bool(payload.get("embedded")) is embedded
        and (payload["name"] if embedded else posixpath.normpath(payload["name"]))
        == name
    ]


def merge_manifests(models: Sequence[tuple[str, Manifest]]) -> Manifest:
    """Return one manifest for the models that are merged, each with its name.

    A manifest of a compile goes before a seal, which says nothing of EPs.

    Raises:
        InvalidArgument: two say different things of one EP, weight or domain.
    """
    stated = [(name, manifest) for name, manifest in models if manifest]
    if not stated:
        return {}
    compiled = [manifest for _, manifest in stated if "sealed" not in manifest]
    merged: Manifest = {**(compiled or [stated[0][1]])[0]}
    if len(stated) > 1:
        # No single source has this digest; loads do not read it.
        sources = "\n".join(str(each.get("source_model", "")) for _, each in stated)
        merged["source_model"] = (
            hashlib.sha256(sources.encode()).hexdigest() if compiled else ""
        )

    for key in _LISTS:
        items = [item for _, each in stated for item in each.get(key, ())]
        if items or key == "payloads":
            merged[key] = [
                item for index, item in enumerate(items) if item not in items[:index]
            ]
    for key in _TABLES:
        table = _merge_tables(key, stated)
        if table or key == "providers":
            merged[key] = table
    return merged


def _merge_tables(
    key: str, models: Sequence[tuple[str, Manifest]]
) -> Mapping[str, Any]:
    """Return the entries that manifests have under a key.

    Raises:
        InvalidArgument: two models have different ones of one name.
    """
    merged: dict[str, Any] = {}
    first: dict[str, str] = {}
    for model, manifest in models:
        for name, facts in manifest.get(key, {}).items():
            if merged.setdefault(name, facts) != facts:
                differing = ", ".join(_list_differences(merged[name], facts))
                raise InvalidArgument(
                    f"{first[name]} and {model} cannot be one model: their manifests "
                    f"say different things of {name!r} ({differing}).",
                    hint="Compile both alike, with the same versions and options.",
                )
            first.setdefault(name, model)
    return merged


def _list_differences(one: object, other: object) -> Iterator[str]:
    """Yield the facts in which two entries differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for fact in sorted({*one, *other}):
            if one.get(fact) != other.get(fact):
                yield f"{fact}: {one.get(fact)!r:.60} and {other.get(fact)!r:.60}"
    else:
        yield f"{one!r:.60} and {other!r:.60}"
