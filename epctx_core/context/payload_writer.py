"""Writing of payloads, once, front to back, with digests on the way, and their
embedding into a serialised model.

Implements `Payload` and `ContextWriter` of `epctx_core.plugin`. Whether bytes go into a
file or into the model depends on the sink; EPs cannot see which.

So that no copy of payloads and weights passes through protobuf, a node or a tensor
holds a marker in place of its bytes. Protobuf's encoding nests messages with their
lengths in front: the lengths around a marker are all that changes.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from epctx_core.context.callbacks import view_bytes
from epctx_core.context.digests import (
    BLOCK,
    PayloadEntry,
    Segment,
)
from epctx_core.errors import Fail, NotImplementedByProvider, PluginError
from epctx_core.file_names import is_payload_name
from epctx_core.graph.mapping import CHUNK, MappedFile, start_writing_back
from epctx_core.graph.weights import Weight
from epctx_core.graph.wire import replace_fields

if TYPE_CHECKING:
    from epctx_core.context.payload_files import LoadedPayload
    from epctx_core.graph.mapping import PathInput
    from epctx_core.graph.wire import Extent, Pieces
    from epctx_core.plugin import (
        TensorView,
    )

EMBEDDED_LIMIT = (2 << 30) - 1
"""Bytes above which no protobuf can hold a payload."""

_HOOK = "get_ep_context_nodes"

_PREFIX = secrets.token_bytes(24)
_NUMBER_BYTES = 8
_MARKER_BYTES = 32
_MARKER = re.compile(re.escape(_PREFIX) + b".{%d}" % _NUMBER_BYTES, re.DOTALL)
_numbers = count()

_JOINED = 1 << 20
"""Chunks are joined up to this many bytes; longer ones stay as they are."""


Embeddable: TypeAlias = "memoryview | Weight | LoadedPayload"
"""Bytes in memory, or read in chunks when they are written."""


class PayloadWriter:
    """One payload being written into a binary file or a memory buffer.

    Attributes:
        name: the name of its file.
        embedded: whether it ends up inside the model.
        ep: the EP that writes it; empty for none.
        size: bytes so far.

    Args:
        sink: gets the bytes; None for a payload of bytes that are asked for later.
    """

    def __init__(
        self, name: str, sink: BinaryIO | None, *, embedded: bool, ep: str = ""
    ) -> None:
        self.name = name
        self.embedded = embedded
        self.ep = ep
        self.size = 0
        self._sink = sink
        self._marker = make_marker() if embedded else b""
        self._segments: list[Segment] = []
        self._block = hashlib.sha256()
        self._block_length = 0
        self._stored: dict[tuple[str, int], int] = {}
        self._unflushed = 0

    def write(self, buffer: bytes | bytearray | memoryview) -> int:
        """Append bytes; return the offset of the first."""
        offset = self.size
        view = view_bytes(buffer)
        while view:
            part = view[: BLOCK - self._block_length]
            view = view[BLOCK - self._block_length :]
            self._block.update(part)
            self._block_length += len(part)
            if self._block_length == BLOCK:
                self._end_block()
            self._put(part)
        return offset

    def align(self, alignment: int) -> int:
        """Append zero bytes up to a multiple of `alignment`; return the new offset."""
        missing = -self.size % alignment
        if missing:
            self.write(bytes(missing))
        return self.size

    def write_tensor(self, view: TensorView) -> int:
        """Append a weight, streamed; content that is there already is not stored
        again.
        """
        key = (view.digest, view.nbytes)
        if key in self._stored:
            return self._stored[key]
        self._check_room(view.nbytes)
        self._end_block()
        offset = self.size
        if isinstance(view, Weight):
            self._put_weight(view)
        else:
            self._put_foreign(view)
        self._segments.append(Segment(offset, view.nbytes, view.digest, is_weight=True))
        self._stored[key] = offset
        return offset

    def add_file(self, path: PathInput) -> int:
        """Append the content of a file; return its offset."""
        offset = self.size
        with Path(path).open("rb", buffering=0) as file:
            self._check_room(os.fstat(file.fileno()).st_size)
            while chunk := file.read(CHUNK):
                self.write(chunk)
        return offset

    def make_entry(self) -> PayloadEntry:
        """Return the manifest's entry of this payload, all of which was written."""
        self._end_block()
        return PayloadEntry(
            name=self.name,
            embedded=self.embedded,
            size=self.size,
            segments=tuple(self._segments),
        )

    def get_cache_value(self) -> bytes:
        """Return the value of `ep_cache_context`: the file's name, or a marker for the
        bytes; see `embed`.
        """
        return self._marker if self.embedded else self.name.encode()

    def get_written(self) -> memoryview | MappedFile:
        """Return the bytes written: in memory, or in a mapped file.

        Memory takes no more bytes as long as a view of it is alive.
        """
        sink = self._open_sink()
        if isinstance(sink, io.BytesIO):
            return sink.getbuffer().toreadonly()
        return MappedFile(sink.fileno(), os.fspath(sink.name))

    def get_embedded_bytes(self) -> dict[bytes, memoryview]:
        """Return the marker of an embedded payload and its bytes, not copied."""
        sink = self._sink
        return (
            {self._marker: sink.getbuffer()}
            if self.embedded and isinstance(sink, io.BytesIO)
            else {}
        )

    def _put_weight(self, weight: Weight) -> None:
        mapping = weight.mapping
        copy_mapped = getattr(self._sink, "copy_mapped", None)
        if mapping is None or copy_mapped is None:
            for chunk in weight.chunks():
                self._put(chunk)
            return
        mapping[0].check_unchanged()
        copy_mapped(*mapping, weight.nbytes)
        mapping[0].check_unchanged()
        self.size += weight.nbytes

    def _put_foreign(self, view: TensorView) -> None:
        """Append a weight that an EP made: its digest is a claim, and the manifest must
        not pass on a wrong one.
        """
        start = self.size
        sha = hashlib.sha256()
        for chunk in view.chunks():
            sha.update(chunk)
            self._put(memoryview(chunk))
        stated = view.nbytes, view.digest
        written = self.size - start, sha.hexdigest()
        if written != stated:
            raise PluginError(
                f"the weight {view.name!r} states its size and digest as {stated}; "
                f"written were {written}.",
                hook=_HOOK,
                hint=(
                    "The EP changed a weight and left its digest or its size as they "
                    "were."
                ),
            )

    def _check_room(self, length: int) -> None:
        if self.embedded and self.size + length > EMBEDDED_LIMIT:
            raise Fail(
                f"the payload {self.name!r} has more than {EMBEDDED_LIMIT:,} bytes, "
                "which a model cannot hold.",
                hint=(
                    "Set ep.context_embed_mode=0, so that payloads go into a file of "
                    "their own."
                ),
            )

    def _open_sink(self) -> BinaryIO:
        if self._sink is None:
            raise NotImplementedByProvider(
                f"the payload {self.name!r} is one of a share group, and the EP wrote "
                "into it while `ContextWriter.final` was False: it does not know "
                "share groups.",
                hint="Compile its models one by one, without ep.share_ep_contexts=1.",
            )
        return self._sink

    def _put(self, chunk: memoryview) -> None:
        self._check_room(len(chunk))
        left = chunk
        sink = self._open_sink()
        while left:
            left = left[sink.write(left) :]
        self.size += len(chunk)
        self._unflushed += len(chunk)
        if self._unflushed >= CHUNK and not isinstance(sink, io.BytesIO):
            start_writing_back(
                sink.fileno(), self.size - self._unflushed, self._unflushed
            )
            self._unflushed = 0

    def _end_block(self) -> None:
        if self._block_length:
            last = self._segments[-1] if self._segments else Segment(0, 0, "")
            start = last.offset + last.length
            self._segments.append(
                Segment(start, self._block_length, self._block.hexdigest())
            )
            self._block = hashlib.sha256()
            self._block_length = 0


