"""One publication: files are staged in the folder itself, then brought to their names all or none.

Owns the order of the steps up to the commit point; `journal` owns those after it. Knows nothing of
what the files mean.
"""

from __future__ import annotations

import io
import logging
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from epctx_core.context.unfinished import (
    JOURNAL,
    NEW,
    OLD,
    STAGING_PREFIX,
    canonical,
    folders_of,
    link_free,
    mode_of,
)
from epctx_core.errors import EpctxError, Fail, InvalidArgument, NoSuchFile
from epctx_core.graph.mapping import copy_range
from epctx_core.publish import journal as journals
from epctx_core.publish import posix
from epctx_core.publish.failures import DISK_FULL, STRANDED_HINT, failure, output_exists, reported
from epctx_core.publish.journal import (
    Journal,
    Step,
    discard,
    keep,
    make_folders,
    make_missing,
    roll_forward,
    settle_all,
    stamp,
    sync_folders,
    withdraw,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import TracebackType

    from _typeshed import ReadableBuffer

    from epctx_core.graph.mapping import MappedFile

_log = logging.getLogger("epctx.publish")

_AT_ONCE = 64 << 20
"""Bytes that are written or copied between two questions whether to go on."""


class StagedFile(io.FileIO):
    """A new file in staging, unbuffered, to write and read. `write` takes everything or raises `Fail`.

    Args:
        path: of the new file.
        folder: where it is to be published, for messages.
        before_writing: called before each piece; what it raises passes.
    """

    def __init__(self, path: Path, folder: Path, before_writing: Callable[[], None] = lambda: None) -> None:
        super().__init__(path, "xb+", opener=_create)
        self._folder = folder
        self._before_writing = before_writing

    def write(self, buffer: ReadableBuffer, /) -> int:
        """Append or overwrite at the position; return the number of bytes, which is all of them.

        The system takes at most 2 GiB in one call, and less when the disk fills up.

        Raises:
            Fail: the disk is full or broken.
        """
        view = memoryview(buffer)
        if not view.nbytes:
            return 0
        view, done = view.cast("B"), 0
        try:
            while done < len(view):
                self._before_writing()
                done += os.write(self.fileno(), view[done : done + _AT_ONCE])
        except OSError as exc:
            raise failure("writing a file", self._folder, exc) from exc
        return done

    def copy_mapped(self, mapped: MappedFile, offset: int, length: int) -> None:
        """Append or overwrite bytes of a mapped file at the position, without bringing them into memory.

        Raises:
            Fail: the disk is full or broken.
            InvalidGraph: the mapped file was cut or written to.
        """
        position = self.tell()
        for done in range(0, length, _AT_ONCE):
            self._before_writing()
            step = min(_AT_ONCE, length - done)
            try:
                copy_range(mapped.descriptor, offset + done, self.fileno(), position + done, step)
            except OSError as exc:
                mapped.check_unchanged()
                raise failure("writing a file", self._folder, exc) from exc
        self.seek(position + length)


def _create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o666)


