"""Files and folders of a publication: written, kept, claimed, forced to disk, removed; knows no journal."""

from __future__ import annotations

import errno
import io
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.unfinished import folders_of, mode_of
from epctx_core.graph.mapping import MappedFile, copy_range
from epctx_core.publish import posix
from epctx_core.publish.failures import NameTakenError, failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from _typeshed import ReadableBuffer


_AT_ONCE = 64 << 20
"""Bytes that are written or copied between two questions whether to go on."""

_TICK_NS = 20_000_000
"""Nanoseconds that no system's clock for files lags behind: a tick of it is at most a hundredth of a second."""

_NO_HARD_LINKS = frozenset(
    # EPERM: FAT and others; also Linux's protected_hardlinks for another user's file.
    {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
)


class StagedFile(io.FileIO):
    """A new file in staging, unbuffered, to write and read. `write` takes everything or raises `Fail`.

    Args:
        path: of the new file.
        folder: where it is to be published, for messages.
        before_writing: called before each piece; what it raises passes.
    """

    def __init__(self, path: Path, folder: Path, before_writing: Callable[[], None] = lambda: None) -> None:
        super().__init__(path, "xb+", opener=lambda path, flags: os.open(path, flags | os.O_CLOEXEC, 0o666))
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


def stamp(path: Path) -> os.stat_result | None:
    """Give a complete file a time of change that no later write can give it; return what the system says then.

    The system's clock for files ticks every few milliseconds: a write in the tick of another leaves the same time. So
    the time given lies before this tick. None where the file system does not keep such a time exactly.
    """
    time_ns = time.time_ns() - _TICK_NS
    try:
        os.utime(path, ns=(path.lstat().st_atime_ns, time_ns), follow_symlinks=False)
        status = path.lstat()
    except (OSError, NotImplementedError):
        return None
    return status if status.st_mtime_ns == time_ns else None


def keep(final: Path, kept: Path) -> None:
    """Make `kept` hold the bytes of `final`: by a hard link, or by a copy where links are not possible.

    For a link, the file that it leads to is kept: a relative link would lead elsewhere from staging.
    """
    content = Path(os.path.realpath(final))
    try:
        os.link(content, kept)
    except OSError as exc:
        if exc.errno not in _NO_HARD_LINKS:
            raise
        shutil.copyfile(content, kept)
        shutil.copymode(content, kept)
        posix.sync(kept)


def claim(staged: Path, final: Path) -> None:
    """Give a staged file its final name unless something has it, in one step of the system.

    Raises:
        NameTakenError: something has it.
        OSError: the system refused it.
    """
    try:
        try:
            os.link(staged, final)
        except OSError as exc:
            if exc.errno not in _NO_HARD_LINKS:
                raise
            posix.rename_unless_taken(staged, final)
    except FileExistsError as exc:
        # The staged name of a link stays until staging is removed, so a repeated step finds its own.
        if not is_same_file(staged, final):
            raise NameTakenError.at(final) from exc


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two names are hard links of one file; links are not followed, missing ones are not the same."""
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except FileNotFoundError:
        return False


def make_folders(root: Path, name: str) -> None:
    """Create the sub-folders of `root` that a name lies in."""
    for folder in folders_of(name):
        with suppress(FileExistsError):
            (root / folder).mkdir()


def sync_folders(root: Path, names: Iterable[str]) -> None:
    """Force to disk the folders that names lie in, `root` last; missing ones are skipped."""
    for folder in dict.fromkeys(folder for name in names for folder in folders_of(name)):
        if mode_of(root / folder) is not None:
            posix.sync(root / folder)
    posix.sync(root)


def remove_tree(folder: Path) -> None:
    """Remove a folder and all below it, without following links; a missing one is fine, and so are others who remove it, too.

    Not `shutil.rmtree`: that recurses, so a deeply nested folder would end in a RecursionError.
    """
    pending, seen = [folder], []
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
