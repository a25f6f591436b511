"""Folders of one user's own: where the user's caches lie, and how a folder is made that nobody else can change."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def user_folder(platform: str, environment: Mapping[str, str]) -> Path:
    """Return where the user's caches lie on a platform, with this one's name."""
    home = Path(environment.get("HOME") or Path.home())
    if platform == "darwin":
        return home / "Library" / "Caches" / "epctx"
    if platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local") / "epctx" / "cache"
    base = environment.get("XDG_CACHE_HOME", "")
    # The XDG rules: a relative path is to be ignored.
    return (Path(base) if base.startswith("/") else home / ".cache") / "epctx"


def make_private_folder(folder: Path) -> None:
    """Make a folder and those above it, as far as they are missing; other users get no access to those made here.

    Raises:
        OSError: the system refuses it.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def distrusted(status: os.stat_result) -> str:
    """Return why others may have put there what lies in a folder, in words that follow its name; empty if they cannot.

    A link to a folder counts as one where the status is that of what it leads to (`stat`), not its own (`lstat`).
    """
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    if not is_own(status):
        return "belongs to another user"
    if hasattr(os, "geteuid") and status.st_mode & _WRITABLE_BY_OTHERS:
        return f"can be written by other users (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def is_own(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this process's user, as far as the system has users."""
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
