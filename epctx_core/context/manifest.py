"""Metadata of a context model: its entries, the compatibility information of EPs, and
the manifest.

The manifest describes the model's binaries and the EPs that made them: JSON under
`epctx.manifest`. It holds no path and no time, so that the same work gives the same
bytes anywhere. Digests are SHA-256: one a segment (each weight; other bytes in blocks
of at most 1 MiB), one root over the list of them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from epctx_core.errors import InvalidArgument, InvalidGraph, NoSuchFile
from epctx_core.graph.mapping import open_model_file
from epctx_core.graph.weights import compute_raw_size

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto


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
INITIALIZERS = "epctx.initializers"
KERNEL_TYPES = "epctx.kernel_type_constraints"
COMPATIBILITY_PREFIX = "ep_compatibility_info."
EARLIER_PREFIX = "epctx.earlier_compatibility_info."


def get_metadata(model: ModelProto, key: str) -> str | bytes | None:
    """Return one metadata entry, bytes if it is not UTF-8, None if there is none; of
    several with one key, the first.
    """
    return next(
        (entry.value for entry in model.metadata_props if entry.key == key), None
    )


def set_metadata(model: ModelProto, key: str, value: str) -> None:
    """Set one metadata entry; an existing entry keeps its position."""
    for entry in model.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    model.metadata_props.add(key=key, value=value)


MOST_PARTS = 1 << 23
"""Entries of all lists and objects; each takes 20 to 100 bytes of memory, up to 30
times its text.

A manifest of a hundred thousand payloads, or of a hundred of 10 GiB each, has a quarter
of them.
"""


def parse_json(text: str | bytes, most: int | None = None) -> Any:
    """Return the value of a JSON text.

    Args:
        text: JSON.
        most: entries that it may have; None for `MOST_PARTS`.

    Raises:
        ValueError: no JSON, or too many entries.
        RecursionError: nested too deeply.
    """
    marks: tuple[Any, ...] = (
        (b",", b":", b"[", b"{") if isinstance(text, bytes) else (",", ":", "[", "{")
    )
    most = MOST_PARTS if most is None else most
    if len(text) > most and sum(map(text.count, marks)) > most:
        raise ValueError(f"it has more than {most:,} entries")
    return json.loads(text)


_T = TypeVar("_T")


def read_json(
    model: ModelProto, key: str, read: Callable[[Any], _T], most: int | None = None
) -> _T | None:
    """Return the value of a metadata entry of JSON, None if there is no such entry.

    Args:
        model: has it in its metadata.
        key: the entry's.
        read: makes it of the parsed text.
        most: entries that its lists and objects may have; see `parse_json`.

    Raises:
        InvalidGraph: it is damaged.
    """
    text = get_metadata(model, key)
    return (
        None
        if text is None
        else _read_text(text, f"the model's {key} metadata", read, most)
    )


def _read_text(
    text: str | bytes, what: str, read: Callable[[Any], _T], most: int | None
) -> _T:
    try:
        return read(parse_json(text, most))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidGraph(
            f"{what} is damaged: {error!r:.200}.",
            hint="Fetch the model again, or compile again.",
        ) from error


def read_compatibility_info(model: ModelProto) -> dict[str, list[str]]:
    """Return the compatibility information of each EP, by EP name, the newest first.

    Raises:
        InvalidGraph: it is damaged.
    """
    # protobuf gives bytes for text that is not UTF-8.
    metadata: dict[str, str | bytes] = {
        entry.key: entry.value
        for entry in model.metadata_props
        if isinstance(entry.key, str)
    }
    prefixes = (COMPATIBILITY_PREFIX, EARLIER_PREFIX)
    eps = dict.fromkeys(
        key.removeprefix(p) for key in metadata for p in prefixes if key.startswith(p)
    )
    return {ep: read_compatibility_texts(ep, metadata) for ep in eps}


def read_compatibility_texts(ep: str, metadata: Mapping[str, str | bytes]) -> list[str]:
    """Return the same for one EP, from a model's metadata."""
    newest = metadata.get(COMPATIBILITY_PREFIX + ep)
    with suppress(ValueError, RecursionError):
        texts = parse_json(metadata.get(EARLIER_PREFIX + ep, "[]"))
        if isinstance(texts, list):
            texts[:0] = [] if newest is None else [newest]
            if all(isinstance(text, str) for text in texts):
                return texts
    raise InvalidGraph(
        f"the model's metadata of what {ep} wrote about compatibility is damaged.",
        hint="Fetch the model again.",
    )


