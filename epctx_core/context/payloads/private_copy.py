"""A context binary in memory of its own, for hosts that do not trust the file to stay as it is."""

from __future__ import annotations

import io
import os

from epctx_core.errors import InvalidGraph


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