class _Payload:
    """Handle of an EP on a payload, which does not show where the bytes go; implements
    `Payload`.
    """

    __slots__ = ("_writer", "add_file", "align", "write", "write_tensor")

    def __init__(self, writer: PayloadWriter) -> None:
        self._writer = writer
        self.write = writer.write
        self.align = writer.align
        self.write_tensor = writer.write_tensor
        self.add_file = writer.add_file

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._writer.size


class PayloadSet:
    """Payloads of one EP in one context model.

    Attributes:
        final, graphs_by_model: as given.
        left: the weights that stay in the source model, by their names there.
        writers: identity of what the EP has for a payload to what is behind it.

    Args:
        ep: the EP name, for messages.
        file_name: makes the name of a file from an EP's name for it (None for its only
            payload).
        open_sink: opens where the bytes of a name go; None while a share group's
            members are asked for their nodes alone: nothing is written then.
        embedded: whether they end up inside the model.
        graphs_by_model: the names of the EP's partitions in each model.
        leave: returns the name of a weight that stays in the source model, None for
            one that a payload has to contain.
    """

    def __init__(
        self,
        ep: str,
        *,
        file_name: Callable[[str | None], str],
        open_sink: Callable[[str], BinaryIO] | None,
        embedded: bool,
        graphs_by_model: tuple[tuple[str, ...], ...],
        leave: Callable[[TensorView], str | None],
    ) -> None:
        self.final = open_sink is not None
        self.graphs_by_model = graphs_by_model
        self.left: dict[str, TensorView] = {}
        self.writers: dict[int, PayloadWriter] = {}
        self._ep = ep
        self._leave = leave
        self._file_name = file_name
        self._open_sink = open_sink
        self.embedded = embedded
        self._names: set[str | None] = set()
        # Kept, so that no other object gets the identity of one.
        self._handles: list[_Payload] = []

    @property
    def handle(self) -> SimpleNamespace:
        """Writer with which the EP starts payloads; implements `ContextWriter`."""
        return SimpleNamespace(
            final=self.final,
            graphs_by_model=self.graphs_by_model,
            payload=self.payload,
            reference=self.reference,
        )

    def reference(self, view: TensorView) -> str | None:
        """Return the name under which a load finds a weight in the source; None if it
        has to be stored.
        """
        name = self._leave(view)
        if name is not None:
            self.left[name] = view
        return name

    def payload(self, name: str | None = None) -> _Payload:
        """Start a payload.

        Raises:
            PluginError: the EP started one of this name before, or the name cannot be
                part of a file's.
        """
        # Folders that do not tell cases apart are common enough.
        key = name.casefold() if name is not None and is_payload_name(name) else None
        fault = "another payload of this call has" if key in self._names else ""
        if key is None and name is not None:
            fault = "is not 1 to 64 letters, digits, '_', '.' and '-'"
        if fault:
            raise PluginError(
                f"{self._ep} gave a payload the name {name!r:.100} in {_HOOK}, which "
                f"{fault}.",
                ep=self._ep,
                hook=_HOOK,
                hint=(
                    "Put all graphs into one payload; the name of a second one becomes "
                    "part of a file's name."
                ),
            )
        self._names.add(key)
        file_name = self._file_name(name)
        sink = self._open_sink(file_name) if self._open_sink is not None else None
        writer = PayloadWriter(file_name, sink, embedded=self.embedded, ep=self._ep)
        handle = _Payload(writer)
        self._handles.append(handle)
        self.writers[id(handle)] = writer
        return handle


