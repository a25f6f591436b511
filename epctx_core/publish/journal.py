"""Journal of one publication: how an untrusted one is read, and its steps, done or undone.

A journal in its final place is the commit point. What a killed publication left is finished or discarded; each step
may be stopped anywhere and started again.
"""

from __future__ import annotations

import json
import stat
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from epctx_core.context.unfinished import (
    NEW,
    OLD,
    canonical,
    folders_of,
    is_file,
    link_free,
    mode_of,
    staging_folders,
)
from epctx_core.publish import posix
from epctx_core.publish.failures import NameTakenError, reported
from epctx_core.publish.files import StagedFile, claim, is_same_file, make_folders, remove_tree, sync_folders

COMMITTED = "journal.json"
UNDO = "undo.json"
_MAX_BYTES = 16 << 20

Journal: TypeAlias = dict[str, bool]
"""Names to bring files to, in the order of the steps: binaries, then models; whether each held a file before.

The file that a name held is kept in `old/`. A name that held none is claimed: nothing is replaced there.
"""


def write(folder: Path, staging: Path, journal: Journal) -> None:
    """Put a journal in place durably. When it is there under its final name, the publication is committed.

    Raises:
        Fail, OSError: the disk is full or broken.
    """
    draft = staging / "journal.tmp"
    with StagedFile(draft, folder) as file:
        file.write(json.dumps(journal).encode("ascii"))
    posix.sync(draft)
    draft.replace(staging / COMMITTED)
    posix.sync(staging)


def read(folder: Path, staging: Path, file_name: str) -> Journal | None:
    """Return the journal that lies in a staging folder, or None if there is none that can be followed.

    Raises:
        OSError: the journal exists but the disk or its permissions keep us from reading it. That is
            not the same as a bad one: discarding a half-done publication would lose both states.
    """
    path = staging / file_name
    if not is_file(path) or path.stat().st_size > _MAX_BYTES:
        return None
    try:
        journal: Journal = json.loads(path.read_bytes())
        names = [canonical(name) for name in journal]
    except (ValueError, TypeError, RecursionError):
        return None  # InvalidArgument, for a name that leaves the folder, is a ValueError
    is_ours = isinstance(journal, dict) and all(isinstance(existed, bool) for existed in journal.values())
    if not is_ours or names != list(journal) or not _can_be_followed(folder, staging, names):
        return None
    return journal


def _can_be_followed(folder: Path, staging: Path, names: list[str]) -> bool:
    """Whether no name lies in another, and no step would pass through a link or move anything but a regular file."""
    if not {sub for name in names for sub in folders_of(name)}.isdisjoint(names):
        return False
    for name in names:
        final = link_free(folder, name)
        if final is None or stat.S_ISDIR(mode_of(final) or 0):
            return False
        for side in (NEW, OLD):
            path = link_free(staging, f"{side}/{name}")
            if path is None or not (is_file(path) or mode_of(path) is None):
                return False
    return True


def roll_forward(folder: Path, staging: Path, journal: Journal) -> None:
    """Bring every staged file to its final name, durably. A step whose staged file is gone is done.

    Raises:
        NameTakenError: something lies at a name that was free; earlier steps may have been done.
        OSError: a step failed.
    """
    for name, existed in journal.items():
        staged, final = staging / NEW / name, folder / name
        if mode_of(staged) is None:
            continue
        make_folders(folder, name)
        if existed:
            staged.replace(final)
        else:
            claim(staged, final)
    sync_folders(folder, journal)


def withdraw(folder: Path, staging: Path, journal: Journal) -> None:
    """Take a committed publication back.

    The journal becomes an order to undo before anything is undone: rolling forward what is half
    undone would pair a new model with an old binary.
    """
    (staging / COMMITTED).replace(staging / UNDO)
    posix.sync(staging)
    roll_back(folder, staging, journal)


def roll_back(folder: Path, staging: Path, journal: Journal) -> None:
    """Restore what every name held before, models first, durably; sub-folders that are empty then go.

    Raises:
        OSError: a step failed; calling again continues.
    """
    for name, existed in reversed(journal.items()):
        staged, kept, final = staging / NEW / name, staging / OLD / name, folder / name
        if mode_of(staged) is not None:  # never renamed, or taken back already
            if not existed and is_same_file(staged, final):
                final.unlink()
        elif not existed and mode_of(final) is not None:
            final.replace(staged)
        elif mode_of(kept) is not None:
            kept.replace(final)
    for sub in sorted({sub for name in journal for sub in folders_of(name)}, reverse=True):
        with suppress(OSError):
            (folder / sub).rmdir()
    sync_folders(folder, journal)


def discard(staging: Path) -> None:
    """Remove a staging folder; without its journal, what remains of it after a kill is only garbage."""
    for name in (COMMITTED, UNDO):
        if is_file(staging / name):
            (staging / name).unlink()
    remove_tree(staging)


def settle_all(folder: Path) -> None:
    """Finish or discard what killed publications left in a folder, for a caller that holds its lock.

    Raises:
        Fail: the system refused a step; what was left stays as it is.
    """
    with reported("finishing what an interrupted compile left there", folder):
        for staging in staging_folders(folder):
            if undo := read(folder, staging, UNDO):
                roll_back(folder, staging, undo)
            elif committed := read(folder, staging, COMMITTED):
                try:
                    roll_forward(folder, staging, committed)
                except NameTakenError:
                    withdraw(
                        folder, staging, committed
                    )  # another model took the name since the kill; it stays
            discard(staging)
