"""A file in staging that takes every byte or says why not; knows no publication."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from epctx_core.graph.mapping import copy_range
from epctx_core.publish.failures import failure

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import ReadableBuffer

    from epctx_core.graph.mapping import MappedFile


_AT_ONCE = 64 << 20
"""Bytes that are written or copied between two questions whether to go on."""


class StagedFile(io.FileIO):
    """A new file in staging, unbuffered, to write and read. `write` takes everything or raises `Fail`.

    Args:
        path: of the new file.
        folder: where it is to be published, for messages.
        before_writing: called before each piece; what it raises passes.
    """

    def __init__(self, path: Path, folder: Path, before_writing: Callable[[], None] = lambda: None) -> None:
        super().__init__(path, "xb+", opener=_create)
        self._folder = folder
        self._before_writing = before_writing

    def write(self, buffer: ReadableBuffer, /) -> int:
        """Append or overwrite at the position; return the number of bytes, which is all of them.

        The system takes at most 2 GiB in one call, and less when the disk fills up.

        Raises:
            Fail: the disk is full or broken.
        """
        view = memoryview(buffer)
        if not view.nbytes:
            return 0
        view, done = view.cast("B"), 0
        try:
            while done < len(view):
                self._before_writing()
                done += os.write(self.fileno(), view[done : done + _AT_ONCE])
        except OSError as exc:
            raise failure("writing a file", self._folder, exc) from exc
        return done

    def copy_mapped(self, mapped: MappedFile, offset: int, length: int) -> None:
        """Append or overwrite bytes of a mapped file at the position, without bringing them into memory.

        Raises:
            Fail: the disk is full or broken.
            InvalidGraph: the mapped file was cut or written to.
        """
        position = self.tell()
        for done in range(0, length, _AT_ONCE):
            self._before_writing()
            step = min(_AT_ONCE, length - done)
            try:
                copy_range(mapped.descriptor, offset + done, self.fileno(), position + done, step)
            except OSError as exc:
                mapped.check_unchanged()
                raise failure("writing a file", self._folder, exc) from exc
        self.seek(position + length)


def _create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o666)
