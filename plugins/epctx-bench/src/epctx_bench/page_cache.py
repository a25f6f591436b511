"""Page cache of the system: dropping files from it, and whether a process then read
from a disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import psutil

_CHUNK = 1 << 20


def drop_files(paths: Iterable[Path]) -> str:
    """Drop files from the page cache; return why that failed, or an empty text.

    Files are written to the disk first, since the system keeps pages that are not.
    """
    if not hasattr(os, "posix_fadvise"):
        return "this system cannot drop files from its page cache"

    for path in paths:
        try:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            return f"{path.name} could not be dropped from the page cache: {error}"
    return ""


def read_files(paths: Iterable[Path]) -> None:
    """Read files once, so that the page cache has all of them."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(_CHUNK):
                pass


def count_read_bytes() -> int:
    """Return how many bytes this process has had read from a disk, which what the page
    cache had is not part of; 0 where the system does not count them.
    """
    process = psutil.Process()
    return process.io_counters().read_bytes if hasattr(process, "io_counters") else 0
