"""The file for the initializers that a compile leaves in the model, and how a load knows it for the right one.

The file ends in a seal: a digest over the digests of all that is in it. The model's metadata says the same, so
that reading a few bytes tells the file from that of another compile, without its weights. It also says the digest
of each weight, for whoever checks the file whole.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from epctx_core.context.manifest import PayloadEntry, Segment, read_segments
from epctx_core.context.metadata import INITIALIZERS, metadata_value, parse_json
from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    import io

    from onnx import ModelProto

    from epctx_core.context.payload_writer import PayloadWriter

_HINT = "Fetch the model again, or compile again."


@dataclass(frozen=True, kw_only=True)
class Seal:
    """What a model says about its file for initializers.

    Attributes:
        name: relative to the model.
        size: length in bytes.
        digest: root digest (hex) over all before the seal.
        segments: what is before it, weights and the gaps between them, in order.
    """

    name: str
    size: int
    digest: str
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, entry: PayloadEntry) -> Self:
        """Return the seal of a file that `close_sealed` ended."""
        segments = entry.segments[:-1]
        return cls(name=entry.name, size=entry.size, digest=_root(segments), segments=segments)

    def check(self) -> None:
        """Raise ValueError if no file can have this seal."""
        if self.size != sum(segment.length for segment in self.segments) + len(_mark(self.digest)):
            raise ValueError("the segments do not add up to the size")
        if self.digest != _root(self.segments):
            raise ValueError("the digest is not that of the segments")

    def is_on(self, file: io.FileIO) -> bool:
        """Whether an open file ends in this seal; the file's position changes."""
        expected = _mark(self.digest)
        if os.fstat(file.fileno()).st_size != self.size:
            return False
        file.seek(self.size - len(expected))
        return file.read(len(expected)) == expected


def close_sealed(writer: PayloadWriter) -> PayloadEntry:
    """Append the seal to a file of initializers and close its digests."""
    writer.write(_mark(writer.finish().root))
    return writer.finish()


def write_seal(model: ModelProto, entry: PayloadEntry | None) -> None:
    """Note in a model's metadata how its file for initializers is sealed; None if it has no such file."""
    others = [p for p in model.metadata_props if p.key != INITIALIZERS]
    del model.metadata_props[:]
    model.metadata_props.extend(others)
    if entry is not None:
        from epctx_core.context.payload_writer import stated_segments

        seal = Seal.of(entry)
        content = {
            "bytes": seal.size,
            "digest": seal.digest,
            "name": seal.name,
            "segments": stated_segments(seal.segments),
        }
        model.metadata_props.add(key=INITIALIZERS, value=json.dumps(content, separators=(",", ":")))


def read_seal(model: ModelProto) -> Seal | None:
    """Return what a model says about its file for initializers, None if nothing.

    Raises:
        InvalidGraph: what it says is damaged.
    """
    text = metadata_value(model, INITIALIZERS)
    if text is None:
        return None
    try:
        data = parse_json(text)
        seal = Seal(
            name=str(data["name"]),
            size=int(data["bytes"]),
            digest=str(data["digest"]),
            segments=read_segments(data["segments"]),
        )
        seal.check()
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidGraph(
            f"the model's {INITIALIZERS} metadata is damaged: {error!r:.200}.", hint=_HINT
        ) from error
    return seal


def _root(segments: tuple[Segment, ...]) -> str:
    return PayloadEntry(name="", embedded=False, size=0, segments=segments).root


def _mark(digest: str) -> bytes:
    return f"epctx initializers {digest}\n".encode()
