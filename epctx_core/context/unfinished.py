"""Files of an unfinished publication, as a reader finds them.

Knows nothing of journals; names may come from an untrusted one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from epctx_core.file_names import STAGING_PREFIX, normalise_path

NEW = "new"
OLD = "old"

_NOTHING_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})


def get_mode(path: Path) -> int | None:
    """Return the mode of a path (links not followed), None if nothing is there.

    Unlike `os.path.lexists`, an error other than "nothing there" is raised: taking it
    for "gone" would make a step that is still to do look done.
    """
    try:
        return os.lstat(path).st_mode
    except OSError as exc:
        if exc.errno in _NOTHING_THERE:
            return None
        raise


def is_file(path: Path) -> bool:
    """Return whether a path is a regular file, not a link."""
    mode = get_mode(path)
    return mode is not None and stat.S_ISREG(mode)


def resolve_without_links(root: Path, name: str) -> Path | None:
    """Return `root/name`, or None if a folder on the way is a link or not a folder.

    `root` itself is trusted.
    """
    path = root
    for part in name.split("/")[:-1]:
        path /= part
        mode = get_mode(path)
        if mode is not None and not stat.S_ISDIR(mode):
            return None
    return root / name


def list_staging_folders(folder: Path) -> list[Path]:
    """Return the staging folders in a folder, sorted; links of that name are not ours.

    Raises:
        OSError: the folder can't be listed.
    """
    with os.scandir(folder) as entries:
        found = [
            e
            for e in entries
            if e.name.startswith(STAGING_PREFIX) and e.is_dir(follow_symlinks=False)
        ]
    return sorted(Path(e.path) for e in found)


def find_interrupted_copies(folder: Path, name: str) -> Iterator[Path]:
    """Yield files that may hold the bytes of a name as a publication found them or will
    leave them.

    For a loader whose context model names other bytes than lie beside it: a publication
    is under way or was killed. The caller compares digests, since a staged file may be
    half written. If none matches, the publication has ended in between and the context
    model itself has to be read again. The kept bytes come first. Never raises: names
    that leave the folder, missing folders and files that vanish give nothing; links are
    not followed.

    Args:
        folder: the context model's folder.
        name: the name as the context model spells it, relative to the folder.
    """
    try:
        relative = normalise_path(name)
        found = list_staging_folders(folder)
    except (
        OSError,
        ValueError,
    ):  # InvalidArgument is a ValueError; so is a zero byte in the folder
        return
    for staging in found:
        for side in (OLD, NEW):
            with suppress(OSError):
                copy = resolve_without_links(staging, f"{side}/{relative}")
                if copy is not None and is_file(copy):
                    yield copy
