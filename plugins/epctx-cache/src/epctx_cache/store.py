"""The folder of a cache: entries come whole, go whole, and are used under a lock that keeps them there.

    <folder>/v1/<aa>/<key>/     an entry: context model, binaries, `entry.json`, `used` (whose time is the last use)
    <folder>/v1/index/          which content a file in a certain state has
    <folder>/v1/locks/<key>     who compiles
    <folder>/v1/staging/        entries on their way in and out
    <folder>/v1/secret          what hides secret options in keys

Knows neither models nor EPs. Every OSError means that the cache cannot be used; callers do without it.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_cache import record as records
from epctx_cache.lock import FileLock, key_lock
from epctx_cache.record import CorruptEntryError, EntryRecord, check_head, read_record
from epctx_core.ext import make_private_folder, remove_tree

if TYPE_CHECKING:
    from epctx_core.plugin import Cancellation

_KEY = re.compile("[0-9a-f]{64}")
_USED = "used"
_STAMPED_EVERY = 60
"""Seconds between two stamps of an entry's use."""
_SECRET_BYTES = 32
_OUTGOING = "removed-"
_log = logging.getLogger("epctx.cache")


@dataclass(frozen=True, kw_only=True)
class Lease(AbstractContextManager["Lease"]):
    """Entry in use. While it is open, nobody removes the entry to make room.

    Attributes:
        folder: the entry's.
        record: what the entry says about itself.
        held: its lock.
    """

    folder: Path
    record: EntryRecord
    held: ExitStack

    @property
    def model(self) -> Path:
        """The context model."""
        return self.folder / self.record.files[-1].path

    def __exit__(self, *_: object) -> None:
        self.held.close()


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An entry as it lies in the cache.

    Attributes:
        folder: the entry's; its name is the key.
        record: None if it is damaged.
        bytes: what all its files take.
        last_use: in seconds since 1970.
    """

    folder: Path
    record: EntryRecord | None
    bytes: int
    last_use: float

    @property
    def key(self) -> str:
        """The entry's key."""
        return self.folder.name