VERSION = 1
_DIGEST = re.compile("[0-9a-f]{64}")


class ReplacedBinaryError(InvalidGraph):
    """Payload or file of weights that is not the one that the model was written with.

    A load that gets it checks whether a publication was under way before it gives up.
    """


PayloadKey: TypeAlias = "tuple[str, bool]"
"""Name of a payload in a manifest, and whether it is embedded."""
ProviderFacts: TypeAlias = "Mapping[str, Mapping[str, Any]]"
"""EP name to what a manifest says about it: its distribution, options and target."""


class SourceReference(NamedTuple):
    """Weight of the source model, as the manifest describes it.

    Attributes:
        digest: SHA-256 (hex) of its raw bytes.
        location: the file of weights that holds it, as the source names it; empty for
            an inline one.
        offset: of the bytes in that file.
    """

    digest: str
    elem_type: int
    shape: tuple[int, ...]
    location: str
    offset: int

    @property
    def nbytes(self) -> int:
        """Length of the raw bytes."""
        return compute_raw_size(self.elem_type, self.shape)


def read_references(data: Mapping[str, Sequence[Any]]) -> dict[str, SourceReference]:
    """Return references by name out of a manifest's JSON.

    Raises:
        ValueError, TypeError: they are not as the manifest writes them.
    """
    found: dict[str, SourceReference] = {}
    for name, (digest, elem_type, shape, location, offset) in data.items():
        numbers = [elem_type, offset, *shape]
        are_numbers = all(
            type(number) is int and 0 <= number < 1 << 63 for number in numbers
        )
        if (
            not are_numbers
            or elem_type >> 31
            or not isinstance(digest, str)
            or not isinstance(location, str)
        ):
            raise ValueError(
                f"the weight {name!r:.80} of the source is not described by numbers "
                "and texts"
            )
        found[name] = SourceReference(digest, elem_type, tuple(shape), location, offset)
    return found


class Segment(NamedTuple):
    """A range of a payload with its digest (hex)."""

    offset: int
    length: int
    digest: str
    is_weight: bool = False


BLOCK = 1 << 20
"""Bytes between weights are digested in blocks of this size."""

_BLOCKS_CHECKED = 8
"""Number of blocks that a load digests: at most 8 MiB, whatever the payload's size."""
_CHUNK = 8 << 20
_OTHER_BINARY = (
    "The file does not belong to this model or was altered; fetch both again, or "
    "compile again."
)


Forget: TypeAlias = Callable[[int, int], None]
"""Function called with offset and length of bytes that need not stay in memory."""


def compute_digest(
    view: memoryview, segment: Segment, forget: Forget | None = None
) -> str:
    """Return the digest (hex) of a range of a payload."""
    sha = hashlib.sha256()
    end = segment.offset + segment.length
    for start in range(segment.offset, end, _CHUNK):
        chunk = view[start : min(end, start + _CHUNK)]
        sha.update(chunk)
        if forget is not None:
            forget(start, len(chunk))
    return sha.hexdigest()


def find_damage(
    view: memoryview, segments: Sequence[Segment], forget: Forget | None = None
) -> Iterator[Segment]:
    """Digest segments, several at once, and yield those that differ."""

    def differing(batch: Sequence[Segment]) -> list[Segment]:
        return [
            segment
            for segment in batch
            if compute_digest(view, segment, forget) != segment.digest
        ]

    pool = ThreadPoolExecutor(
        max_workers=os.cpu_count(), thread_name_prefix="epctx-digest"
    )
    try:
        for found in pool.map(differing, _group_segments(segments)):
            yield from found
    finally:
        pool.shutdown(cancel_futures=True)


