"""Payloads as EPs see them, with the files that some want of them; and private copies
in memory.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import BinaryIO

from epctx_core.context.digests import Content, get_view
from epctx_core.context.receipts import is_same_content, keep_receipt
from epctx_core.context.scratch import make_scratch_folder
from epctx_core.errors import Fail, InvalidGraph
from epctx_core.frozen import dataclass
from epctx_core.graph.mapping import MappedFile, copy_range, read_chunks

_ON_DISK = (
    "Free some space in the folder for temporary files, or have TMPDIR name another "
    "one; on the model's file system nothing has to be copied."
)
_IN_MEMORY = (
    "It came from the EPContext data read callback, so it is written to no disk, and "
    "the EP takes it only as a file: give it more memory, or load this model from "
    "files on this system."
)


@dataclass(eq=False)
class LoadedPayload:
    """A payload to read; implements `PayloadView`.

    Attributes:
        content: its bytes as they were found.
        scratch: lives as long as the session; makes a file of the payload for an EP
            that wants one.
        in_memory: whether no disk may have it, because the host stores it by itself.
        verified: whether every byte was checked against the manifest, now or when this
            machine met it first.
    """

    name: str
    content: Content
    _: KW_ONLY
    digest: str | None
    scratch: ExitStack
    in_memory: bool = False
    verified: bool = False
    _path: str | None = field(default=None, init=False)

    @property
    def mapped(self) -> MappedFile | None:
        """File that it lies in, if that is mapped."""
        return self.content if isinstance(self.content, MappedFile) else None

    @property
    def is_file(self) -> bool:
        """True for a mapped file, False for bytes in memory."""
        return self.mapped is not None

    @property
    def view(self) -> memoryview:
        """All bytes."""
        return get_view(self.content)

    def as_file(self) -> str:
        """Return a path with the same content, which is there for as long as the
        session lives.

        What the host's callback gave lies in memory, on no disk. Otherwise it is a
        second link to the file where the folder for it lies on the same file system, or
        else a copy: at the file's own path another one lies after the next compile.

        Raises:
            InvalidGraph: the file was written to since it was mapped.
            Fail: there is no space for a copy, or the system has no files in memory.
        """
        if self._path is None:
            try:
                self._path = (
                    self.scratch.enter_context(_memory_file(self.view))
                    if self.in_memory
                    else self._make_file()
                )
            except OSError as error:
                raise Fail(
                    f"no file could be made of the payload {self.name!r}: {error}.",
                    hint=_IN_MEMORY if self.in_memory else _ON_DISK,
                ) from error
        return self._path

    def _make_file(self) -> str:
        folder = self.scratch.enter_context(make_scratch_folder())
        if self.mapped is None:
            path = folder / "payload.bin"
            path.write_bytes(self.view)
        else:
            # Readers of vendors refuse two dots anywhere in a name, as they lead out of
            # the folder.
            path = folder / Path(self.name).name.replace("..", "_")
            self._link_or_copy(self.mapped, path)
        return str(path)

    def _link_or_copy(self, mapped: MappedFile, path: Path) -> None:
        mapped.check_unchanged()

        def unlink() -> None:
            with suppress(OSError), keep_receipt(mapped.descriptor, self.digest):
                path.unlink()

        # NotImplementedError: the system has no hard links at all.
        with suppress(OSError, NotImplementedError):
            with keep_receipt(mapped.descriptor, self.digest):
                path.hardlink_to(mapped.path)
            if mapped.is_at(path):
                self.scratch.callback(unlink)
                return
            path.unlink()
        with path.open("xb", buffering=0) as file:
            copy_range(mapped.descriptor, 0, file.fileno(), 0, mapped.size)

    def copy_to(self, sink: BinaryIO) -> None:
        """Append all bytes, in chunks, to a sink that takes each of them whole.

        Raises:
            InvalidGraph: the file was written to since it was mapped.
        """
        copy_mapped = getattr(sink, "copy_mapped", None)
        if self.mapped is not None and copy_mapped is not None:
            copy_mapped(self.mapped, 0, self.mapped.size)
            self.mapped.check_unchanged()
            return
        for chunk in self.chunks():  # noqa: FURB122 - a MemorySink overrides `write` alone
            sink.write(chunk)

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return len(self.view)

    def chunks(self) -> Iterator[memoryview]:
        """Return the bytes in order, in chunks that need not stay in memory afterwards.

        Raises:
            InvalidGraph: the file was written to since it was mapped.
        """
        return read_chunks(self.view, self.mapped)


@contextmanager
def _memory_file(content: memoryview) -> Iterator[str]:
    """Give the path of a file in memory, for this process and the programs it starts.

    It has no name in any folder, so that nothing of it outlives the process, however
    that ends.

    Raises:
        OSError: there is no memory for it, or the system has no such files.
    """
    if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
        raise OSError(
            errno.ENOTSUP, "this system has no files in memory that have a path"
        )
    descriptor = os.memfd_create("epctx-payload")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def read_privately(descriptor: int, path: str) -> memoryview:
    """Return the content of a file, read once; what happens to the file afterwards does
    not matter.

    Args:
        descriptor: of the file, open at its beginning.
        path: where the file lies.

    Raises:
        InvalidGraph: the file was written to or cut while it was read.
    """
    before = os.fstat(descriptor)
    with io.BufferedReader(io.FileIO(descriptor, closefd=False)) as file:
        content = file.read(
            before.st_size + 1
        )  # of a file that grows for ever, no more
    if len(content) != before.st_size or not is_same_content(
        before, os.fstat(descriptor)
    ):
        raise InvalidGraph(
            f"the file {path!r} was written to while it was read.",
            path=path,
            hint="Let whatever writes it finish, then start again.",
        )
    return memoryview(content)
