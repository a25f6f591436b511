"""Locks on files: of an entry in use, and of a key that is compiled, with its holder and the wait of everybody else.

The calls that only POSIX systems have are all here; a port replaces this module. Knows no entries.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, Self

TOLD_AFTER = 5.0
"""Seconds after which a waiting process says whom it waits for."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25
_log = logging.getLogger("epctx.cache")


class Cancellation(Protocol):
    """Wish of a host to stop, as session options hold it."""

    def wait(self, seconds: float) -> bool:
        """Wait for the wish, at most so long."""

    def raise_if_requested(self) -> None:
        """Raise ModelLoadCanceled if the host wants to stop."""


class FileLock:
    """A lock on an open file, taken without waiting.

    The system drops it when the process dies, so a file that is left is no lock. Each taker opens the file
    itself; threads of one process therefore exclude each other as processes do.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, *, shared: bool = False, create: bool = False) -> Self | None:
        """Return the lock on the file that lies under a name; None if it is taken or the name means another now.

        Args:
            path: a regular file.
            shared: whether others may share it, too.
            create: whether a missing file is made.

        Raises:
            OSError: there is no such file, it can't be opened, or its file system has no locks.
        """
        flags = (os.O_RDONLY if shared else os.O_RDWR) | (os.O_CREAT if create else 0)
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return cls(descriptor)
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def write(self, data: bytes) -> None:
        """Replace what the file says, for those who wait."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)

    def release(self) -> None:
        """Give the lock back."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a process forked meanwhile would otherwise keep it
        finally:
            os.close(self._descriptor)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Process that compiles.

    Attributes:
        pid: of the process.
        host: its machine.
        since: when it took the lock, in seconds since 1970.
        model: what it compiles.
    """

    pid: int
    host: str
    since: float
    model: str

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, which compiles {self.model} since {since}"


def read_holder(path: Path) -> Holder | None:
    """Return who wrote into a lock file last; None where that cannot be read."""
    try:
        fields = json.loads(path.read_bytes())
        return Holder(
            pid=int(fields["pid"]),
            host=str(fields["host"]),
            since=float(fields["since"]),
            model=str(fields["model"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def holders(folder: Path) -> list[Holder]:
    """Return who compiles now, of all the lock files in a folder; one that nobody has locked is left over."""
    found = []
    for path in sorted(folder.glob("*")):
        with suppress(OSError):
            lock = FileLock.take(path, shared=True)
            if lock is not None:
                lock.release()
            elif (holder := read_holder(path)) is not None:
                found.append(holder)
    return found


@contextmanager
def key_lock(
    path: Path, *, model: str, cancel: Cancellation, is_done: Callable[[], bool] = lambda: False
) -> Iterator[bool]:
    """Hold the lock of a key; give False without it once `is_done` says that there is nothing left to do.

    The lock is the system's and ends with the process that holds it. The file that it is on is removed with
    it; one that a killed process left is locked by nobody, and just taken.

    Args:
        path: the file.
        model: what is compiled, for those who wait.
        cancel: ends a wait.
        is_done: asked while somebody else holds the lock.

    Raises:
        ModelLoadCanceled: the host asked to stop while this waited.
        OSError: the lock file cannot be made, or its file system has no locks.
    """
    lock = _wait(path, cancel, is_done)
    if lock is None:
        yield False
        return
    try:
        holder = Holder(pid=os.getpid(), host=platform.node(), since=time.time(), model=model)
        lock.write(json.dumps(asdict(holder)).encode())
        yield True
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()


def _wait(path: Path, cancel: Cancellation, is_done: Callable[[], bool]) -> FileLock | None:
    begun, told, pause = time.monotonic(), False, _FIRST_PAUSE
    while (lock := FileLock.take(path, create=True)) is None:
        if is_done():
            return None
        if not told and time.monotonic() - begun > TOLD_AFTER:
            told = True
            _log.warning("waiting for %s.", read_holder(path) or "another process that compiles the same")
        cancel.wait(pause)
        cancel.raise_if_requested()
        pause = min(2 * pause, _LONGEST_PAUSE)
    return lock
