"""The calls that only POSIX has: locks on folders and files, folders forced to disk, guarded opens.

Everything else in this package is portable; a port replaces this module.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidArgument, NoSuchFile
from epctx_core.publish.failures import failure

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("epctx.publish")
# Some network file systems can't sync a folder and say so with one of these.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP})
# The kernel or the file system does not know a rename that does not replace.
_NO_SUCH_RENAME = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
# Who holds what in this process: (process, device, inode) -> thread. flock alone would let a thread
# that enters one folder twice wait for itself for ever.
_holders: dict[tuple[int, int, int], int] = {}


def sync_file(path: Path) -> None:
    """Force a regular file to disk; a link in its place is refused (OSError)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file, or one that is there anew, and force it to disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to disk."""
    descriptor = _open_folder(folder)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def rename_unless_taken(source: Path, target: Path) -> None:
    """Rename a file, in one step where the system can, unless something has the name.

    For file systems without hard links. Where the kernel cannot either, this looks before it renames:
    the folder's lock still keeps other publications out, and only a stranger could slip in between.

    Raises:
        FileExistsError: something has the name.
        OSError: it cannot be renamed.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        here, flag = -100, 1  # AT_FDCWD, RENAME_NOREPLACE
        if rename(here, os.fsencode(source), here, os.fsencode(target), flag) == 0:
            return
        code = ctypes.get_errno()
        if code not in _NO_SUCH_RENAME:
            raise OSError(code, os.strerror(code), str(source), None, str(target))
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    source.replace(target)


def read_regular(path: Path, limit: int) -> bytes | None:
    """Return a regular file's content, or None where something else lies there or it exceeds `limit` bytes.

    Raises:
        OSError: the file is regular but can't be read.
    """
    try:
        # Non-blocking: a pipe put here by someone must not make us wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        if exc.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}:
            return None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


class FolderLock:
    """An exclusive lock on a folder, held through the folder's own descriptor: no lock file is left.

    The system drops it when the process dies. Processes and threads exclude each other.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self._key: tuple[int, int, int] | None = None

    def acquire(self) -> None:
        """Wait for the lock and take it.

        Raises:
            NoSuchFile: the folder does not exist.
            InvalidArgument: it is no folder, or this thread holds the lock already.
            Fail: the folder can't be opened, or its file system has no locks.
        """
        try:
            while not self._acquire_once():
                pass
        except FileNotFoundError as exc:
            raise NoSuchFile(
                f"The folder {self._folder} does not exist.", path=self._folder, hint="Create it first."
            ) from exc
        except NotADirectoryError as exc:
            raise InvalidArgument(
                f"{self._folder} is not a folder.", path=self._folder, hint="Name a folder to publish into."
            ) from exc
        except OSError as exc:
            raise failure("locking the folder", self._folder, exc) from exc

    def release(self) -> None:
        """Give the lock back; nothing happens if it is not held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if self._key is not None:
            _holders.pop(self._key, None)
        with suppress(OSError):  # closing gives it back, too
            # Said aloud, since a process forked meanwhile would otherwise keep the lock alive.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def _acquire_once(self) -> bool:
        """Lock whatever lies under the folder's name; False if that was swapped while we waited."""
        descriptor = _open_folder(self._folder)
        try:
            status = os.fstat(descriptor)
            key = (os.getpid(), status.st_dev, status.st_ino)
            self._refuse_own(key)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.info("waiting for another publication into %s", self._folder)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            current = os.path.samestat(status, self._folder.stat())
        except BaseException:
            os.close(descriptor)
            raise
        if not current:
            os.close(descriptor)
            return False
        self._descriptor, self._key = descriptor, key
        _holders[key] = threading.get_ident()
        return True

    def _refuse_own(self, key: tuple[int, int, int]) -> None:
        if _holders.get(key) == threading.get_ident():
            raise InvalidArgument(
                f"This thread is already publishing into {self._folder}.",
                path=self._folder,
                hint="Finish the first publication before the next one into the same folder.",
            )


def _open_folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