class Publication:
    """Context manager: one atomic publication into one folder, which is created if it is missing.

    Entering takes an exclusive lock on the folder (waiting for other publications), finishes or
    discards what a killed publication left there, and creates `.epctx-<id>/`. Leaving without a
    commit discards everything staged, and removes the folder if it was created for it. At every
    moment, also after a kill, a reader of a context
    model finds the bytes it names beside it or through `interrupted_copies`.

    Args:
        folder: where the files shall appear; a link to a folder is resolved on entry.
        before_writing: called before each piece that is written into a staged file, so that whoever
            waits for a large one can stop it by an exception.
    """

    def __init__(self, folder: Path, *, before_writing: Callable[[], None] = lambda: None) -> None:
        self.folder = Path(folder)
        self._before_writing = before_writing
        self._lock: posix.FolderLock | None = None
        self._staging: Path | None = None
        self._files: dict[str, StagedFile] = {}
        self._free: dict[str, bool] = {}
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        """Lock the folder, settle what was left there, and create the staging folder.

        Raises:
            InvalidArgument: it is no folder, or this thread is publishing into it already.
            Fail: the folder can't be created, locked or written.
        """
        self.folder = Path(os.path.realpath(self.folder))
        lock = posix.FolderLock(self.folder)
        try:
            while True:
                with reported("creating the folder", self.folder):
                    make_missing(self.folder, self._made)
                # Whoever created it first may have published nothing, and removed it again.
                with suppress(NoSuchFile):
                    lock.acquire()
                    break
            settle_all(self.folder)
            self._staging = _make_staging(self.folder)
        except BaseException:
            self._remove_made()
            lock.release()
            raise
        self._lock = lock
        return self

    def _remove_made(self) -> None:
        """Remove the folders that were created for this publication and hold nothing."""
        for folder in reversed(self._made):
            with suppress(OSError):
                folder.rmdir()
        self._made = []

    def create(self, name: str) -> BinaryIO:
        """Open the staged file for a final name, to write and read, unbuffered; the publication closes it.

        A name at which nothing lies when it is created is claimed at the commit, never replaced, unless it is a model's.

        Args:
            name: relative to the folder, with "/" between parts; sub-folders are created.

        Raises:
            InvalidArgument: the name leaves the folder, passes through a link, or was created already.
            Fail: the disk is full or the folder was removed.
        """
        staging, key = self._open_staging(), canonical(name)
        with reported(f"preparing {name!r}", self.folder):
            if link_free(self.folder, key) is None:
                raise InvalidArgument(
                    f"The file {name!r} can't be published: a folder on its way is a link or no folder.",
                    path=self.folder,
                    hint="Use sub-folders that really lie in the output folder.",
                )
            if link_free(staging / NEW, key) is None:
                raise _taken(name)
            make_folders(staging / NEW, key)
            free = mode_of(self.folder / key) is None
        try:
            file = StagedFile(staging / NEW / key, self.folder, self._before_writing)
        except FileExistsError as exc:
            raise _taken(name) from exc
        except OSError as exc:
            raise failure(f"creating {name!r}", self.folder, exc) from exc
        self._files[key], self._free[key] = file, free
        return file

    def commit(self, models: Sequence[str], new: Collection[str] = ()) -> dict[str, os.stat_result]:
        """Bring every staged file to its final name, all or none; the publication is over afterwards.

        Order: staged files to disk, hard links of what will be replaced, the journal (from here on a
        kill is finished by the next publication), binaries, models. A name that has to be free is claimed
        in one step of the system that replaces nothing; if that fails, all before it is taken back.

        Args:
            models: names of context models; replaced if they exist. All other files are what models depend on, such as
                context binaries and external initializers: one that was there when it was created is replaced; one that
                was not must still be free.
            new: those of the models that must not exist: refused before anything else changes, too.

        Returns:
            What the system says of each binary now: any later change of the file changes that, too. Without those
            of file systems that count time too coarsely for it.

        Raises:
            Fail: a name that must be free is taken, one is taken by something that is no file, or the
                system refused a step. The old state is there, or reachable as after a kill if the disk
                refuses that as well; the hint then says so.
        """
        staging = self._open_staging()
        last = [canonical(name) for name in models]
        names = [*(name for name in self._files if name not in last), *last]
        with reported("looking at what is there", self.folder):
            (staging / NEW).stat()  # a folder that vanished is told before anything is done
            kept = {canonical(name) for name in new}
            steps = [self._step(n, model=n in last, new=n in kept) for n in names]
            subs = dict.fromkeys(sub for name in names for sub in folders_of(name))
            folders = [sub for sub in subs if mode_of(self.folder / sub) is None]
        journal = Journal(steps=tuple(steps), folders=tuple(folders))
        self._staging = None  # whatever interrupts us now, leaving must not discard a journal
        try:
            stamped = self._carry_out(staging, journal)
        except BaseException as exc:
            self._take_back(staging, journal, exc)
            raise
        self._clear(staging)
        return self._states(stamped)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard what was not committed, close the files, and give the lock back.

        Raises:
            Fail: the block ended because a disk is full.
        """
        try:
            for file in self._files.values():
                with suppress(OSError):  # committed files are closed already; these go away
                    file.close()
            if self._staging is not None:
                self._clear(self._staging)
        finally:
            self._files, self._free, self._staging = {}, {}, None
            self._remove_made()
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.release()
        # A caller that writes through a descriptor or a path meets the full disk itself.
        if isinstance(exc, OSError) and not isinstance(exc, EpctxError) and exc.errno in DISK_FULL:
            raise failure("preparing the files", self.folder, exc) from exc

    def _open_staging(self) -> Path:
        if self._staging is None:
            raise InvalidArgument(
                "This publication is not open.",
                path=self.folder,
                hint="Use it in a with statement, and commit once.",
            )
        return self._staging

    def _step(self, name: str, *, model: bool, new: bool) -> Step:
        """Plan one file.

        Raises:
            Fail: the name is taken by a file that must stay, or by something that is no file.
        """
        final = self.folder / name
        claim = new if model else self._free[name]
        if claim and mode_of(final) is not None:
            raise output_exists(final)
        try:
            mode = final.stat().st_mode
        except FileNotFoundError:
            return Step(name=name, model=model, existed=False, claim=claim)  # also a link that leads nowhere
        if not stat.S_ISREG(mode):
            raise Fail(
                f"{final} can't be replaced: it is not a regular file.",
                path=final,
                hint="Choose another output name.",
            )
        return Step(name=name, model=model, existed=True, claim=False)

    def _carry_out(self, staging: Path, journal: Journal) -> dict[str, os.stat_result]:
        """Do all steps; return what the system said of the binaries when they were complete."""
        names = [step.name for step in journal.steps]
        with reported("writing the files to disk", self.folder):
            for file in self._files.values():
                file.close()
            stamped = {
                step.name: stamp(staging / NEW / step.name) for step in journal.steps if not step.model
            }
            for name in names:
                posix.sync_file(staging / NEW / name)
            sync_folders(staging / NEW, names)
        with reported("keeping what will be replaced", self.folder):
            for step in journal.steps:
                make_folders(staging / OLD, step.name)
                if step.existed:
                    keep(self.folder / step.name, staging / OLD / step.name)
            sync_folders(staging / OLD, names)
        with reported("writing the journal", self.folder):
            posix.sync_folder(staging)
            posix.sync_folder(self.folder)
            journals.write(staging, journal)
        with reported("renaming the files", self.folder):
            roll_forward(self.folder, staging, journal)
        return {name: status for name, status in stamped.items() if status is not None}

    def _states(self, stamped: dict[str, os.stat_result]) -> dict[str, os.stat_result]:
        """Return what the system says of binaries by their final names; renaming them changed it."""
        states = {}
        for name, status in stamped.items():
            with suppress(OSError):
                now = (self.folder / name).stat()
                if os.path.samestat(now, status) and now.st_mtime_ns == status.st_mtime_ns:
                    states[name] = now
        return states

    def _take_back(self, staging: Path, journal: Journal, cause: BaseException) -> None:
        """Restore the old state after a failed commit; if the disk refuses, leave it for the next one."""
        try:
            if mode_of(staging / JOURNAL) is not None:
                withdraw(self.folder, staging, journal)
            discard(staging)
        except OSError as exc:
            _log.warning("could not take back a failed publication into %s: %s", self.folder, exc)
            if isinstance(cause, EpctxError):
                cause.hint = STRANDED_HINT

    def _clear(self, staging: Path) -> None:
        """Remove staging. What can't be removed does no harm, and the next publication tries again."""
        try:
            discard(staging)
        except OSError as exc:
            _log.warning("could not remove %s: %s", staging, exc)


def _make_staging(folder: Path) -> Path:
    staging = folder / f"{STAGING_PREFIX}{secrets.token_hex(8)}"
    with reported("creating a staging folder in it", folder):
        try:
            for path in (staging, staging / NEW, staging / OLD):
                path.mkdir()
        except BaseException:
            with suppress(OSError):
                discard(staging)
            raise
    return staging


def _taken(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"The name {name!r} is already taken in this publication, by a file or as a folder."
    )
