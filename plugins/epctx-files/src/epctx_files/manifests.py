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

_LISTS = ("payloads", "pending", "kernel_providers")
_TABLES = ("providers", "custom_domains", "source_weights")


def take_manifest(path: Path, model: ModelProto, data: bytes) -> Manifest:
    """Return the manifest or the seal of a model, and remove it from the metadata.

    Args:
        path: the model's, for messages, and for the seal beside it.
        model: the model.
        data: its bytes.

    Raises:
        InvalidGraph: it is damaged, or a seal is not that of the model.
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
        _check_form(manifest)
        if "sealed" in manifest:
            _check_seal(path, manifest["sealed"], text, data)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidGraph(
            f"the manifest of {path.name} is damaged: {error!r:.200}.",
            path=path,
            hint="Fetch the model again, or compile again.",
        ) from error
    return dict(manifest)


def _check_form(manifest: Any) -> None:
    """Raise ValueError, TypeError or KeyError for JSON that is no manifest."""
    for payload in manifest["payloads"]:
        names = [payload["name"], *payload.get("references", ())]
        if not all(isinstance(name, str) for name in names):
            raise ValueError("the name of a payload is not a text")
    for keys, kind in ((_LISTS, list), (_TABLES, dict)):
        wrong = [key for key in keys if not isinstance(manifest.get(key, kind()), kind)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is not a {kind.__name__}")
    providers = manifest.get("providers", {}).values()
    if not all(isinstance(each, dict) for each in providers):
        raise ValueError("an EP is not described by a dict")


def _check_seal(path: Path, seal: Any, text: str, data: bytes) -> None:
    """Check that a model has not changed since it was sealed: sealing it again would
    hide that.

    Raises:
        InvalidGraph: it has.
        TypeError, KeyError, ValueError: the seal is damaged.
    """
    size = seal["bytes"]
    if type(size) is not int or size < 0:
        raise ValueError(f"{size!r:.20} is no size")
    digest = hashlib.sha256(memoryview(data)[:size]).hexdigest()
    # Beside the model, nothing follows.
    if (
        len(data) < size
        or digest != seal["sha256"]
        or data[size:] not in (b"", encode_seal(text))
    ):
        raise InvalidGraph(
            f"{path.name} is not the model that its seal was made for.",
            path=path,
            hint="`epctx verify` says more. Fetch the model again, or seal it again.",
        )


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


def index_payloads(manifest: Manifest) -> dict[tuple[str, bool], list[Manifest]]:
    """Return the entries of payloads: of each file by its name and False, of each node
    with an embedded one by the node's name and True.
    """
    index: dict[tuple[str, bool], list[Manifest]] = {}
    for payload in manifest.get("payloads", ()):
        embedded = bool(payload.get("embedded"))
        name = payload["name"] if embedded else posixpath.normpath(payload["name"])
        index.setdefault((name, embedded), []).append(payload)
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
            if one.get(fact) != other.get(fact):
                yield f"{fact}: {one.get(fact)!r:.60} and {other.get(fact)!r:.60}"
    else:
        yield f"{one!r:.60} and {other!r:.60}"
