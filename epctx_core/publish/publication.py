"""Publication: files are staged in the folder itself, then get their names all or none.

A journal under its final name is the commit point. A killed publication is finished or
discarded by the next one; each step may be stopped anywhere and started again.
Independent of the meaning of the files.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import stat
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from epctx_core.context.paths import (
    NEW,
    OLD,
    get_mode,
    is_file,
    list_staging_folders,
    resolve_without_links,
)
from epctx_core.context.scratch import describe_distrust, remove_tree
from epctx_core.errors import EpctxError, Fail, InvalidArgument
from epctx_core.file_names import STAGING_PREFIX, list_parents, normalise_path
from epctx_core.publish import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_log = logging.getLogger("epctx.publish")

COMMITTED = "journal.json"
UNDO = "undo.json"
_DRAFT = "journal.tmp"
_PARTS = {NEW, OLD, COMMITTED, UNDO, _DRAFT}
"""Names that a staging folder may hold."""
_STAGING_MODE = 0o755
"""Mode of the folders in staging: what others could write there is never followed."""
_MAX_BYTES = 16 << 20
_LOCK_ATTEMPTS = 100
"""Attempts to lock a folder that others remove again and again."""

Journal: TypeAlias = dict[str, bool]
"""Final names in the order of the steps, binaries before models; for each, whether a
file had it before.