class EntryStore:
    """The entries of one cache folder.

    Args:
        folder: the cache's; made when something is stored.

    Attributes:
        index_folder: where the index of contents lies.
        locks_folder: where it says who compiles.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._root = folder / "v1"
        self._staging = self._root / "staging"
        self.index_folder = self._root / "index"
        self.locks_folder = self._root / "locks"

    def entry_folder(self, key: str) -> Path:
        """Return where the entry of a key lies, or would."""
        return self._root / key[:2] / key

    # -- reading ---------------------------------------------------------------------------------

    def open(self, key: str) -> Lease | None:
        """Return an entry for use, None if there is none.

        Raises:
            CorruptEntryError: there is one, and it is damaged.
            OSError: it cannot be read.
        """
        folder = self.entry_folder(key)
        try:
            lock = FileLock.take(folder / records.NAME, shared=True)
        except FileNotFoundError:
            read_record(folder)  # says so if only the record is missing
            return None
        if lock is None:  # it is being removed
            return None
        with ExitStack() as held:
            held.enter_context(lock)
            if (record := read_record(folder)) is None:
                return None
            check_head(folder, record)
            _stamp(folder)
            return Lease(folder=folder, record=record, held=held.pop_all())

    def entries(self) -> Iterator[Stored]:
        """Yield what is stored; entries that vanish meanwhile are left out."""
        for folder in sorted(self._root.glob("??/*")):
            if _KEY.fullmatch(folder.name) and folder.name[:2] == folder.parent.name and folder.is_dir():
                with suppress(FileNotFoundError):
                    yield _stored(folder)

    # -- writing ---------------------------------------------------------------------------------

    def create(
        self, key: str, *, model: str, cancel: Cancellation, write: Callable[[Path], EntryRecord | None]
    ) -> Lease | None:
        """Return the entry of a key, written if nobody else has written it until this had the lock.

        Args:
            key: the entry's.
            model: what is compiled, for those who wait.
            cancel: ends a wait.
            write: puts the files into an empty folder and returns their record; None to store nothing.

        Returns:
            The entry; None if `write` wanted nothing stored.

        Raises:
            ModelLoadCanceled: the host asked to stop while another process compiled.
            OSError: the cache cannot be written.
        """
        make_private_folder(self.locks_folder)

        def appeared() -> Lease | None:
            return self._sound(key, dropping=False)

        with key_lock(self.locks_folder / key, model=model, cancel=cancel, appeared=appeared) as found:
            return found or self._sound(key, dropping=True) or self._write(key, write)

    def _sound(self, key: str, *, dropping: bool) -> Lease | None:
        """Return the entry if it is sound; who has the lock removes one that is not."""
        try:
            return self.open(key)
        except CorruptEntryError as error:
            if dropping:
                _log.warning("the cache's entry %s is damaged and dropped: %s.", key[:12], error)
                self._move_out(self.entry_folder(key))
            return None

    def _write(self, key: str, write: Callable[[Path], EntryRecord | None]) -> Lease | None:
        staging = self._staging / key
        make_private_folder(self._staging)
        remove_tree(staging)  # of a process that was killed
        staging.mkdir(mode=0o700)
        try:
            record = write(staging)
            return None if record is None else self._publish(staging, record)
        finally:
            remove_tree(staging)

    def _publish(self, staging: Path, record: EntryRecord) -> Lease:
        """Bring a finished entry to its place, in use from its first moment on."""
        final = self.entry_folder(record.key)
        (staging / _USED).touch()
        (staging / records.NAME).write_bytes(record.dump())
        for path in (staging / records.NAME, staging):
            _sync(path)
        make_private_folder(final.parent)
        lock = FileLock.take(staging / records.NAME, shared=True)
        if lock is None:
            raise OSError(f"{staging} is in use by somebody else")
        with ExitStack() as held:
            held.enter_context(lock)
            staging.rename(final)
            _sync(final.parent)
            return Lease(folder=final, record=record, held=held.pop_all())

    def secret(self) -> bytes:
        """Return the bytes that hide secret options in this cache's keys; drawn on first use.

        Raises:
            OSError: they can be neither read nor stored.
        """
        path = self._root / "secret"
        for _ in range(3):
            if path.is_file() and len(data := path.read_bytes()) == _SECRET_BYTES:
                return data
            make_private_folder(path.parent)
            path.unlink(missing_ok=True)  # a damaged one; what was found with it cannot be found again anyway
            draft = path.with_suffix(f".{secrets.token_hex(4)}")
            try:
                draft.touch(mode=0o600, exist_ok=False)
                draft.write_bytes(secrets.token_bytes(_SECRET_BYTES))
                with suppress(
                    FileExistsError
                ):  # of several processes that do so at once, the first one counts
                    os.link(draft, path)
            finally:
                draft.unlink(missing_ok=True)
        raise OSError(f"{path} cannot be read back")

    # -- removing --------------------------------------------------------------------------------

    def remove(self, key: str) -> bool:
        """Remove an entry unless somebody is loading it; return whether it is gone now.

        A session that has loaded keeps what it mapped: a file lives until its last mapping ends, and only its
        name goes.

        Raises:
            OSError: the cache cannot be written.
        """
        folder = self.entry_folder(key)
        try:
            lock = FileLock.take(folder / records.NAME)
        except OSError:
            self._move_out(folder)  # without a record that can be locked nobody loads it
            return True
        if lock is None:
            return False
        with lock:
            self._move_out(folder)
        return True

    def drop(self, lease: Lease) -> None:
        """Remove an entry that its user found wrong, if it is still the one that lies there."""
        own = lease.folder / records.NAME
        with suppress(OSError, CorruptEntryError):
            if read_record(lease.folder) == lease.record and own.exists():
                self._move_out(lease.folder)

    def _move_out(self, folder: Path) -> None:
        """Take an entry out of its place in one step, then remove its files."""
        outgoing = self._staging / f"{_OUTGOING}{secrets.token_hex(8)}"
        make_private_folder(self._staging)
        with suppress(FileNotFoundError):
            folder.rename(outgoing)
            remove_tree(outgoing)

    def sweep(self) -> None:
        """Remove what killed processes left: entries on their way that nobody brings there, and free lock files."""
        staging, locks = self._staging, self.locks_folder
        for outgoing in staging.glob(f"{_OUTGOING}*"):
            remove_tree(outgoing)
        for key in {path.name for folder in (staging, locks) for path in folder.glob("*")}:
            if _KEY.fullmatch(key) and (lock := FileLock.take(locks / key, create=True)) is not None:
                with lock:
                    remove_tree(staging / key)
                    (locks / key).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Force a file or a folder's entries to disk; some network file systems refuse that for a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP} or path.is_file():
            raise
    finally:
        os.close(descriptor)


def _stored(folder: Path) -> Stored:
    files = [path.lstat() for path in folder.rglob("*") if not path.is_dir()]
    try:
        record = read_record(folder)
    except CorruptEntryError:
        record = None
    stamp = folder / _USED
    last_use = (stamp if stamp.exists() else folder).stat().st_mtime
    return Stored(folder=folder, record=record, bytes=sum(f.st_size for f in files), last_use=last_use)


def _stamp(folder: Path) -> None:
    """Note the use of an entry, seldom enough to cost a hit nothing; a cache that cannot be written is used as it is."""
    stamp = folder / _USED
    with suppress(OSError):
        if not stamp.exists() or abs(time.time() - stamp.stat().st_mtime) > _STAMPED_EVERY:
            stamp.touch()
