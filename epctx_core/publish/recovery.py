"""What a killed publication left: finishing or discarding it.

Knows no Publication. What lies in a staging folder is untrusted.
"""

from __future__ import annotations

import os
from pathlib import Path

from epctx_core.context.unfinished import JOURNAL, UNDO, staging_folders
from epctx_core.publish import journal
from epctx_core.publish.failures import NameTakenError, reported
from epctx_core.publish.posix import FolderLock
from epctx_core.publish.replay import discard, roll_back, roll_forward, withdraw


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
