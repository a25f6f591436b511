"""Copies of payloads: files for EPs that take only paths, and private copies in memory."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.receipts import keep_receipt
from epctx_core.context.scratch import make_scratch_folder
from epctx_core.errors import Fail, InvalidGraph
from epctx_core.graph.mapping import MappedFile, copy_range

if TYPE_CHECKING:
    from epctx_core.context.payload_reader import LoadedPayload


def read_privately(descriptor: int, path: str) -> memoryview:
    """Return the content of a file, read once; what happens to the file afterwards does not matter.

    Args:
        descriptor: of the file, open at its beginning.
        path: where the file lies.

    Raises:
        InvalidGraph: the file was written to or cut while it was read.
    """
    before = os.fstat(descriptor)
    with io.BufferedReader(io.FileIO(descriptor, closefd=False)) as file:
        content = file.read(before.st_size + 1)  # of a file that grows for ever, no more
    after = os.fstat(descriptor)
    state = len(content), after.st_size, after.st_mtime_ns
    if state != (before.st_size, before.st_size, before.st_mtime_ns):
        raise InvalidGraph(
            f"the file {path!r} was written to while it was read.",
            path=path,
            hint="Let whatever writes it finish, then start again.",
        )
    return memoryview(content)


_ON_DISK = (
    "Free some space in the folder for temporary files, or have TMPDIR name another one; "
    "on the model's file system nothing has to be copied."
)
_IN_MEMORY = (
    "It came from the EPContext data read callback, so it is written to no disk, and the EP takes it only as a file: "
    "give it more memory, or load this model from files on this system."
)


def make_file(payload: LoadedPayload) -> str:
    """Return the path of a new file with a payload's content; see `LoadedPayload.as_file`."""
    try:
        if payload.in_memory:
            return payload.scratch.enter_context(_memory_file(payload.view))
        if payload.mapped is None:
            path = payload.scratch.enter_context(make_scratch_folder()) / "payload.bin"
            path.write_bytes(payload.view)
        else:
            path = payload.scratch.enter_context(make_scratch_folder()) / Path(payload.name).name
            _link_or_copy(payload, payload.mapped, path)
    except OSError as error:
        raise Fail(
            f"no file could be made of the payload {payload.name!r}: {error}.",
            hint=_IN_MEMORY if payload.in_memory else _ON_DISK,
        ) from error
    return str(path)


def _link_or_copy(payload: LoadedPayload, mapped: MappedFile, path: Path) -> None:
    def unlink() -> None:
        with suppress(OSError), keep_receipt(mapped.descriptor, payload.digest):
            path.unlink()

    with suppress(OSError):
        with keep_receipt(mapped.descriptor, payload.digest):
            path.hardlink_to(mapped.path)
        if mapped.is_at(path):
            payload.scratch.callback(unlink)
            return
        path.unlink()
    mapped.check_unchanged()
    with path.open("xb", buffering=0) as file:
        copy_range(mapped.descriptor, 0, file.fileno(), 0, mapped.size)


@contextmanager
def _memory_file(content: memoryview) -> Iterator[str]:
    """Give the path of a file in memory, for this process and the programs it starts.

    It has no name in any folder, so that nothing of it outlives the process, however that ends.

    Raises:
        OSError: there is no memory for it, or the system has no such files.
    """
    if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
        raise OSError(errno.ENOTSUP, "this system has no files in memory that have a path")
    descriptor = os.memfd_create("epctx-payload")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)
