"""Journal of one publication: its format, how an untrusted one is read, and its steps, done or undone.

A journal in its final place is the commit point. What a killed publication left is finished or discarded; each step
may be stopped anywhere and started again.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.unfinished import (
    JOURNAL,
    NEW,
    OLD,
    UNDO,
    canonical,
    folders_of,
    is_file,
    link_free,
    mode_of,
    staging_folders,
)
from epctx_core.publish import posix
from epctx_core.publish.failures import NameTakenError, reported
from epctx_core.publish.posix import FolderLock

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION = 2
_MAX_BYTES = 16 << 20
_BINARY = "binary"
_MODEL = "model"
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


@dataclass(frozen=True, kw_only=True)
class Step:
    """One file to bring to its final name.

    Attributes:
        name: canonical, relative to the folder; the same below `new/` and `old/` in staging.
        model: a context model; else a binary or an external-initializers file.
        existed: the name held a file before, which `old/` keeps.
        claim: the name was free and has to be taken without replacing whatever lies there by now.
    """

    name: str
    model: bool
    existed: bool
    claim: bool


@dataclass(frozen=True, kw_only=True)
class Journal:
    """What a publication does after its commit point.

    Attributes:
        steps: in the order in which they are done: binaries, then models.
        folders: sub-folders that did not exist before, outermost first.
    """

    steps: tuple[Step, ...]
    folders: tuple[str, ...]


def encode(journal: Journal) -> bytes:
    """Return a journal's bytes."""
    steps = [
        {
            "name": step.name,
            "kind": _MODEL if step.model else _BINARY,
            "existed": step.existed,
            "claim": step.claim,
        }
        for step in journal.steps
    ]
    fields = {"version": VERSION, "steps": steps, "folders": list(journal.folders)}
    return json.dumps(fields).encode("ascii")


def decode(data: bytes) -> Journal | None:
    """Return the journal that bytes hold, or None for anything that `encode` would not have written."""
    try:
        fields = json.loads(data)
        steps = [
            Step(name=canonical(s["name"]), model=s["kind"] == _MODEL, existed=s["existed"], claim=s["claim"])
            for s in fields["steps"]
        ]
        journal = Journal(steps=tuple(steps), folders=tuple(map(canonical, fields["folders"])))
        exact = encode(journal) == data
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # InvalidArgument, for a name that leaves the folder, is a ValueError
    return journal if exact and _is_consistent(journal) else None


def _is_consistent(journal: Journal) -> bool:
    """Whether types are right, no name is used twice, none lies in another, and models come last."""
    flags = [flag for step in journal.steps for flag in (step.existed, step.claim)]
    names = [step.name for step in journal.steps]
    folders = {folder for name in names for folder in folders_of(name)}
    kinds = [step.model for step in journal.steps]
    clobbers = any(step.existed and step.claim for step in journal.steps)
    return (
        all(isinstance(flag, bool) for flag in flags)
        and len(set(names)) == len(names)
        and folders.isdisjoint(names)
        and folders.issuperset(journal.folders)
        and kinds == sorted(kinds)
        and not clobbers
    )


def write(staging: Path, journal: Journal) -> None:
    """Put a journal in place durably. When it is there under its final name, the publication is committed.

    Raises:
        OSError: the disk is full or broken.
    """
    draft = staging / "journal.tmp"
    posix.write_durably(draft, encode(journal))
    draft.replace(staging / JOURNAL)
    posix.sync_folder(staging)


def read(folder: Path, staging: Path, file_name: str) -> Journal | None:
    """Return the journal that lies in a staging folder, or None if there is none that can be followed.

    Raises:
        OSError: the journal exists but the disk or its permissions keep us from reading it. That is
            not the same as a bad one: discarding a half-done publication would lose both states.
    """
    data = posix.read_regular(staging / file_name, _MAX_BYTES)
    journal = None if data is None else decode(data)
    if journal is None or not _can_be_followed(folder, staging, journal):
        return None
    return journal


def _can_be_followed(folder: Path, staging: Path, journal: Journal) -> bool:
    """Whether no step would pass through a link, or move anything but a regular file."""
    for step in journal.steps:
        final = link_free(folder, step.name)
        mode = None if final is None else mode_of(final)
        if final is None or (mode is not None and stat.S_ISDIR(mode)):
            return False
        for side in (NEW, OLD):
            path = link_free(staging, f"{side}/{step.name}")
            if path is None or not (is_file(path) or mode_of(path) is None):
                return False
    return True


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
    """Force to disk the folders that names lie in, `root` last; missing ones are skipped."""
    for folder in dict.fromkeys(folder for name in names for folder in folders_of(name)):
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
    undo = read(folder, staging, UNDO)
    committed = None if undo is not None else read(folder, staging, JOURNAL)
    if undo is not None:
        roll_back(folder, staging, undo)
    elif committed is not None:
        try:
            roll_forward(folder, staging, committed)
        except NameTakenError:
            withdraw(folder, staging, committed)  # another model took the name since the kill; it stays
    discard(staging)
