"""Steps of a publication that the operating system performs, and typed errors for its
refusals; independent of the journal.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import shutil
import stat
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from epctx_core.context.paths import get_mode
from epctx_core.errors import EpctxError, Fail, InvalidArgument
from epctx_core.file_names import STAGING_PREFIX, list_parents
from epctx_core.graph.mapping import MappedFile, copy_range

try:
    import fcntl
except ImportError:  # Windows: see `require_locks`, which comes before all that uses it
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from _typeshed import ReadableBuffer

_log = logging.getLogger("epctx.publish")

_AT_ONCE = 64 << 20
"""Bytes that are written or copied between two checks for a cancellation."""

BeforeWriting: TypeAlias = "Callable[[int], None]"
"""Called with the number of bytes of a piece before it is written; its exceptions
pass.
"""

_TICK_NS = 20_000_000
"""Nanoseconds, more than a tick of any system's clock for files, which is at most a
hundredth of a second.
"""

NO_HARD_LINKS = frozenset(
    # EPERM: FAT and others; also Linux's protected_hardlinks for another user's file.
    {
        errno.EPERM,
        errno.EACCES,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
        errno.EMLINK,
        errno.EXDEV,
    }
)
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP})
"""Errors of network file systems that cannot sync a folder."""

LOCK = f"{STAGING_PREFIX}lock"
"""Name of the file that a publication locks in its folder."""
WARNED_AFTER = 5.0
"""Seconds after which a waiting publication names the process that it waits for."""

_holders: dict[tuple[int, int, int], int] = {}
"""(process, device, inode) of a lock file to the thread that holds the lock."""


@contextmanager
def report_errors(doing: str, folder: Path) -> Iterator[None]:
    """Turn each OSError of the block into a `Fail`.

    Args:
        doing: description of the block, such as "renaming the files"; it completes the
            sentence.
        folder: the folder that is being published into.
    """
    try:
        yield
    except EpctxError:
        raise  # NoSuchFile is an OSError too, and already says what happened
    except OSError as error:
        file = error.filename2 or error.filename
        staged = str(folder / STAGING_PREFIX)
        if (
            isinstance(error, FileExistsError)
            and file
            and not os.fsdecode(file).startswith(staged)
        ):
            raise Fail(
                f"The output {file} exists already and was not replaced.",
                path=Path(os.fsdecode(file)),
                hint="Remove it, choose another output, or allow it to be replaced.",
            ) from error
        remedy = "Check the disk and whether the folder exists and takes new files"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            remedy = "Free some space on that disk"
        elif error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            remedy = "Make the folder writable for this user"
        raise Fail(
            f"Publishing into {folder} failed while {doing}: "
            f"{error.strerror or error}{f' ({file})' if file else ''}.",
            path=folder,
            hint=f"{remedy}, or choose another output folder, then try again.",
        ) from error


def require_locks(folder: Path) -> None:
    """Raise Fail where the system has no lock that a folder can be published under.

    Windows opens no folder, so it cannot force its entries to disk. All other calls
    that only POSIX systems have in this module come after this check.
    """
    if fcntl is None:
        raise Fail(
            f"nothing can be published into {str(folder)!r}: this system has no locks "
            "(flock), which keep two compiles apart.",
            path=folder,
            hint=(
                "Compile to bytes with embedded payloads (compile_to_bytes, "
                "embed_compiled_data_into_model=True), or on Linux or macOS; the files "
                "load here."
            ),
        )


@contextmanager
def folder_lock(folder: Path, *, waits: bool = True) -> Iterator[None]:
    """Hold the exclusive lock of a folder: that on a file in it, which is removed with
    the lock.

    The system drops it when the process dies, so a file that is left is
    no lock. Processes and threads exclude each other. Nothing is read from the file or
    written to it, whoever made it.

    Args:
        folder: the folder.
        waits: whether to wait for a lock that another holds.

    Raises:
        BlockingIOError: another holds the lock, which is not waited for.
        InvalidArgument: this thread holds the lock already.
        OSError: the folder is missing, is not a folder, takes no new file, or its file
            system has no locks; or the lock file is a link or another user's own.
    """
    path = folder / LOCK
    locked = False
    while not locked:
        descriptor = _open_lock(path)
        try:
            status = os.fstat(descriptor)
            key = (os.getpid(), status.st_dev, status.st_ino)
            # flock alone would let a thread that enters one folder twice wait for
            # itself for ever.
            if _holders.get(key) == threading.get_ident():
                raise InvalidArgument(
                    f"This thread is already publishing into {folder}.",
                    path=folder,
                    hint=(
                        "Finish the first publication before the next one into the "
                        "same folder."
                    ),
                )
            if waits:
                _wait_for_lock(descriptor, status.st_ino, folder)
            else:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who held it has removed it, and another may have got the name.
            with suppress(FileNotFoundError):
                locked = os.path.samestat(status, path.lstat())
            if locked:
                _holders[key] = threading.get_ident()
                try:
                    yield
                finally:
                    _holders.pop(key, None)
                    with suppress(OSError):  # in /tmp it may be another user's
                        path.unlink()
                    with suppress(OSError):  # closing gives it back, too
                        # Explicitly, since a process forked meanwhile would otherwise
                        # keep the lock alive.
                        fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


def _open_lock(path: Path) -> int:
    """Return a descriptor of a lock file. A new one can be opened by those who may
    write into its folder: others could stop every publication there.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    # Asked first: an error behind the open would leave the descriptor to nobody.
    status = path.parent.stat()
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, flags)
        # Another publication may have made it meanwhile.
        with suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            break

    writers = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    with suppress(OSError):
        if not writers & stat.S_IWOTH:
            os.fchown(descriptor, -1, status.st_gid)
        os.fchmod(descriptor, 0o600 | writers | writers << 1)
    return descriptor


