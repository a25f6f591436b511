"""Doing and undoing the steps of a journal. Both may be stopped anywhere and started again.

Knows no lock; raises OSError as the system does, for callers to put into words.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from epctx_core.context.unfinished import JOURNAL, NEW, OLD, UNDO, is_file, mode_of
from epctx_core.publish import posix
from epctx_core.publish.failures import NameTakenError
from epctx_core.publish.tree import NO_HARD_LINKS, is_same_file, make_folders, remove_tree, sync_folders

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_core.publish.journal import Journal, Step


def roll_forward(folder: Path, staging: Path, journal: Journal) -> None:
    """Bring every staged file to its final name, durably. A step whose staged file is gone is done.

    Raises:
        NameTakenError: something lies at a name that was free; earlier steps may have been done.
        OSError: a step failed.
    """
    for step in journal.steps:
        staged, final = staging / NEW / step.name, folder / step.name
        if mode_of(staged) is None:
            continue
        make_folders(folder, step.name)
        if step.claim:
            _claim(staged, final, step.name)
        else:
            staged.replace(final)
    sync_folders(folder, [step.name for step in journal.steps])


def _claim(staged: Path, final: Path, name: str) -> None:
    """Give a staged file its final name unless something has it, in one step of the system."""
    try:
        try:
            os.link(staged, final)
        except OSError as exc:
            if exc.errno not in NO_HARD_LINKS:
                raise
            posix.rename_unless_taken(staged, final)
    except FileExistsError as exc:
        # The staged name of a link stays until staging is removed, so a repeated step finds its own.
        if not is_same_file(staged, final):
            raise NameTakenError(errno.EEXIST, os.strerror(errno.EEXIST), name) from exc


def withdraw(folder: Path, staging: Path, journal: Journal) -> None:
    """Take a committed publication back.

    The journal becomes an order to undo before anything is undone: rolling forward what is half
    undone would pair a new model with an old binary.
    """
    (staging / JOURNAL).replace(staging / UNDO)
    posix.sync_folder(staging)
    roll_back(folder, staging, journal)


def roll_back(folder: Path, staging: Path, journal: Journal) -> None:
    """Restore what every name held before, models first, durably.

    Raises:
        OSError: a step failed; calling again continues.
    """
    for step in reversed(journal.steps):
        _undo(folder, staging, step)
    for name in reversed(journal.folders):
        with suppress(FileNotFoundError):
            _remove_if_empty(folder / name)
    sync_folders(folder, [step.name for step in journal.steps])


def _undo(folder: Path, staging: Path, step: Step) -> None:
    staged, kept, final = staging / NEW / step.name, staging / OLD / step.name, folder / step.name
    if mode_of(staged) is not None:  # never renamed, or taken back already
        if step.claim and is_same_file(staged, final):
            final.unlink()
        return
    if step.existed:
        if mode_of(kept) is not None:
            kept.replace(final)
    elif mode_of(final) is not None:
        final.replace(staged)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as exc:
        if exc.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            raise


def discard(staging: Path) -> None:
    """Remove a staging folder; without its journal, what remains of it after a kill is only garbage."""
    for name in (JOURNAL, UNDO):
        if is_file(staging / name):
            (staging / name).unlink()
    remove_tree(staging)