def _group_segments(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Yield segments in groups large enough that handing one to a thread costs nothing
    beside digesting it.
    """
    batch: list[Segment] = []
    size = 0
    for segment in segments:
        batch.append(segment)
        size += segment.length
        if size >= BLOCK:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def read_segments(data: Sequence[Sequence[Any]]) -> tuple[Segment, ...]:
    """Return segments out of their JSON form; see `dump_segments`.

    Raises:
        ValueError, TypeError: they are damaged.
    """
    segments = []
    offset = 0
    for length, digest, *weight in data:
        if not isinstance(length, int) or length < 0 or not _DIGEST.fullmatch(digest):
            raise ValueError("a segment is not a length and a digest")
        segments.append(Segment(offset, length, digest, bool(weight)))
        offset += length
    return tuple(segments)


def dump_segments(segments: Sequence[Segment]) -> list[list[int | str]]:
    """Return the JSON form of segments that follow each other; a third entry marks a
    weight.
    """
    return [
        [s.length, s.digest, 1] if s.is_weight else [s.length, s.digest]
        for s in segments
    ]


@dataclass(frozen=True, kw_only=True)
class PayloadEntry:
    """Entry of the manifest about one payload.

    Attributes:
        name: the file's name relative to the model, or the node's name for an embedded
            payload.
        embedded: which of the two.
        size: length in bytes.
        segments: ranges and digests, in order, covering all bytes.
        references: names of the nodes without a payload of their own whose graphs this
            one holds; said only where the model has several payloads of one EP.
    """

    name: str
    embedded: bool
    size: int
    segments: tuple[Segment, ...]
    references: tuple[str, ...] = ()

    @cached_property
    def root(self) -> str:
        """One digest (hex) over the list of segments."""
        sha = hashlib.sha256()
        for segment in self.segments:
            sha.update(f"{segment.offset} {segment.length} {segment.digest}\n".encode())
        return sha.hexdigest()

    def check_head(self, view: memoryview, node: str | None = None) -> None:
        """Check size, first segment and some blocks, which finds truncated and swapped
        payloads.

        The first segment does where a payload has a header of its own. For formats
        without one, a few blocks spread over the payload are checked too. Weights are
        not read.

        Raises:
            ReplacedBinaryError: they differ.
        """
        self.check_size(view, node)
        # A weight without elements is a segment of no bytes, which proves nothing.
        filled = [s for s in self.segments if s.length]
        blocks = [s for s in filled[1:] if not s.is_weight]
        step = max(1, -(-len(blocks) // (_BLOCKS_CHECKED - 1)))
        # From the end, so that the last block is always among them.
        for segment in (*filled[:1], *blocks[::-step]):
            if compute_digest(view, segment) != segment.digest:
                raise self.mismatch_error(segment, node)

    def check_whole(
        self, view: memoryview, node: str | None = None, *, forget: Forget | None = None
    ) -> None:
        """Check size and every segment, several at once.

        Args:
            view: the payload.
            node: the EPContext node, for the message.
            forget: called with offset and length of bytes that need not stay in memory.

        Raises:
            ReplacedBinaryError: they differ.
        """
        self.check_size(view, node)
        for segment in find_damage(view, self.segments, forget):
            raise self.mismatch_error(segment, node)

    def check_size(self, view: memoryview, node: str | None = None) -> None:
        """Raise ReplacedBinaryError if a payload has another size."""
        if len(view) != self.size:
            raise ReplacedBinaryError(
                f"the context binary {self.name!r} has {len(view):,} bytes; the model "
                f"was written with one of {self.size:,}.",
                node=node,
                hint=_OTHER_BINARY,
            )

    def mismatch_error(self, segment: Segment, node: str | None) -> ReplacedBinaryError:
        """Return the error for a range that is another one."""
        return ReplacedBinaryError(
            f"the context binary {self.name!r} is not the one that the model was "
            f"written with: its bytes {segment.offset:,} to "
            f"{segment.offset + segment.length:,} have another digest.",
            node=node,
            hint=_OTHER_BINARY,
        )


class Seal(NamedTuple):
    """Origin of a manifest that the model's compiler did not write: tool; size and
    SHA-256 (hex) of the file before that.
    """

    by: str
    size: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Manifest of a context model.

    Attributes:
        source_digest: SHA-256 (hex) of the source model file.
        providers: EP name to distribution, version, plugin_api, options fingerprint,
            and as far as the EP says them sdk, driver and target.
        payloads: one entry a payload.
        source_weights: by name, the weights that payloads left in the source model.
        pending: names of binaries that are written when the model's share group ends.
        kernel_providers: EPs whose kernels ran nodes that no partition holds, in order
            of priority.
        custom_domains: domains of custom operators that no partition holds, each with
            the file name of its library, empty for an unknown one.
        graph_transformers: those that the compile called, in order; see
            `TransformerReport`.
        sealed: None if the compile wrote it; a seal's says nothing about sources and
            EPs.
    """

    source_digest: str
    providers: ProviderFacts
    payloads: Sequence[PayloadEntry]
    source_weights: Mapping[str, SourceReference] = field(default_factory=dict)
    pending: Collection[str] = ()
    kernel_providers: Sequence[str] = ()
    custom_domains: Mapping[str, str] = field(default_factory=dict)
    graph_transformers: Sequence[Mapping[str, Any]] = ()
    sealed: Seal | None = None

    def find_entry(self, name: str, *, embedded: bool) -> PayloadEntry | None:
        """Return the entry of a payload, or None."""
        return self._entries.get((name, embedded))

    def check_not_pending(self, name: str, node: str) -> None:
        """Raise InvalidGraph if a binary that a node names is written when the model's
        share group ends.
        """
        if name in self.pending:
            raise InvalidGraph(
                f"the context binary {name!r} of EPContext node {node!r} was not "
                "written yet: its share group was never stopped.",
                node=node,
                hint=(
                    "Compile the group's last model with ep.stop_share_ep_contexts=1, "
                    "or use epctx.ShareGroup."
                ),
            )

    @cached_property
    def _entries(self) -> dict[PayloadKey, PayloadEntry]:
        # Of two with one name, the first counts.
        return {(p.name, p.embedded): p for p in reversed(self.payloads)}


def read_manifest(model: ModelProto, most: int | None = None) -> Manifest | None:
    """Return a model's manifest; None if it has none, or, with a warning, one of an
    unknown version.

    Args:
        model: has it in its metadata.
        most: entries that its lists and objects may have; see `parse_json`.

    Raises:
        InvalidGraph: the manifest is damaged.
    """
    key = SEALED if get_metadata(model, MANIFEST) is None else MANIFEST
    return read_json(model, key, _read_manifest, most)


def find_manifest(
    model: ModelProto, path: Path | None, digest: str | None, most: int
) -> Manifest | None:
    """Return a model's manifest: its own, or the one of `epctx seal --beside`; None if
    there is neither.

    Args:
        model: the model.
        path: its file; None for a model from bytes, which can only have its own.
        digest: SHA-256 (hex) of the file; None if it does not matter which model the
            one beside it is of.
        most: see `read_manifest`.

    Raises:
        ReplacedBinaryError: the one beside it is of another model.
        InvalidGraph: the manifest is damaged, or the one beside it cannot be read.
    """
    manifest = read_manifest(model, most)
    beside = f"{path}{SIDECAR}"
    if path is None or manifest is not None or not os.path.lexists(beside):
        return manifest
    name = f"{path.name}{SIDECAR}"
    try:
        with open_model_file(beside) as (file, found):
            if (size := os.fstat(file.fileno()).st_size) > _LONGEST:
                raise InvalidGraph(
                    f"the manifest {name!r} is damaged: it has {size:,} bytes.",
                    path=found,
                )
            text = file.read(size)
    except (InvalidArgument, NoSuchFile) as error:
        # The host named the model: what lies beside it is a fault of the files.
        raise InvalidGraph(
            f"the manifest {name!r} cannot be read: {error.message}",
            path=beside,
            hint="Fetch it again, or remove it if the model needs none.",
        ) from error

    manifest = _read_text(text, f"the manifest {name!r}", _read_manifest, most)
    if (
        manifest
        and digest
        and (manifest.sealed is None or manifest.sealed.digest != digest)
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


def _read_manifest(data: Any) -> Manifest | None:
    if type(data["version"]) is not int or data["version"] != VERSION:
        said = (
            "the model's manifest has the version %.40r, and this epctx reads %d: "
            "payloads are checked against no digests."
        )
        _log.warning(f"{said} A later epctx-core reads it.", data["version"], VERSION)
        return None

    references: Mapping[str, SourceReference] = {}
    if (stated := data.get("source_weights", {})) != {}:
        # Few models leave weights in their source.
        references = read_references(stated)

    seal = data.get("sealed")
    return Manifest(
        sealed=None
        if seal is None
        else Seal(str(seal["by"]), int(str(seal["bytes"])), str(seal["sha256"])),
        source_digest=str(data["source_model"]),
        providers={str(ep): dict(facts) for ep, facts in data["providers"].items()},
        payloads=tuple(_read_entry(p) for p in data["payloads"]),
        source_weights=references,
        pending=dict.fromkeys(map(str, data.get("pending", ()))),
        kernel_providers=tuple(map(str, data.get("kernel_providers", ()))),
        custom_domains={
            str(domain): str(name)
            for domain, name in data.get("custom_domains", {}).items()
        },
        graph_transformers=tuple(map(dict, data.get("graph_transformers", ()))),
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
