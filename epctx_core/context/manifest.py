"""Manifest of a context model: its JSON, read and written.

It describes the model's binaries and the EPs that made them, under `epctx.manifest` in
the model's metadata. It holds no path and no time, so that the same work gives the same
bytes anywhere.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from epctx_core._version import __version__
from epctx_core.context.digests import (
    PayloadEntry,
    ReplacedBinaryError,
    dump_segments,
    read_segments,
)
from epctx_core.context.metadata import (
    MOST_PARTS,
    get_metadata,
    read_json,
    read_json_text,
)
from epctx_core.errors import InvalidGraph
from epctx_core.feature_table import PARTS
from epctx_core.frozen import dataclass
from epctx_core.graph.mapping import read_small_file

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

    from epctx_core.context.node import ContextNodeRecord


_log = logging.getLogger("epctx.context")
MANIFEST = "epctx.manifest"
SEALED = "epctx.sealed"
"""The manifest of a model that another tool wrote, with nothing but digests:
`epctx seal` puts it there.
"""
SIDECAR = ".epctx.json"
"""Suffix of the file that has it beside a model which must not be changed."""
_LONGEST = 1 << 29
"""Bytes of such a file: more than the text of `MOST_PARTS` entries has."""
IN_NODE = "epctx_manifest"
"""Attribute of EPContext nodes that has it in models that another host wrote, which
lets no EP write metadata: one for the nodes of each EP.
"""
VERSION = 1
_KEEPERS = "kernel_providers"
"""Key of the EPs that kept nodes, named after the first that did: EPs with kernels."""

PayloadKey: TypeAlias = "tuple[str, bool]"
"""Name of a payload in a manifest, and whether it is embedded."""
ProviderFacts: TypeAlias = "Mapping[str, Mapping[str, Any]]"
"""EP name to what a manifest says about it: its distribution, options and target."""


class Seal(NamedTuple):
    """Origin of a manifest that the model's compiler did not write: tool; size and
    SHA-256 (hex) of the file before that.
    """

    by: str
    size: int
    digest: str

    def is_of(self, data: bytes | memoryview, text: str | bytes | None) -> bool:
        """Return whether a model's file has these bytes, and nothing was added but the
        seal: its text in the metadata, None for a seal beside the model.
        """
        return hashlib.sha256(
            memoryview(data)[: self.size]
        ).hexdigest() == self.digest and data[self.size :] == (
            encode_seal(text) if text else b""
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Manifest of a context model.

    Attributes:
        source_digest: SHA-256 (hex) of the source model file.
        providers: EP name to distribution, version, plugin_api, options fingerprint,
            and as far as the EP says them sdk, driver and target.
        payloads: one entry a payload.
        parts: what features say, by key; see `epctx_core.feature_table`.
        pending: names of binaries that are written when the model's share group ends.
        keepers: EPs that kept nodes in the model, which a load asks again, in order of
            priority.
        custom_domains: domains of custom operators that no partition holds, each with
            the file name of its library, empty for an unknown one.
        sealed: None if the compile wrote it; a seal's says nothing about sources and
            EPs.
    """

    source_digest: str
    providers: ProviderFacts
    payloads: Sequence[PayloadEntry]
    parts: Mapping[str, Any] = field(default_factory=dict)
    pending: Collection[str] = ()
    keepers: Sequence[str] = ()
    custom_domains: Mapping[str, str] = field(default_factory=dict)
    sealed: Seal | None = None

    @property
    def source_weights(self) -> Mapping[str, Any]:
        """Weights that payloads left in the source model, by name."""
        weights: Mapping[str, Any] = self.parts.get("source_weights", {})
        return weights

    def find_entry(self, name: str, *, embedded: bool) -> PayloadEntry | None:
        """Return the entry of a payload, or None."""
        return self._entries.get((name, embedded))

    def as_dict(self) -> dict[str, Any]:
        """Return the form that stands in a model, as JSON; offsets follow from the
        lengths of segments.
        """
        content: dict[str, Any] = {
            "version": VERSION,
            "core": __version__,
            "source_model": self.source_digest,
            "providers": dict(self.providers),
            "payloads": [
                {
                    "name": entry.name,
                    "embedded": entry.embedded,
                    "bytes": entry.size,
                    "root": entry.root,
                    "segments": dump_segments(entry.segments),
                    **({"references": [*entry.references]} if entry.references else {}),
                }
                for entry in self.payloads
            ],
        }
        optional: dict[str, Any] = {
            **self.parts,
            "pending": list(self.pending),
            _KEEPERS: self.keepers,
            "custom_domains": self.custom_domains,
        }
        content |= {key: value for key, value in optional.items() if value}
        if (seal := self.sealed) is not None:
            facts = {"by": seal.by, "bytes": seal.size, "sha256": seal.digest}
            content["sealed"] = facts
        return content

    @cached_property
    def _entries(self) -> dict[PayloadKey, PayloadEntry]:
        # Of two with one name, the first counts.
        return {(p.name, p.embedded): p for p in reversed(self.payloads)}


NO_MANIFEST = Manifest(source_digest="", providers={}, payloads=())
"""Manifest that says nothing, for a model that has none."""


def read_manifest(
    model: ModelProto | Mapping[str, str], limit: int = MOST_PARTS
) -> Manifest | None:
    """Return a model's manifest; None if it has none, or, with a warning, one of an
    unknown version.

    Args:
        model: has it in its metadata; or these metadata.
        limit: entries that its lists and objects may have; see `parse_json`.

    Raises:
        InvalidGraph: the manifest is damaged.
    """
    key = SEALED if get_metadata(model, MANIFEST) is None else MANIFEST
    return read_json(model, key, _read_manifest, limit)


