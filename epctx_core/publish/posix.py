"""The calls that only POSIX has: the lock on a folder, forcing to disk, a rename that does not replace.

Everything else in this package is portable; a port replaces this module.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from epctx_core.errors import InvalidArgument

_log = logging.getLogger("epctx.publish")
# Some network file systems can't sync a folder and say so with one of these.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP})
# The kernel or the file system does not know a rename that does not replace.
_NO_SUCH_RENAME = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
# Who holds what in this process: (process, device, inode) -> thread. flock alone would let a thread
# that enters one folder twice wait for itself for ever.
_holders: dict[tuple[int, int, int], int] = {}


def sync(path: Path) -> None:
    """Force a file, or the entries of a folder, to disk; a link in its place is refused (OSError)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno not in _NO_FOLDER_SYNC or not path.is_dir():
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


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the exclusive lock of a folder, through the folder's own descriptor: no lock file is left.

    Waits for it. The system drops it when the process dies. Processes and threads exclude each other.

    Raises:
        InvalidArgument: this thread holds the lock already.
        OSError: the folder is missing, is none, can't be opened, or its file system has no locks.
    """
    locked = False
    while not locked:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            key = (os.getpid(), status.st_dev, status.st_ino)
            _refuse_own(key, folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.info("waiting for another publication into %s", folder)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # What lies under the name may have been swapped while we waited.
            locked = os.path.samestat(status, folder.stat())
            if locked:
                _holders[key] = threading.get_ident()
                try:
                    yield
                finally:
                    _holders.pop(key, None)
                    with suppress(OSError):  # closing gives it back, too
                        # Said aloud, since a process forked meanwhile would otherwise keep the lock alive.
                        fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


def _refuse_own(key: tuple[int, int, int], folder: Path) -> None:
    if _holders.get(key) == threading.get_ident():
        raise InvalidArgument(
            f"This thread is already publishing into {folder}.",
            path=folder,
            hint="Finish the first publication before the next one into the same folder.",
        )
