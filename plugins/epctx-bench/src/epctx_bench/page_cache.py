"""Page cache of the system: dropping a file from it, and whether that worked."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_CHUNK = 1 << 20


def drop_files(paths: Iterable[Path]) -> str:
    """Drop files from the page cache; return why that failed, or an empty text.

    Files are written to the disk first, since the system keeps pages that are not.
    """
    if not hasattr(os, "posix_fadvise"):
        return "this system cannot drop files from its page cache"
    kept = []
    for path in paths:
        try:
            _drop(path)
        except OSError as error:
            return f"{path.name} could not be dropped from the page cache: {error}"
        if not _may_ask(path):
            return f"whether {path.name} left the page cache is told to its owner alone"
        if count_cached_pages(path):
            kept.append(path.name)
    if kept:
        return (
            f"{' and '.join(kept)} stayed in the page cache: the file system lies in "
            "memory, or another process uses the file"
        )
    return ""


def _drop(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _may_ask(path: Path) -> bool:
    """Return whether the system tells this process which pages are cached: to others
    than the owner and those who may write it calls every page of a file resident.
    """
    is_own = path.stat().st_uid == os.geteuid()
    return is_own or os.access(path, os.W_OK)


def read_files(paths: Iterable[Path]) -> None:
    """Read files once, so that the page cache has all of them."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(_CHUNK):
                pass


def count_cached_pages(path: Path) -> int:
    """Return how many pages of a file are in the page cache; 0 where the system does
    not say so.
    """
    import numpy as np

    system = ctypes.CDLL(None, use_errno=True)
    if not hasattr(system, "mincore") or not path.stat().st_size:
        return 0
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        view = np.frombuffer(mapped, np.uint8)
        resident = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
        failed = system.mincore(
            ctypes.c_void_p(view.ctypes.data),
            ctypes.c_size_t(len(view)),
            ctypes.c_void_p(resident.ctypes.data),
        )
        # The mapping cannot be closed while an array refers to it.
        del view
    return 0 if failed else int(np.sum(resident & 1))