def find_manifest(
    model: ModelProto,
    path: Path | None,
    digest: Callable[[], str] | None,
    limit: int,
    nodes: Iterable[ContextNodeRecord] = (),
) -> Manifest | None:
    """Return a model's manifest: its own, the one in its EPContext nodes, or that of
    `epctx seal --beside`; None if there is none.

    Args:
        model: the model.
        path: its file; None for a model from bytes, which can only have its own.
        digest: returns SHA-256 (hex) of the file; None if it does not matter which
            model the one beside it is of.
        limit: see `read_manifest`.
        nodes: its EPContext nodes.

    Raises:
        ReplacedBinaryError: the one beside it is of another model.
        InvalidGraph: the manifest is damaged, or the one beside it cannot be read.
    """
    manifest = _join_manifests(read_manifest(model, limit), nodes, limit)
    beside = f"{path}{SIDECAR}"
    if path is None or manifest is not None or not os.path.lexists(beside):
        return manifest
    name = f"{path.name}{SIDECAR}"
    try:
        text = read_small_file(beside, _LONGEST)
    except OSError as error:
        raise InvalidGraph(
            f"the manifest {name!r} cannot be read: {error.strerror}.",
            path=beside,
            hint="Fetch it again, or remove it if the model needs none.",
        ) from error

    manifest = read_json_text(text, f"the manifest {name!r}", _read_manifest, limit)
    if (
        manifest
        and digest
        and (manifest.sealed is None or manifest.sealed.digest != digest())
    ):
        raise ReplacedBinaryError(
            f"the manifest {name!r} is of another model than the {path.name!r} "
            "beside it.",
            path=beside,
            hint=(
                "Fetch both again. If the model is right, `epctx seal --beside "
                "--force` makes its manifest anew."
            ),
        )

    return manifest


def _join_manifests(
    own: Manifest | None, nodes: Iterable[ContextNodeRecord], limit: int
) -> Manifest | None:
    """Return what metadata and EPContext nodes of a model say together; None if they
    say nothing.
    """
    stated = [
        read_json_text(
            node.attributes[IN_NODE],
            f"the manifest in {node.name!r:.200}",
            _read_manifest,
            limit,
        )
        for node in nodes
        if IN_NODE in node.attributes
    ]
    if not stated:
        return own

    # What changes a model's files here writes the metadata: of one payload they say
    # what holds, and of two entries the last one does.
    manifests = [each for each in (*stated, own) if each is not None]
    if not manifests:
        return None
    return replace(
        manifests[-1],
        providers={ep: facts for m in manifests for ep, facts in m.providers.items()},
        payloads=[entry for m in manifests for entry in m.payloads],
    )


def _read_manifest(data: Any) -> Manifest | None:
    if type(data["version"]) is not int or data["version"] != VERSION:
        problem = (
            "the model's manifest has the version %.40r, and this epctx reads %d: "
            "payloads are checked against no digests. A later epctx-core reads it."
        )
        _log.warning(problem, data["version"], VERSION)
        return None

    seal = data.get("sealed")
    return Manifest(
        sealed=None
        if seal is None
        else Seal(str(seal["by"]), int(str(seal["bytes"])), str(seal["sha256"])),
        source_digest=str(data["source_model"]),
        providers={ep: dict(facts) for ep, facts in data["providers"].items()},
        payloads=tuple(_read_entry(p) for p in data["payloads"]),
        parts={
            key: resolve_name(place)(data[key])
            for key, place in PARTS.items()
            if key in data
        },
        pending=dict.fromkeys(map(str, data.get("pending", ()))),
        keepers=tuple(map(str, data.get(_KEEPERS, ()))),
        custom_domains={
            domain: str(name) for domain, name in data.get("custom_domains", {}).items()
        },
    )


def _read_entry(data: Mapping[str, Any]) -> PayloadEntry:
    segments = read_segments(data["segments"])
    size = sum(segment.length for segment in segments)
    if size != data["bytes"]:
        raise ValueError("the segments do not add up to the size")
    return PayloadEntry(
        name=str(data["name"]),
        embedded=bool(data["embedded"]),
        size=size,
        segments=segments,
        references=tuple(map(str, data.get("references", ()))),
    )


def dump_manifest(manifest: Manifest) -> str:
    """Return the JSON text of a manifest."""
    return json.dumps(manifest.as_dict(), sort_keys=True, separators=(",", ":"))


def dump_seal(payloads: Sequence[PayloadEntry], size: int, digest: str) -> str:
    """Return the JSON text of a seal: a manifest of payloads alone.

    Args:
        payloads: their entries.
        size, digest: length and SHA-256 (hex) of the model's file without the seal.
    """
    seal = Seal(f"epctx-core {__version__}", size, digest)
    return dump_manifest(
        Manifest(source_digest="", providers={}, payloads=payloads, sealed=seal)
    )


def encode_seal(text: str | bytes) -> bytes:
    """Return the manifest of a sealed model as it stands at the end of the model's
    file: a field of protobuf that may be appended to any model.
    """
    from onnx import ModelProto

    model = ModelProto(metadata_props=[{"key": SEALED, "value": text}])
    data: bytes = model.SerializeToString()
    return data
