"""The manifest: what a context model knows about its binaries and about who made them.

JSON in the model's metadata under `epctx.manifest`. It holds no path and no time, so that the same
work gives the same bytes anywhere. Digests are SHA-256: one a segment (each weight; other bytes in
blocks of at most 1 MiB), one root over the list of them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from epctx_core._version import __version__
from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from onnx import ModelProto

KEY = "epctx.manifest"
VERSION = 1
_DIGEST = re.compile("[0-9a-f]{64}")


class Segment(NamedTuple):
    """A range of a payload with its digest (hex)."""

    offset: int
    length: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class PayloadEntry:
    """What the manifest says about one payload.

    Attributes:
        name: the file's name relative to the model, or the node's name for an embedded payload.
        embedded: which of the two.
        size: length in bytes.
        segments: ranges and digests, in order, covering all bytes.
    """

    name: str
    embedded: bool
    size: int
    segments: tuple[Segment, ...]

    @property
    def root(self) -> str:
        """One digest (hex) over the list of segments."""
        sha = hashlib.sha256()
        for segment in self.segments:
            sha.update(f"{segment.offset} {segment.length} {segment.digest}\n".encode())
        return sha.hexdigest()

    def check_head(self, view: memoryview, node: str | None = None) -> None:
        """Check size and first segment: what tells a truncated, swapped or altered payload apart.

        Raises:
            InvalidGraph: they differ.
        """
        hint = "The file does not belong to this model or was altered; fetch both again, or compile again."
        if len(view) != self.size:
            raise InvalidGraph(
                f"the context binary {self.name!r} has {len(view):,} bytes; the model was written with one of {self.size:,}.",
                node=node,
                hint=hint,
            )
        # A weight without elements is a segment of no bytes, which tells nothing.
        first = next((s for s in self.segments if s.length), None)
        if first is not None:
            digest = hashlib.sha256(view[first.offset : first.offset + first.length]).hexdigest()
            if digest != first.digest:
                raise InvalidGraph(
                    f"the context binary {self.name!r} is not the one that the model was written with: "
                    f"its first {first.length:,} bytes have another digest.",
                    node=node,
                    hint=hint,
                )

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; offsets follow from the lengths."""
        return {
            "name": self.name,
            "embedded": self.embedded,
            "bytes": self.size,
            "root": self.root,
            "segments": [[s.length, s.digest] for s in self.segments],
        }


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The whole manifest.

    Attributes:
        source_digest: SHA-256 (hex) of the source model file.
        providers: EP type to distribution, version, plugin_api and options fingerprint.
        payloads: one entry a payload.
    """

    source_digest: str
    providers: Mapping[str, Mapping[str, Any]]
    payloads: Sequence[PayloadEntry]

    def entry(self, name: str, *, embedded: bool) -> PayloadEntry | None:
        """Return what is known about a payload, or None."""
        return next((p for p in self.payloads if p.name == name and p.embedded == embedded), None)

    def dump(self) -> str:
        """Return the JSON text."""
        return json.dumps(
            {
                "version": VERSION,
                "core": __version__,
                "source_model": self.source_digest,
                "providers": {ep: dict(facts) for ep, facts in sorted(self.providers.items())},
                "payloads": [p.as_dict() for p in self.payloads],
            },
            sort_keys=True,
            separators=(",", ":"),
        )


def read_manifest(model: ModelProto) -> Manifest | None:
    """Return a model's manifest; None if it has none, or one of a version not known here.

    Raises:
        InvalidGraph: the manifest is damaged.
    """
    text = next((p.value for p in model.metadata_props if p.key == KEY), None)
    if text is None:
        return None
    try:
        data = json.loads(text)
        if data["version"] != VERSION:
            return None
        return Manifest(
            source_digest=str(data["source_model"]),
            providers={str(ep): dict(facts) for ep, facts in data["providers"].items()},
            payloads=tuple(_read_entry(p) for p in data["payloads"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidGraph(
            f"the model's {KEY} metadata is damaged: {error!r}.",
            hint="Fetch the model again, or compile again.",
        ) from error


def _read_entry(data: Mapping[str, Any]) -> PayloadEntry:
    segments = []
    offset = 0
    for length, digest in data["segments"]:
        if not isinstance(length, int) or length < 0 or not _DIGEST.fullmatch(digest):
            raise ValueError("a segment is not a length and a digest")
        segments.append(Segment(offset, length, digest))
        offset += length
    if offset != data["bytes"]:
        raise ValueError("the segments do not add up to the size")
    return PayloadEntry(
        name=str(data["name"]), embedded=bool(data["embedded"]), size=offset, segments=tuple(segments)
    )
