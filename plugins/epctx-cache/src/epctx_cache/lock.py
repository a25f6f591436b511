"""Locks on files: of an entry in use, and of a key that is compiled, for which other
processes wait.

All calls that only POSIX systems have are here; a port replaces this module. Knows no
entries.
"""

from __future__ import annotations

import errno
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from epctx_core.errors import one_line
from epctx_core.ext import read_small_file

try:
    import fcntl
except ImportError:  # Windows: `FileLock.take`, which comes first, says so
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from epctx_core.plugin import Cancellation

T = TypeVar("T")

LOGGED_AFTER = 5.0
"""Seconds after which a waiting process logs which process it waits for."""
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.25
_log = logging.getLogger("epctx.cache")


class FileLock(AbstractContextManager["FileLock"]):
    """Lock on an open file, taken without waiting; a context manager that releases it.

    The system releases it when the process dies, so a file that is left is not a lock.
    Each lock opens the file itself, so threads of one process exclude each other as
    processes do.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(
        cls, path: Path, *, shared: bool = False, create: bool = False
    ) -> Self | None:
        """Return the lock on the file at a path; None if it is taken, or another file
        is there now.

        Args:
            path: a regular file.
            shared: True for a lock that others can share.
            create: True to create a missing file.

        Raises:
            OSError: there is no such file, it can't be opened, or the system or its
                file system has no locks.
        """
        if fcntl is None:
            raise OSError(errno.ENOLCK, "this system has no locks on files (flock)")
        flags = (os.O_RDONLY if shared else os.O_RDWR) | (os.O_CREAT if create else 0)
        descriptor = os.open(
            path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
        )
        with ExitStack() as stack, suppress(BlockingIOError, FileNotFoundError):
            stack.callback(os.close, descriptor)
            fcntl.flock(
                descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
            )
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                stack.pop_all()
                return cls(descriptor)
        return None

    def write(self, data: bytes) -> None:
        """Replace the content of the file, which waiting processes read."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)

    def __exit__(self, *_: object) -> None:
        try:
            fcntl.flock(
                self._descriptor, fcntl.LOCK_UN
            )  # else a process forked meanwhile would keep it
        finally:
            os.close(self._descriptor)


def read_holder(path: Path) -> str:
    """Return the text in a lock file, which describes the process that compiles."""
    with suppress(OSError):
        if text := read_small_file(path).decode("utf-8", "replace"):
            return one_line(text)
    return "another process that compiles the same model"


def holders(folder: Path) -> list[str]:
    """Return descriptions of the processes that compile now, from all lock files in a
    folder that are locked.
    """
    descriptions = []
    for path in sorted(folder.glob("*")):
        with (
            suppress(OSError),
            FileLock.take(path, shared=True) or nullcontext() as free,
        ):
            if free is None:
                descriptions.append(read_holder(path))
    return descriptions


@contextmanager
def key_lock(
    path: Path,
    *,
    model: str,
    cancel: Cancellation,
    appeared: Callable[[], T | None] = lambda: None,
) -> Iterator[T | None]:
    """Hold the lock of a key and give None; or give, without the lock, the result of
    `appeared` once it has one.

    The lock is the system's and ends with its process. Its file is removed with it; one
    that a killed process left is not locked, and is taken.

    Args:
        path: the file.
        model: the name of the model that is compiled, for the processes that wait.
        cancel: ends a wait.
        appeared: called while another process holds the lock.

    Raises:
        ModelLoadCanceled: the host cancelled while this waited.
        OSError: the lock file cannot be made, or its file system has no locks.
    """
    begun = time.monotonic()
    logged = False
    pause = _FIRST_PAUSE
    while (lock := FileLock.take(path, create=True)) is None:
        if (result := appeared()) is not None:
            yield result
            return
        if not logged and time.monotonic() - begun > LOGGED_AFTER:
            logged = True
            _log.warning("waiting for %s.", read_holder(path))
        cancel.wait(pause)
        cancel.raise_if_requested()
        pause = min(2 * pause, _LONGEST_PAUSE)
    with lock:
        try:
            since = time.strftime("%H:%M:%S")
            text = (
                f"process {os.getpid()} on {platform.node()}, which compiles {model} "
                f"since {since}"
            )
            lock.write(text.encode("utf-8", "replace"))
            yield None
        finally:
            with suppress(OSError):
                path.unlink()
