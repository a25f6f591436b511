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
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from epctx_core.plugin import Cancellation

T = TypeVar("T")

TOLD_AFTER = 5.0
"""Seconds after which a waiting process says whom it waits for."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25
_log = logging.getLogger("epctx.cache")


class FileLock(AbstractContextManager["FileLock"]):
    """Lock on an open file, taken without waiting; as a context manager it is given back at the end.

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
        with ExitStack() as stack, suppress(BlockingIOError, FileNotFoundError):
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                stack.pop_all()
                return cls(descriptor)
        return None

    def write(self, data: bytes) -> None:
        """Replace what the file says, for those who wait."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)

    def __exit__(self, *_: object) -> None:
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
        return Holder(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def holders(folder: Path) -> list[Holder]:
    """Return who compiles now, of all the lock files in a folder; one that nobody has locked is left over."""
    found = []
    for path in sorted(folder.glob("*")):
        with suppress(OSError), FileLock.take(path, shared=True) or nullcontext() as free:
            if free is None and (holder := read_holder(path)) is not None:
                found.append(holder)
    return found


@contextmanager
def key_lock(
    path: Path, *, model: str, cancel: Cancellation, appeared: Callable[[], T | None] = lambda: None
) -> Iterator[T | None]:
    """Hold the lock of a key, and give None; or give without it what has appeared while somebody else held it.

    The lock is the system's and ends with the process that holds it. The file that it is on is removed with
    it; one that a killed process left is locked by nobody, and just taken.

    Args:
        path: the file.
        model: what is compiled, for those who wait.
        cancel: ends a wait.
        appeared: asked while somebody else holds the lock.

    Raises:
        ModelLoadCanceled: the host asked to stop while this waited.
        OSError: the lock file cannot be made, or its file system has no locks.
    """
    begun, told, pause = time.monotonic(), False, _FIRST_PAUSE
    while (lock := FileLock.take(path, create=True)) is None:
        if (found := appeared()) is not None:
            yield found
            return
        if not told and time.monotonic() - begun > TOLD_AFTER:
            told = True
            _log.warning("waiting for %s.", read_holder(path) or "another process that compiles the same")
        cancel.wait(pause)
        cancel.raise_if_requested()
        pause = min(2 * pause, _LONGEST_PAUSE)
    with lock:
        try:
            holder = Holder(pid=os.getpid(), host=platform.node(), since=time.time(), model=model)
            lock.write(json.dumps(asdict(holder)).encode())
            yield None
        finally:
            with suppress(OSError):
                path.unlink()
