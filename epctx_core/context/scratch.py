"""Folders of this user alone: scratch folders of sessions, that for receipts, and the
removal of any.
"""

from __future__ import annotations

import atexit
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def get_user_folder(platform: str, environment: Mapping[str, str]) -> Path:
    """Return the folder of epctx among the user's caches on a platform."""
    home = Path(environment.get("HOME") or Path.home())
    if platform == "darwin":
        return home / "Library" / "Caches" / "epctx"
    if platform == "win32":
        return (
            Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local")
            / "epctx"
            / "cache"
        )
    base = environment.get("XDG_CACHE_HOME", "")
    # The XDG rules: a relative path is to be ignored.
    return (Path(base) if base.startswith("/") else home / ".cache") / "epctx"


def make_private_folder(folder: Path) -> str:
    """Make a folder and those above it, as far as they are missing; other users get no
    access to those made here.

    Returns:
        Why other users may have written into the folder; see `describe_distrust`.

    Raises:
        OSError: the system refuses it.
    """
    missing = []
    above = folder
    while not above.exists():
        missing.append(above)
        above = above.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    return describe_distrust(folder.stat())


def describe_distrust(status: os.stat_result) -> str:
    """Return why other users may have written into a folder, in words that follow its
    name; empty if they cannot.

    A link to a folder counts as one where the status is that of what it leads to
    (`stat`), not its own (`lstat`).
    """
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    if not is_own(status):
        return "belongs to another user"
    if hasattr(os, "geteuid") and status.st_mode & _WRITABLE_BY_OTHERS:
        return f"can be written by other users (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def is_own(status: os.stat_result) -> bool:
    """Return whether a file or folder belongs to this process's user, as far as the
    system has users.
    """
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def remove_tree(folder: Path) -> None:
    """Remove a folder and all below it, without following links; a missing one is fine,
    and so is a concurrent removal.

    Not `shutil.rmtree`: that recurses, so a deeply nested folder would end in a
    RecursionError.
    """
    if folder.is_symlink():
        folder.unlink(missing_ok=True)
        return

    pending = [folder]
    seen = []
    while pending:
        current = pending.pop()
        seen.append(current)
        with suppress(FileNotFoundError):
            for entry in list(os.scandir(current)):
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                else:
                    Path(entry.path).unlink(missing_ok=True)
    for emptied in reversed(seen):
        with suppress(FileNotFoundError):
            emptied.rmdir()


@contextmanager
def make_scratch_folder() -> Iterator[Path]:
    """Give a new folder that only this user can read; it goes with the block, or at the
    latest with the process.

    `tempfile.TemporaryDirectory` would remove it at the end of a forked child, too.
    """
    # Most loads have no such folder, and the imports take milliseconds.
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="epctx-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    try:
        yield Path(folder)
    finally:
        atexit.unregister(remove)
        remove()