A file that had the name is kept in `old/`. A name that was free is claimed: nothing is
replaced there.
"""


def write_journal(staging: Path, journal: Journal) -> None:
    """Write a journal durably.

    Once it has its final name, the publication is committed.

    Raises:
        OSError: the disk is full or broken.
    """
    draft = staging / _DRAFT
    draft.write_text(json.dumps(journal), "ascii")
    files.sync(draft)
    draft.replace(staging / COMMITTED)
    files.sync(staging)


def read_journal(folder: Path, staging: Path, file_name: str) -> Journal | None:
    """Return the journal that lies in a staging folder, or None if there is none that
    can be followed.

    Raises:
        OSError: the journal exists but the disk or its permissions prevent reading it.
            It is not a bad one: discarding a half-done publication would lose both
            states.
    """
    path = staging / file_name
    if not is_file(path) or path.stat().st_size > _MAX_BYTES:
        return None
    try:
        journal: Journal = json.loads(path.read_bytes())
        names = [normalise_path(name) for name in journal]
    except (ValueError, TypeError, RecursionError):
        return (
            None  # InvalidArgument, for a name that leaves the folder, is a ValueError
        )

    is_ours = isinstance(journal, dict) and all(
        isinstance(existed, bool) for existed in journal.values()
    )
    if (
        not is_ours
        or names != list(journal)
        or not _can_be_followed(folder, staging, names)
    ):
        return None

    return journal


def _can_be_followed(folder: Path, staging: Path, names: list[str]) -> bool:
    """Return whether no name lies in another, and no step would pass through a link or
    move anything but a regular file.
    """
    subs = {sub for name in names for sub in list_parents(name)}
    if not subs.isdisjoint(names):
        return False
    for name in names:
        final = resolve_without_links(folder, name)
        if final is None or stat.S_ISDIR(get_mode(final) or 0):
            return False
        for side in (NEW, OLD):
            path = resolve_without_links(staging, f"{side}/{name}")
            if path is None or not (is_file(path) or get_mode(path) is None):
                return False
    return True


def roll_forward(folder: Path, staging: Path, journal: Journal) -> None:
    """Bring every staged file to its final name, durably.

    A step is done if its staged file is gone.

    Raises:
        FileExistsError: something lies at a name that was free; earlier steps may have
            been done.
        OSError: a step failed.
    """
    for name, existed in journal.items():
        staged = staging / NEW / name
        final = folder / name
        if get_mode(staged) is None:
            continue
        files.make_folders(folder, name)
        if existed:
            staged.replace(final)
        else:
            files.claim(staged, final)
    files.sync_folders(folder, journal)


def withdraw(folder: Path, staging: Path, journal: Journal) -> None:
    """Take a committed publication back.

    The journal is renamed to `undo.json` before anything is undone: rolling forward a
    half-undone publication would pair a new model with an old binary.
    """
    (staging / COMMITTED).replace(staging / UNDO)
    files.sync(staging)
    roll_back(folder, staging, journal)


def roll_back(folder: Path, staging: Path, journal: Journal) -> None:
    """Restore the files that the names had before, models first, durably; remove
    sub-folders that are then empty.

    Raises:
        OSError: a step failed; calling again continues.
    """
    for name, existed in reversed(journal.items()):
        staged = staging / NEW / name
        old_file = staging / OLD / name
        final = folder / name
        if get_mode(staged) is not None:  # never renamed, or taken back already
            if not existed and files.is_same_file(staged, final):
                final.unlink()
        elif not existed and get_mode(final) is not None:
            final.replace(staged)
        elif get_mode(old_file) is not None:
            old_file.replace(final)
    for sub in sorted(
        {sub for name in journal for sub in list_parents(name)}, reverse=True
    ):
        with suppress(OSError):
            (folder / sub).rmdir()
    files.sync_folders(folder, journal)


def discard(staging: Path) -> None:
    """Remove a staging folder, its journal first: what remains after a kill is then
    only garbage.
    """
    for name in (COMMITTED, UNDO):
        if is_file(staging / name):
            (staging / name).unlink()
    remove_tree(staging)


def settle_interrupted(folder: Path) -> None:
    """Finish or discard killed publications in a folder, for a caller that holds its
    lock.

    Another user who may write into the folder can put any order there, which would be
    carried out with the rights of this user. So it is settled only if it belongs to
    this user, and nobody else may write into it; that of others waits for their own
    next compile.

    Raises:
        Fail: the system refused a step; nothing else is changed.
    """
    left = []
    with files.report_errors(
        "finishing what an interrupted compile left there", folder
    ):
        for staging in list_staging_folders(folder):
            if reason := _find_distrust(staging):
                left.append(f"{staging.name!r} {reason}")
                continue

            if undo := read_journal(folder, staging, UNDO):
                roll_back(folder, staging, undo)
            elif committed := read_journal(folder, staging, COMMITTED):
                try:
                    roll_forward(folder, staging, committed)
                except FileExistsError:
                    # Another model took the name since the kill; it stays.
                    withdraw(folder, staging, committed)
            discard(staging)

    if left:
        _log.warning(
            "of what interrupted compiles left in %s, %d folders were not settled: %s. "
            "A compile there by its own user settles it if nobody else can write into "
            "it; else remove it.",
            folder,
            len(left),
            left[0],
        )


@contextmanager
def settle_death(folder: Path | None) -> Iterator[None]:
    """Settle, if the block raises, what another process of this host left that died
    while it published, unless somebody holds the folder; the next compile there would,
    too.

    Args:
        folder: the folder; None for none.
    """
    try:
        yield
    except BaseException:
        if folder is not None and (folder / files.LOCK).exists():
            with suppress(EpctxError, OSError), files.folder_lock(folder, waits=False):
                settle_interrupted(folder)
        raise


def _find_distrust(staging: Path) -> str:
    """Return why a staging folder must not be settled, in words that follow its name;
    empty if it may.
    """
    try:
        if reason := describe_distrust(staging.lstat()):
            return reason
        names = {path.name for path in staging.iterdir()}
    except FileNotFoundError:
        return "was removed meanwhile"

    # Who may write into the folder can give a folder of this user such a name.
    return (
        ""
        if _PARTS.issuperset(names)
        else "holds other files than an interrupted compile leaves"
    )


def parse_name(name: str, folder: Path, path: Path) -> str:
    """Return a name in normal form; raise InvalidArgument for one that cannot be
    published into a folder.

    Args:
        name: relative to the folder.
        folder: the folder.
        path: that of the error.
    """
    try:
        normal = normalise_path(name)
        if resolve_without_links(folder, normal) is not None:
            return normal
        raise InvalidArgument(  # noqa: TRY301 - completed as the other one
            f"no file can be published as {name!r}: a folder on its way is a link or "
            "no folder.",
            hint="Use sub-folders that really lie in the output folder.",
        )
    except InvalidArgument as error:
        error.path = path
        raise


class Publication:
    """Context manager: one atomic publication into one folder, which is created if it
    is missing.

    Entering takes an exclusive lock on the folder (waiting for other publications),
    finishes or discards killed publications there, and creates `.epctx-<id>/`. Leaving
    without a commit discards everything staged, and removes the folder if it was
    created for it. At every moment, also after a kill, a reader of a context model
    finds the bytes it names beside it or through `find_interrupted_copies`.

    Args:
        folder: folder of the files; a link to a folder is resolved on entry.
        before_writing: called before each piece of a staged file; an exception stops
            the publication.
    """

    def __init__(
        self,
        folder: Path,
        *,
        before_writing: files.BeforeWriting = lambda _size: None,
    ) -> None:
        self.folder = Path(folder)
        self._before_writing = before_writing
        # None for a link.
        self._files: dict[str, files.StagedFile | None] = {}
        self._free: dict[str, bool] = {}  # name to whether a file may be replaced
        self._is_over = False

    @staticmethod
    def check_folder(folder: Path) -> None:
        """Raise unless files can be written into a folder; one that is missing will be
        created.

        Raises:
            InvalidArgument: it is not a folder, or one cannot have this name here.
            Fail: it, or the folder that it would be created in, is not writable, or the
                system has no locks for folders.
        """
        files.require_locks(folder)
        try:
            nearest = next(
                each for each in (folder, *folder.parents) if get_mode(each) is not None
            )
            reason = (
                "" if nearest.is_dir() else f"used: {str(nearest)!r} is not a folder"
            )
        except (OSError, ValueError) as error:
            nearest = folder
            reason = f"created: {error}"
        for part in folder.relative_to(nearest).parts:
            parse_name(part, nearest, folder)
        if reason:
            raise InvalidArgument(
                f"the output folder {str(folder)!r} cannot be {reason}.",
                path=folder,
                hint="Choose another output folder.",
            )
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise Fail(
                f"the output folder {str(folder)!r} cannot be written: "
                f"{str(nearest)!r} is not writable.",
                path=folder,
                hint="Change its permissions, or choose another output folder.",
            )

    def __enter__(self) -> Self:
        """Lock the folder, settle killed publications, and create the staging folder.

        Raises:
            InvalidArgument: this thread is publishing into it already.
            Fail: it is not a folder, or cannot be created, locked or written.
        """
        files.require_locks(self.folder)
        self.folder = Path(os.path.realpath(self.folder))
        with ExitStack() as stack:
            made: list[Path] = []
            stack.callback(_remove_empty, made)
            self._lock_folder(stack, made)
            settle_interrupted(self.folder)
            self._staging = self.folder / f"{STAGING_PREFIX}{secrets.token_hex(8)}"
            stack.callback(self._discard)
            with files.report_errors("creating a staging folder in it", self.folder):
                for path in (self._staging, self._staging / NEW, self._staging / OLD):
                    path.mkdir(_STAGING_MODE)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Discard what was not committed, close the files, and release the lock."""
        self._stack.close()

    def create(self, name: str, *, replace: bool = True) -> files.StagedFile:
        """Open the staged file for a final name, to write and read, unbuffered; the
        publication closes it.

        A name that is free now is claimed at the commit, and never replaces a file,
        unless it is a model's that may.

        Args:
            name: relative to the folder, with "/" between parts; sub-folders are
                created.
            replace: whether an existing file may be replaced.

        Raises:
            InvalidArgument: the name leaves the folder, or passes through a link.
            Fail: the disk is full, the folder was removed, the name was created
                already, or must not be replaced.
        """
        with files.report_errors(f"preparing {name!r}", self.folder):
            key = self._prepare(name, replace=replace)
            file = files.StagedFile(
                self._staging / NEW / key, self.folder, self._before_writing
            )

        self._stack.enter_context(file)
        self._files[key] = file
        return file

    def link(self, name: str, path: Path) -> bool:
        """Stage a hard link to a file that nobody writes to any more; return False, and
        stage nothing, where the system has none between the folders.

        Its bytes are not copied and its times stay, so it costs nothing, whatever its
        size.

        Raises:
            InvalidArgument, Fail: as for `create`.
        """
        with files.report_errors(f"preparing {name!r}", self.folder):
            key = self._prepare(name, replace=True)
            try:
                os.link(os.path.realpath(path), self._staging / NEW / key)
            except OSError as error:
                if error.errno not in files.NO_HARD_LINKS:
                    raise
                self._free.pop(key, None)
                return False

        self._files[key] = None
        return True

    def _prepare(self, name: str, *, replace: bool) -> str:
        """Check a final name and make the folders for its staged file; return it as it
        is spelt in the journal.
        """
        key = parse_name(name, self.folder, self.folder)
        if not replace:
            files.require_free(self.folder / key)
        if get_mode(self.folder / key) is None:
            self._free[key] = replace
        files.make_folders(self._staging / NEW, key, _STAGING_MODE)
        return key

    def commit(self, models: Sequence[str]) -> dict[str, os.stat_result]:
        """Bring every staged file to its final name, all or none; the publication is
        over afterwards.

        Order: staged files to disk, hard links of what will be replaced, the journal
        (from here on a kill is finished by the next publication), binaries, models. A
        name that was free is claimed in one step of the system that replaces nothing;
        if that fails, all before it is taken back.

        Args:
            models: names of context models, as they were created. All other files are
                files that models name, such as context binaries and external
                initializers.

        Returns:
            The status of each binary: any later change of the file changes it, too.
            Files on file systems with too coarse times are left out.

        Raises:
            Fail: a name that was free is taken, a name is taken by something that is
                not a file, or the system refused a step. The old state is restored, or
                reachable as after a kill if the disk refuses that as well; the hint
                then says so.
        """
        with files.report_errors("looking at what is there", self.folder):
            binaries = [name for name in self._files if name not in models]
            claimed = {
                name
                for name, replace in self._free.items()
                if not replace or name not in models
            }
            journal = {
                name: self._has_file(name, name in claimed)
                for name in (*binaries, *models)
            }

        self._is_over = True  # from here on, leaving must not discard a journal
        try:
            with files.report_errors("bringing the files to their names", self.folder):
                stamped = self._carry_out(journal)
        except BaseException as exc:
            self._take_back(journal, exc)
            raise

        self._is_over = False
        self._discard()
        states = {}
        for name in binaries:
            with suppress(OSError):
                # Renaming a file changed its status.
                now = (self.folder / name).stat()
                before = stamped[name]
                if (
                    before
                    and os.path.samestat(now, before)
                    and now.st_mtime_ns == before.st_mtime_ns
                ):
                    states[name] = now

        return states

    def _lock_folder(self, stack: ExitStack, made: list[Path]) -> None:
        """Create the folder and those above it that are missing, which are added to
        `made`, and lock it.
        """
        for attempt in range(1, _LOCK_ATTEMPTS + 1):
            with files.report_errors("creating and locking the folder", self.folder):
                missing = [
                    each
                    for each in (self.folder, *self.folder.parents)
                    if get_mode(each) is None
                ]
                for each in reversed(missing):
                    with suppress(FileExistsError):
                        each.mkdir()
                        made.append(each)
                        files.sync(each.parent)
                try:
                    stack.enter_context(files.folder_lock(self.folder))
                except FileNotFoundError:
                    # Whoever created it first may have published nothing, and removed
                    # it again. A folder like /proc takes no file at all.
                    if attempt == _LOCK_ATTEMPTS:
                        raise
                else:
                    return

    def _has_file(self, name: str, is_claimed: bool) -> bool:
        """Return whether a file has a name, which is going to be replaced.

        Raises:
            FileExistsError: it was free and is claimed.
            Fail: something that is not a file has the name.
        """
        final = self.folder / name
        if is_claimed:
            files.require_free(final)
        try:
            mode = final.stat().st_mode
        except FileNotFoundError:
            if final.is_symlink():  # it leads nowhere: nothing to keep
                final.unlink()
            return False
        if not stat.S_ISREG(mode):
            raise Fail(
                f"{final} can't be replaced: it is not a regular file.",
                path=final,
                hint="Choose another output name.",
            )
        return True

    def _carry_out(self, journal: Journal) -> dict[str, os.stat_result | None]:
        """Perform all steps; return the status of the files when they were complete."""
        folder = self.folder
        staging = self._staging
        for file in filter(None, self._files.values()):
            file.close()
        # A link shares its times with other names.
        stamped = {
            name: files.backdate(staging / NEW / name) if self._files[name] else None
            for name in journal
        }
        for name in journal:
            files.sync(staging / NEW / name)
        files.sync_folders(staging / NEW, journal)

        # What will be replaced.
        for name, existed in journal.items():
            files.make_folders(staging / OLD, name, _STAGING_MODE)
            if existed:
                files.keep_copy(folder / name, staging / OLD / name)
        files.sync_folders(staging / OLD, journal)

        files.sync(staging)
        files.sync(folder)
        write_journal(staging, journal)
        roll_forward(folder, staging, journal)
        return stamped

    def _take_back(self, journal: Journal, cause: BaseException) -> None:
        """Restore the old state after a failed commit; if the disk refuses, leave it
        for the next one.
        """
        try:
            if get_mode(self._staging / COMMITTED) is not None:
                withdraw(self.folder, self._staging, journal)
            discard(self._staging)
        except OSError as exc:
            _log.warning(
                "could not take back a failed publication into %s: %s", self.folder, exc
            )
            if isinstance(cause, EpctxError):
                cause.hint = (
                    "The folder still loads. What is left of this publication lies in "
                    "a .epctx-* folder; the next compile into the folder finishes or "
                    "discards it."
                )

    def _discard(self) -> None:
        """Remove staging, once.

        Remains do no harm, and the next publication tries again.
        """
        if self._is_over:
            return
        self._is_over = True
        try:
            discard(self._staging)
        except OSError as exc:
            _log.warning("could not remove %s: %s", self._staging, exc)


def _remove_empty(made: list[Path]) -> None:
    """Remove folders that hold nothing, once."""
    while made:
        with suppress(OSError):
            made.pop().rmdir()
