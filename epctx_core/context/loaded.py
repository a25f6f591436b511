"""Payload as an EP gets it to load: mapped, in memory, or a copy that nobody else can change."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from epctx_core.context.receipts import keeping_receipt
from epctx_core.errors import Fail, InvalidGraph
from epctx_core.graph.mapping import CHUNK, CopiesMapped, copy_range

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


_ON_DISK = (
    "Free some space in the folder for temporary files, or have TMPDIR name another one; "
    "on the model's file system nothing has to be copied."
)
_IN_MEMORY = (
    "It came from the EPContext data read callback, so it is written to no disk, and the EP takes it only as a file: "
    "give it more memory, or load this model from files on this system."
)


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
            try:
                self._path = self._make()
            except OSError as error:
                raise Fail(
                    f"no file could be made of the payload {self.name!r}: {error}.",
                    hint=_IN_MEMORY if self.in_memory else _ON_DISK,
                ) from error
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

    def _make(self) -> str:
        if self.in_memory:
            return self.scratch.file_in_memory(self.view)
        path = self.scratch.folder() / (Path(self.name).name if self.mapped is not None else "payload.bin")
        self._put(path)
        return str(path)

    def _put(self, path: Path) -> None:
        if self.mapped is None:
            path.write_bytes(self.view)
            return
        with suppress(OSError):
            with self._keeping_receipt():
                path.hardlink_to(self.mapped.path)
            if self.mapped.is_at(path):
                self.scratch.before_closing(partial(self._unlink, path))
                return
            path.unlink()
        self.mapped.check_unchanged()
        with path.open("xb", buffering=0) as file:
            copy_range(self.mapped.descriptor, 0, file.fileno(), 0, self.mapped.size)

    def _unlink(self, path: Path) -> None:
        with suppress(OSError), self._keeping_receipt():
            path.unlink()

    def _keeping_receipt(self) -> AbstractContextManager[None]:
        """A second link changes the file's ctime, and nothing else of it."""
        if self.mapped is None or self.digest is None:
            return nullcontext()
        return keeping_receipt(self.mapped.descriptor, self.digest)


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
