"""Small file operations that a publication is made of; knows no journal and no lock."""

from __future__ import annotations

import errno
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.unfinished import folders_of, mode_of
from epctx_core.publish import posix

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_HARD_LINKS = frozenset(
    {
        errno.EPERM,  # FAT and others; also Linux's protected_hardlinks for another user's file
        errno.EACCES,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
        errno.EMLINK,
        errno.EXDEV,
    }
)

_TICK_NS = 20_000_000
"""Nanoseconds that no system's clock for files lags behind: a tick of it is at most a hundredth of a second."""


def make_folders(root: Path, name: str) -> None:
    """Create the sub-folders of `root` that a name lies in."""
    for folder in folders_of(name):
        with suppress(FileExistsError):
            (root / folder).mkdir()


def make_missing(folder: Path, made: list[Path]) -> None:
    """Create a folder and those above it that are missing; each one is added to `made`, outermost first."""
    missing = [each for each in (folder, *folder.parents) if mode_of(each) is None]
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir()
            made.append(each)
            posix.sync_folder(each.parent)


def sync_folders(root: Path, names: Iterable[str]) -> None:
    """Force to disk the folders that names lie in, innermost first, `root` last; missing ones are skipped."""
    folders = {folder for name in names for folder in folders_of(name)}
    for folder in sorted(folders, key=lambda f: f.count("/"), reverse=True):
        if mode_of(root / folder) is not None:
            posix.sync_folder(root / folder)
    posix.sync_folder(root)


def keep(final: Path, kept: Path) -> None:
    """Make `kept` hold the bytes of `final`: by a hard link, or by a copy where links are not possible.

    For a link, the file that it leads to is kept: a relative link would lead elsewhere from staging.
    """
    content = Path(os.path.realpath(final))
    try:
        os.link(content, kept)
    except OSError as exc:
        if exc.errno not in NO_HARD_LINKS:
            raise
        shutil.copyfile(content, kept)
        shutil.copymode(content, kept)
        posix.sync_file(kept)


def stamp(path: Path) -> os.stat_result | None:
    """Give a complete file a time of change that no later write can give it; return what the system says then.

    The system's clock for files ticks every few milliseconds: a write in the tick of another leaves the same time. So
    the time given lies before this tick. None where the file system does not keep such a time exactly.
    """
    status = path.lstat()
    time_ns = time.time_ns() - _TICK_NS
    try:
        os.utime(path, ns=(status.st_atime_ns, time_ns), follow_symlinks=False)
        status = path.lstat()
    except (OSError, NotImplementedError):
        return None
    return status if status.st_mtime_ns == time_ns else None


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two names are hard links of one file; links are not followed, missing ones are not the same."""
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except FileNotFoundError:
        return False


def remove_tree(folder: Path) -> None:
    """Remove a folder and all below it, without following links; a missing one is fine, and so are others who remove it, too.

    Not `shutil.rmtree`: that recurses, so a deeply nested folder would end in a RecursionError.
    """
    pending, seen = [folder], []
    while pending:
        current = pending.pop()
        seen.append(current)
        with suppress(FileNotFoundError):
            pending.extend(_remove_files(current))
    for emptied in reversed(seen):
        with suppress(FileNotFoundError):
            emptied.rmdir()


def _remove_files(folder: Path) -> list[Path]:
    """Remove the files directly in a folder; return its sub-folders."""
    with os.scandir(folder) as entries:
        found = [(Path(e.path), e.is_dir(follow_symlinks=False)) for e in entries]
    for path, is_folder in found:
        if not is_folder:
            path.unlink(missing_ok=True)
    return [path for path, is_folder in found if is_folder]
