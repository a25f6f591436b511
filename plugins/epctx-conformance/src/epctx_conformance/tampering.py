"""Context models taken apart and put together again with something wrong. Knows no EP.

The manifest is left out, as in a model that ONNX Runtime wrote: then nobody but the EP sees what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

from epctx_core.ext import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_conformance.setting import Compiled

MANIFEST = "epctx.manifest"
"""The key of the manifest in `metadata_props`."""
HEAD_BYTES = 16
"""Where a format keeps what it is, and its version."""
_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1048576\n"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A context model and its payloads, apart.

    Attributes:
        name: the context model's file name.
        proto: the model without its manifest.
        payloads: file name to content.
        weights: file name to the ranges that hold weights, which an EP need not read to load.
    """

    name: str
    proto: onnx.ModelProto
    payloads: Mapping[str, bytes]
    weights: Mapping[str, tuple[range, ...]]

    @property
    def main(self) -> str:
        """The name of the largest payload."""
        return max(self.payloads, key=lambda name: len(self.payloads[name]))

    def edited(self) -> onnx.ModelProto:
        """Return a copy of the model to change."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self.proto)
        return copy

    def write(
        self, folder: Path, *, payload: bytes | None = None, proto: onnx.ModelProto | None = None
    ) -> Path:
        """Write it into a folder, with another main payload or another model; return the model's path."""
        for name, content in self.payloads.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(payload if payload is not None and name == self.main else content)
        path = folder / self.name
        path.write_bytes((proto or self.proto).SerializeToString())
        return path


def take_apart(compiled: Compiled) -> Parts:
    """Return the parts of a context model whose payloads lie in files."""
    proto = onnx.load(compiled.path)
    manifest = read_manifest(proto)
    files = [
        file.path for file in compiled.report.outputs if compiled.path.parent / file.path != compiled.path
    ]
    weights = {}
    for name in files:
        entry = manifest.entry(name, embedded=False) if manifest else None
        segments = entry.segments if entry else ()
        weights[name] = tuple(range(s.offset, s.offset + s.length) for s in segments if s.is_weight)
    return Parts(
        name=compiled.path.name,
        proto=without_manifest(proto),
        payloads={name: (compiled.path.parent / name).read_bytes() for name in files},
        weights=weights,
    )


def without_manifest(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Take the manifest out of a model; return the model."""
    kept = [entry for entry in proto.metadata_props if entry.key != MANIFEST]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    return proto


def context_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the EPContext nodes of a model's main graph."""
    return [node for node in proto.graph.node if node.op_type == "EPContext"]


def flipped(content: bytes, place: int) -> bytes:
    """Return the content with all bits of one byte turned over."""
    changed = bytearray(content)
    changed[place] ^= 0xFF
    return bytes(changed)


def places(parts: Parts, count: int, *, seed: int = 0) -> list[int]:
    """Return places all over the main payload that are not in a weight."""
    size, weights = len(parts.payloads[parts.main]), parts.weights[parts.main]
    found = np.random.default_rng(seed).integers(0, size, 4 * count)
    return [int(place) for place in found if not any(int(place) in weight for weight in weights)][:count]


def foreign(size: int) -> Iterator[tuple[str, bytes]]:
    """Give what lies about under the name of a payload and is none, each with what it is."""
    yield "a single byte", b"\x01"
    yield "zeros", bytes(size)
    yield "random bytes", np.random.default_rng(0).bytes(size)
    yield "a Git LFS pointer instead of the file", _LFS_POINTER
    yield "a web page", b"<!DOCTYPE html><html><body>404 Not Found</body></html>".ljust(size)
    yield "a ZIP archive", b"PK\x03\x04\x14\x00\x00\x00\x08\x00".ljust(size, b"\x00")
    yield "a program", b"\x7fELF\x02\x01\x01".ljust(size, b"\x00")
