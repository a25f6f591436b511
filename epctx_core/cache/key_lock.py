"""One compile a key: the lock, who holds it, and the wait of everybody else.

Knows a file to lock and a question to ask meanwhile; knows no entries.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.publish import posix

if TYPE_CHECKING:
    from epctx_core.options import CancellationFlag

TOLD_AFTER = 5.0
"""Seconds after which a waiting process says whom it waits for."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25
_MAX_BYTES = 64 << 10
_log = logging.getLogger("epctx.cache")


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who compiles; times in seconds since 1970.

    Attributes:
        pid: of the process.
        host: its machine.
        started: when the process began, 0 where the system does not tell.
        since: when it took the lock.
        model: what it compiles.
    """

    pid: int
    host: str
    started: float
    since: float
    model: str

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, which compiles {self.model} since {since}"


def read_holder(path: Path) -> Holder | None:
    """Return who wrote into a lock file last; None where that cannot be read."""
    try:
        fields = json.loads(posix.read_regular(path, _MAX_BYTES) or b"")
        return Holder(
            pid=int(fields["pid"]),
            host=str(fields["host"]),
            started=float(fields["started"]),
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
            lock = posix.FileLock.take(path, shared=True)
            if lock is not None:
                lock.release()
            elif (holder := read_holder(path)) is not None:
                found.append(holder)
    return found


@contextmanager
def key_lock(
    path: Path, *, model: str, cancel: CancellationFlag, is_done: Callable[[], bool] = lambda: False
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
        holder = Holder(
            pid=os.getpid(), host=platform.node(), started=_started(), since=time.time(), model=model
        )
        lock.write(json.dumps(asdict(holder)).encode())
        yield True
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()


def _wait(path: Path, cancel: CancellationFlag, is_done: Callable[[], bool]) -> posix.FileLock | None:
    begun, told, pause = time.monotonic(), False, _FIRST_PAUSE
    while (lock := posix.FileLock.take(path, create=True)) is None:
        if is_done():
            return None
        if not told and time.monotonic() - begun > TOLD_AFTER:
            told = True
            _log.warning("waiting for %s.", read_holder(path) or "another process that compiles the same")
        cancel.wait(pause)
        cancel.raise_if_requested()
        pause = min(2 * pause, _LONGEST_PAUSE)
    return lock


def _started() -> float:
    """Return when this process began, as Linux tells it."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
