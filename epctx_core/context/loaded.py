"""Payload as an EP gets it to load: mapped, in memory, or a copy that nobody else can change."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from epctx_core.errors import InvalidGraph
from epctx_core.graph.mapping import CHUNK, CopiesMapped

if TYPE_CHECKING:
    from epctx_core.context.scratch import Scratch
    from epctx_core.graph.mapping import MappedFile
    from epctx_core.plugin import ContextNode, TensorView


class PrivateCopy:
    """The content of a file, read once; what happens to the file afterwards does not matter.

    Stands where a `MappedFile` would.

    Attributes:
        path: where the file lay.
        size: length in bytes.
        view: the whole content.

    Args:
        descriptor: of the file, open at its beginning.
        path: where the file lies.

    Raises:
        InvalidGraph: the file was written to or cut while it was read.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        before = os.fstat(descriptor)
        content = bytearray(before.st_size)
        whole, filled = memoryview(content), 0
        with io.FileIO(descriptor, closefd=False) as file:
            while filled < len(content) and (count := file.readinto(whole[filled:])):
                filled += count
        after = os.fstat(descriptor)
        if filled < len(content) or (after.st_size, after.st_mtime_ns) != (
            before.st_size,
            before.st_mtime_ns,
        ):
            raise InvalidGraph(
                f"the file {path!r} was written to while it was read.",
                path=path,
                hint="Let whatever writes it finish, then start again.",
            )
        self.path = path
        self.size = len(content)
        self.view = whole.toreadonly()

    def forget(self, offset: int, length: int) -> None:
        """Keep everything: there is no file to read it from again."""


@dataclass(eq=False)
class LoadedPayload:
    """A payload to read; implements `PayloadView`.

    Attributes:
        mapped: the file, if it lies in one and is mapped.
        scratch: lives as long as the session; makes a file of the payload for an EP that wants one.
        in_memory: whether no disk may have it, because the host stores it by itself.
        verified: whether every byte was checked against the manifest, now or when this machine met it first.
    """

    name: str
    view: memoryview
    _: KW_ONLY
    digest: str | None
    mapped: MappedFile | None
    scratch: Scratch
    in_memory: bool = False
    verified: bool = False
    _path: str | None = field(default=None, init=False)

    def as_file(self) -> str:
        """Return a path with the same content, which is there for as long as the session lives.

        What the host's callback gave lies in memory, on no disk. Otherwise it is a second link to the
        file where the folder for it lies on the same file system, or else a copy: at the file's own path
        another one lies after the next compile.

        Raises:
            Fail: there is no space for a copy, or the system has no files in memory.
        """
        if self._path is None:
            # Most EPs read the mapping.
            from epctx_core.context.payload_files import make_file

            self._path = make_file(self)
        return self._path

    def copy_to(self, sink: BinaryIO) -> None:
        """Append all bytes to a sink, in pieces.

        Raises:
            InvalidGraph: the file was written to since it was mapped.
        """
        if self.mapped is not None and isinstance(sink, CopiesMapped):
            sink.copy_mapped(self.mapped, 0, self.mapped.size)
            self.mapped.check_unchanged()
            return
        for piece in self.chunks():
            left = piece
            while left:
                left = left[sink.write(left) :]

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return len(self.view)

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes in order, in pieces that need not stay in memory afterwards.

        Raises:
            InvalidGraph: the file was written to since it was mapped.
        """
        for start in range(0, len(self.view), CHUNK):
            piece = self.view[start : start + CHUNK]
            yield piece
            if self.mapped is not None:
                self.mapped.forget(start, len(piece))
                self.mapped.check_unchanged()


class KnownPayloads:
    """Payloads that are at hand before an EP asks for any; implements `ContextReader`.

    Args:
        payloads: a primary's name to its payload.
        source_tensor: gives a weight of the source model by name.
    """

    def __init__(
        self, payloads: Mapping[str, LoadedPayload], source_tensor: Callable[[str], TensorView]
    ) -> None:
        self._payloads = payloads
        self.source_tensor = source_tensor

    def payload(self, node: ContextNode) -> LoadedPayload:
        """Return the payload that holds a node's graph: its own, or its primary's.

        Raises:
            InvalidGraph: it is not known whose.
        """
        owner = node if node.main_context else node.primary
        found = self._payloads.get(owner.name) if owner is not None else None
        if found is None:
            raise InvalidGraph(
                f"EPContext node {node.name!r} carries no payload, and more than one primary could hold its graph.",
                node=node.name,
                hint="The EP has to look for the node's partition_name in the payloads of the primaries.",
            )
        return found
