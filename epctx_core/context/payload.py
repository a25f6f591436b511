"""Payload bytes on their way out: written once, front to back, with digests on the way.

Implements `Payload` and `ContextWriter` of `epctx_core.plugin`. Whether bytes go into a
file or into the model is decided by whoever opens the sink.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from epctx_core.context.manifest import PayloadEntry, Segment
from epctx_core.errors import PluginError
from epctx_core.graph.mapping import CHUNK, copy_range, start_writing_back

if TYPE_CHECKING:
    from epctx_core.plugin import TensorView

BLOCK = 1 << 20
"""Bytes between weights are digested in blocks of this size."""


class PayloadWriter:
    """One payload being written into a binary file or a memory buffer."""

    def __init__(self, name: str, sink: BinaryIO, *, embedded: bool) -> None:
        self.name = name
        self.embedded = embedded
        self.size = 0
        self._sink = sink
        self._segments: list[Segment] = []
        self._block = hashlib.sha256()
        self._block_length = 0
        self._stored: dict[tuple[str, int], int] = {}
        self._unflushed = 0

    def write(self, buffer: bytes | bytearray | memoryview) -> int:
        """Append bytes; return the offset of the first."""
        offset = self.size
        whole = memoryview(buffer)
        # An empty array has a shape that cannot be cast.
        view = whole.cast("B") if whole.nbytes else memoryview(b"")
        for start in range(0, len(view), CHUNK):
            piece = view[start : start + CHUNK]
            self._digest(piece)
            self._put(piece)
        return offset

    def align(self, alignment: int) -> int:
        """Append zero bytes up to a multiple of `alignment`; return the new offset."""
        missing = -self.size % alignment
        if missing:
            self.write(bytes(missing))
        return self.size

    def write_tensor(self, view: TensorView) -> int:
        """Append a weight, streamed; content that is there already is not stored again."""
        key = (view.digest, view.nbytes)
        if key in self._stored:
            return self._stored[key]
        self._end_block()
        offset = self._stored[key] = self.size
        self._segments.append(Segment(offset, view.nbytes, view.digest, is_weight=True))
        if view.extent is not None and not self.embedded:
            self._copy(view.extent.file, view.extent.offset, view.nbytes)
        else:
            for chunk in view.chunks():
                self._put(chunk)
        return offset

    def add_file(self, path: str | os.PathLike[str]) -> int:
        """Append the content of a file; return its offset."""
        offset = self.size
        with Path(path).open("rb", buffering=0) as file:
            while piece := file.read(CHUNK):
                self.write(piece)
        return offset

    def finish(self) -> PayloadEntry:
        """Close the digests; return what the manifest says about this payload."""
        self._end_block()
        return PayloadEntry(
            name=self.name, embedded=self.embedded, size=self.size, segments=tuple(self._segments)
        )

    def contents(self) -> bytes:
        """Return what an EPContext node's `ep_cache_context` holds: the bytes, or the file's name."""
        if not self.embedded:
            return self.name.encode()
        self._sink.seek(0)
        return self._sink.read()

    def _put(self, piece: memoryview) -> None:
        left = piece
        while left:
            left = left[self._sink.write(left) :]
        self.size += len(piece)
        self._unflushed += len(piece)
        if self._unflushed >= CHUNK and not self.embedded:
            start_writing_back(self._sink.fileno(), self.size - self._unflushed, self._unflushed)
            self._unflushed = 0

    def _copy(self, path: str, offset: int, length: int) -> None:
        """Copy a weight from its file to ours without bringing it into memory."""
        source = os.open(path, os.O_RDONLY)
        try:
            copy_range(source, offset, self._sink.fileno(), self.size, length)
        finally:
            os.close(source)
        self.size += length
        self._sink.seek(self.size)

    def _digest(self, piece: memoryview) -> None:
        while piece:
            part = piece[: BLOCK - self._block_length]
            self._block.update(part)
            self._block_length += len(part)
            piece = piece[len(part) :]
            if self._block_length == BLOCK:
                self._end_block()

    def _end_block(self) -> None:
        if self._block_length:
            last = self._segments[-1] if self._segments else Segment(0, 0, "")
            start = last.offset + last.length
            self._segments.append(Segment(start, self._block_length, self._block.hexdigest()))
            self._block = hashlib.sha256()
            self._block_length = 0


class PayloadSet:
    """The payloads of one EP in one context model; implements `ContextWriter`.

    Args:
        ep: the EP type, for messages.
        file_name: makes the name of a file from an EP's name for it (None for its only payload).
        open_sink: opens where the bytes of a name go.
        embedded: whether they end up inside the model.
        final: False in a share group before its last member.
    """

    def __init__(
        self,
        ep: str,
        *,
        file_name: Callable[[str | None], str],
        open_sink: Callable[[str], BinaryIO],
        embedded: bool,
        final: bool = True,
    ) -> None:
        self.final = final
        self.writers: list[PayloadWriter] = []
        self._ep = ep
        self._file_name = file_name
        self._open_sink = open_sink
        self._embedded = embedded
        self._names: set[str | None] = set()

    def payload(self, name: str | None = None) -> PayloadWriter:
        """Start a payload.

        Raises:
            PluginError: the EP started one of this name before.
        """
        if name in self._names:
            raise PluginError(
                f"{self._ep} started two payloads {'without a name' if name is None else f'named {name!r}'} "
                "in one call of get_ep_context_nodes.",
                ep=self._ep,
                hook="get_ep_context_nodes",
                hint="Put all graphs into one payload; a second one needs a name of its own.",
            )
        self._names.add(name)
        file_name = self._file_name(name)
        writer = PayloadWriter(file_name, self._open_sink(file_name), embedded=self._embedded)
        self.writers.append(writer)
        return writer