def _wait_for_lock(descriptor: int, inode: int, folder: Path) -> None:
    """Lock a file, and warn if that takes long."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return

    _log.info("waiting for another publication into %s", folder)
    warning = threading.Timer(WARNED_AFTER, _warn_of_holder, (inode, folder))
    warning.daemon = True
    warning.start()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        warning.cancel()


def _warn_of_holder(inode: int, folder: Path) -> None:
    # Only Linux lists locks, and only those of processes that this one can see. Who
    # holds one comes before those that wait for it.
    found = None
    with suppress(OSError):
        text = Path("/proc/locks").read_text("ascii")
        found = re.search(rf" FLOCK .* (\d+) \S+:{inode} ", text)
    holder = f"process {found[1]}" if found else "another process"
    _log.warning("waiting for %s, which publishes into %s", holder, folder)


class StagedFile(io.FileIO):
    """New file in staging, unbuffered, to write and read.

    `write` takes everything or raises `Fail`.

    Args:
        path: path of the new file.
        folder: folder of the publication, for messages.
        before_writing: called before each piece.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        before_writing: BeforeWriting,
    ) -> None:
        super().__init__(
            path,
            "xb+",
            opener=lambda path, flags: os.open(path, flags, 0o666),
        )
        self._folder = folder
        self._before_writing = before_writing

    def write(self, buffer: ReadableBuffer, /) -> int:
        """Append or overwrite at the position; return the number of bytes, which is all
        of them.

        The system takes at most 2 GiB in one call, and less when the disk fills up.

        Raises:
            Fail: the disk is full or broken.
        """
        view = memoryview(buffer)
        if not view.nbytes:
            return 0
        left = view.cast("B")
        with report_errors("writing a file", self._folder):
            while left:
                piece = left[:_AT_ONCE]
                self._before_writing(piece.nbytes)
                left = left[os.write(self.fileno(), piece) :]
        return view.nbytes

    def copy_mapped(self, mapped: MappedFile, offset: int, length: int) -> None:
        """Append or overwrite bytes of a mapped file at the position, without bringing
        them into memory.

        Raises:
            Fail: the disk is full or broken.
            InvalidGraph: the mapped file was cut or written to.
        """
        position = self.tell()
        with report_errors("writing a file", self._folder):
            for done in range(0, length, _AT_ONCE):
                step = min(_AT_ONCE, length - done)
                self._before_writing(step)
                try:
                    copy_range(
                        mapped.descriptor,
                        offset + done,
                        self.fileno(),
                        position + done,
                        step,
                    )
                except OSError:
                    mapped.check_unchanged()
                    raise
        self.seek(position + length)


def backdate(path: Path) -> os.stat_result | None:
    """Give a complete file a modification time that no later write can give it; return
    its status.

    The system's clock for files ticks every few milliseconds: a write in the tick of
    another leaves the same time. So the new time lies before this tick. None where the
    file system does not keep such a time exactly.
    """
    time_ns = time.time_ns() - _TICK_NS
    try:
        os.utime(path, ns=(path.lstat().st_atime_ns, time_ns), follow_symlinks=False)
        status = path.lstat()
    except (OSError, NotImplementedError):
        return None
    return status if status.st_mtime_ns == time_ns else None


def keep_copy(final: Path, kept: Path) -> None:
    """Make `kept` hold the bytes of `final`: by a hard link, or by a copy where links
    are not possible.

    For a link, the file that it leads to is kept: a relative link would lead elsewhere
    from staging.
    """
    content = Path(os.path.realpath(final))
    try:
        os.link(content, kept)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        kept.touch(0o600, exist_ok=False)  # it may be a file that only this user reads
        shutil.copyfile(content, kept)
        shutil.copymode(content, kept)
        sync(kept)


def claim(staged: Path, final: Path) -> None:
    """Give a staged file its final name unless something has it, in one step where the
    system has hard links.

    Where it has none, only a stranger could come between look and rename: the folder's
    lock keeps publications out.

    Raises:
        FileExistsError: something has it.
        OSError: the system refused it.
    """
    try:
        os.link(staged, final)
    except FileExistsError:
        # The staged name of a link stays until staging is removed, so a repeated step
        # finds its own.
        if not is_same_file(staged, final):
            raise
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        require_free(final)
        staged.replace(final)


def require_free(path: Path) -> None:
    """Raise FileExistsError if something has a name."""
    if get_mode(path) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether two names are hard links of one file; links are not followed,
    missing files are not the same.
    """
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except FileNotFoundError:
        return False


def make_folders(root: Path, name: str, mode: int = 0o777) -> None:
    """Create the sub-folders of `root` that a name lies in."""
    for folder in list_parents(name):
        with suppress(FileExistsError):
            (root / folder).mkdir(mode)


def sync(path: Path) -> None:
    """Force a file, or the entries of a folder, to disk; a link instead is refused
    (OSError).
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def sync_folders(root: Path, names: Iterable[str]) -> None:
    """Force to disk the folders that names lie in, `root` last; missing ones are
    skipped.
    """
    for folder in dict.fromkeys(
        folder for name in names for folder in list_parents(name)
    ):
        if get_mode(root / folder) is not None:
            sync(root / folder)
    sync(root)