class SerializedModel:
    """Bytes of a model, in pieces.

    Attributes:
        size: number of all bytes.
    """

    def __init__(self, pieces: Sequence[Embeddable], size: int) -> None:
        self.size = size
        self._pieces = pieces

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes in order; small pieces are joined, payloads are not
        copied.
        """
        waiting: list[memoryview] = []
        length = 0
        for piece in self._pieces:
            for chunk in (piece,) if isinstance(piece, memoryview) else piece.chunks():
                if length + len(chunk) > _JOINED and waiting:
                    yield memoryview(b"".join(waiting))
                    waiting = []
                    length = 0
                if len(chunk) > _JOINED:
                    yield chunk
                else:
                    waiting.append(chunk)
                    length += len(chunk)
        if waiting:
            yield memoryview(b"".join(waiting))


def make_marker() -> bytes:
    """Return bytes that take the place of others and occur nowhere else."""
    return _PREFIX + next(_numbers).to_bytes(_NUMBER_BYTES, "big")


def embed(model: bytes, contents: Mapping[bytes, Embeddable]) -> SerializedModel:
    """Return a serialised model with its markers replaced.

    Args:
        model: in which each marker is the whole of a bytes or string field.
        contents: marker to its replacement; not copied.
    """
    data = memoryview(model)
    markers = deque(
        (match.start(), contents[match.group()]) for match in _MARKER.finditer(model)
    )
    pieces = _replace_markers(data, markers, (0, len(data))) or [data]
    return SerializedModel(pieces, sum(piece.nbytes for piece in pieces))


def _replace_markers(
    data: memoryview, markers: deque[tuple[int, Embeddable]], extent: Extent
) -> Pieces | None:
    """Return the pieces of a message, or of the field that a marker fills; None for one
    without a marker. Takes its markers away.
    """
    start, length = extent
    if not markers or not start <= markers[0][0] < start + length:
        return None
    if length == _MARKER_BYTES:
        # Fields are walked in the order of the markers.
        return [markers.popleft()[1]]
    return replace_fields(
        data,
        extent,
        # Not a closure that calls itself: such a cycle would keep the contents.
        partial(_replace_markers, data, markers),
    )
