"""Mapped files and bulk copies: bytes move without passing through the heap.

One of the two modules with calls that only POSIX systems have; each has a portable way beside it.
"""

from __future__ import annotations

import mmap
import os

CHUNK = 16 << 20
"""Bytes handled at once: what one pass over a large file keeps resident."""


class MappedFile:
    """One read-only mapping of a whole file; views into it keep it alive."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.path = path
        self.size = os.fstat(descriptor).st_size
        # An empty file cannot be mapped, and holds nothing to map.
        self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if self.size else None
        self.view = memoryview(self._map) if self._map is not None else memoryview(b"")

    def forget(self, offset: int, length: int) -> None:
        """Give back the resident pages of a range that was read once.

        Pages read through a mapping count as this process's memory until they are given back.
        """
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            start = offset - offset % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, length + offset - start)

    def prefetch(self) -> None:
        """Ask for the whole file to be made resident soon."""
        if self._map is not None and hasattr(mmap, "MADV_WILLNEED"):
            self._map.madvise(mmap.MADV_WILLNEED)


def copy_range(source: int, source_offset: int, target: int, target_offset: int, length: int) -> None:
    """Copy bytes from one open file into another, in the kernel where it can.

    Write-back of the target is started piece by piece, so that the final fsync finds little to do.

    Raises:
        OSError: the source ends early, or the target cannot be written.
    """
    done = 0
    while done < length:
        step = min(CHUNK, length - done)
        copied = _copy_piece(source, source_offset + done, target, target_offset + done, step)
        if copied == 0:
            raise OSError(f"the source ended {length - done:,} bytes early")
        start_writing_back(target, target_offset + done, copied)
        done += copied


def _copy_piece(source: int, source_offset: int, target: int, target_offset: int, length: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, length, source_offset, target_offset)
        except OSError:
            # Not between these two file systems; the portable way below serves all.
            pass
    os.lseek(source, source_offset, os.SEEK_SET)
    data = os.read(source, length)
    os.lseek(target, target_offset, os.SEEK_SET)
    return os.write(target, data)


def start_writing_back(target: int, offset: int, length: int) -> None:
    """Start writing a range to disk without waiting; on Linux this is what DONTNEED does to dirty pages."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(target, offset, length, os.POSIX_FADV_DONTNEED)
