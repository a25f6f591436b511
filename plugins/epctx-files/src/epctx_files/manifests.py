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

from epctx_core.errors import InvalidArgument, InvalidGraph, InvalidProtobuf
from epctx_core.ext import read_with_manifest
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

_LISTS = ("payloads", "pending", "kernel_providers")
_TABLES = ("providers", "custom_domains", "source_weights")


def read_model(path: Path) -> tuple[ModelProto, Manifest]:
    """Return a model without its manifest or seal, and this as JSON; of several
    payloads of one name, the first counts.

    Raises:
        NoSuchFile, InvalidArgument, InvalidProtobuf: there is no such model, or it is
            not one in ONNX's format.
        InvalidGraph: it exceeds the core's budget, the manifest is damaged or of
            another version, or the seal is not that of the model.
    """
    model, data, _, found = read_with_manifest(path, checked=True)
    if data[4:8] == b"ORTM":
        raise InvalidProtobuf(
            f"{path} is not an ONNX model, but one in the format of ONNX Runtime.",
            path=path,
            hint="Convert it first: `epctx convert`.",
        )
    text = find_metadata(model, MANIFEST) or find_metadata(model, SEALED)
    remove_metadata(model, {MANIFEST, SEALED})
    if found is None and text is not None:
        raise InvalidGraph(
            f"{path.name} has a manifest of another version of epctx.",
            path=path,
            hint="Work on it with that version, or compile again.",
        )
    # Sealing it again would hide a change.
    if found and found.sealed and text and not found.sealed.is_of(data, text):
        raise InvalidGraph(
            f"{path.name} is not the model that its seal was made for.",
            path=path,
            hint="`epctx verify` says more. Fetch the model again, or seal it again.",
        )
    if found is None:
        return model, {}
    manifest = found.as_dict()
    manifest["payloads"] = list(index_payloads(manifest).values())
    return model, manifest


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
    return data + encode_seal(_dump({**manifest, "sealed": seal}))


def encode_seal(text: str) -> bytes:
    """Return a seal as it lies at the end of a model's file: a field of protobuf that
    may be appended to any model.
    """
    model = ModelProto(metadata_props=[{"key": SEALED, "value": text}])
    data: bytes = model.SerializeToString()
    return data


def _dump(manifest: object) -> str:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"))


def index_payloads(manifest: Manifest) -> dict[tuple[str, bool], Manifest]:
    """Return the entries of payloads: of each file by its name and False, of each node
    with an embedded one by the node's name and True.
    """
    index: dict[tuple[str, bool], Manifest] = {}
    for payload in manifest.get("payloads", ()):
        embedded = payload["embedded"]
        name = payload["name"] if embedded else posixpath.normpath(payload["name"])
        index.setdefault((name, embedded), payload)
    return index


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
            # By their text, as dicts have no hash.
            merged[key] = list({_dump(item): item for item in items}.values())
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
            mine = one.get(fact)
            theirs = other.get(fact)
            if mine != theirs:
                yield f"{fact}: {mine!r:.60} and {theirs!r:.60}"
    else:
        yield f"{one!r:.60} and {other!r:.60}"
