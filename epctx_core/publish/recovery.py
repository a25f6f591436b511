"""What a killed publication left: finishing or discarding it, and finding bytes in it for a reader.

Knows no Publication. What lies in a staging folder is untrusted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.publish import journal
from epctx_core.publish.failures import NameTakenError, reported
from epctx_core.publish.names import JOURNAL, NEW, OLD, UNDO, canonical, is_file, link_free, staging_folders
from epctx_core.publish.posix import FolderLock
from epctx_core.publish.replay import discard, roll_back, roll_forward, withdraw

if TYPE_CHECKING:
    from collections.abc import Iterator


def finish_interrupted(folder: Path) -> None:
    """Finish or discard what killed publications left in a folder; waits for one that is under way.

    Raises:
        NoSuchFile: the folder does not exist.
        InvalidArgument: it is no folder, or this thread is publishing into it.
        Fail: the folder can't be locked or written; what was left stays as it is.
    """
    real = Path(os.path.realpath(folder))
    lock = FolderLock(real)
    lock.acquire()
    try:
        settle_all(real)
    finally:
        lock.release()


def settle_all(folder: Path) -> None:
    """Do what `finish_interrupted` does, for a caller that holds the lock."""
    with reported("finishing what an interrupted compile left there", folder):
        for staging in staging_folders(folder):
            _settle(folder, staging)


def _settle(folder: Path, staging: Path) -> None:
    undo = journal.read(folder, staging, UNDO)
    if undo is not None:
        roll_back(folder, staging, undo)
    else:
        _go_on(folder, staging)
    discard(staging)


def _go_on(folder: Path, staging: Path) -> None:
    committed = journal.read(folder, staging, JOURNAL)
    if committed is None:
        return
    try:
        roll_forward(folder, staging, committed)
    except NameTakenError:
        withdraw(folder, staging, committed)  # another model took the name since the kill; it stays


def interrupted_copies(folder: Path, name: str) -> Iterator[Path]:
    """Yield files that may hold the bytes of a name as a publication found them or will leave them.

    For a loader whose context model names other bytes than lie beside it: a publication is under way
    or was killed. The caller compares digests, since a staged file may be half written. If none
    matches, the publication has ended in between and the context model itself has to be read again.
    The kept bytes come first. Never raises: names that leave the folder, missing folders and files
    that vanish give nothing; links are not followed.

    Args:
        folder: the context model's folder.
        name: the name as the context model spells it, relative to the folder.
    """
    try:
        wanted = canonical(name)
        found = staging_folders(folder)
    except (OSError, ValueError):  # InvalidArgument is a ValueError; so is a zero byte in the folder
        return
    for staging in found:
        for side in (OLD, NEW):
            copy = _copy(staging, f"{side}/{wanted}")
            if copy is not None:
                yield copy


def _copy(staging: Path, name: str) -> Path | None:
    try:
        path = link_free(staging, name)
        return path if path is not None and is_file(path) else None
    except OSError:
        return None
