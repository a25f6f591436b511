"""Folder of a cache.

Entries are added and removed whole, and a lock keeps them while they are in use.

    <folder>/v1/<aa>/<key>/     an entry: context model, binaries, `entry.json`, `used`
                                (whose time is the last use), `hits` (their number),
                                `pushed` (when it was put into a shared cache)
    <folder>/v1/index/          content of files by their state
    <folder>/v1/locks/<key>     description of the process that compiles
    <folder>/v1/staging/        entries that are being added or removed
    <folder>/v1/secret          bytes that hide secret options in keys
    <folder>/v1/counters.jsonl  misses, and hits of removed entries

Knows neither models nor EPs. An OSError means that the cache cannot be used; callers
continue without it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_cache.content import forget_older
from epctx_cache.counters import (
    CacheStatistics,
    add_up,
    count_hit,
    count_miss,
    count_use,
    keep_hits,
    read_log,
)
from epctx_cache.lock import FileLock, key_lock
from epctx_core.errors import EpctxError
from epctx_core.ext import (
    make_private_folder,
    parse_json,
    read_small_file,
    remove_tree,
)

if TYPE_CHECKING:
    from epctx_cache.results import CollectionResult
    from epctx_cache.settings import Progress
    from epctx_core.plugin import Cancellation

RECORD = "entry.json"
CONTEXT_MODEL = "model_ctx.onnx"
_VERSION = 3
_KEY = re.compile("[0-9a-f]{64}")


def is_key(text: str) -> bool:
    """Return whether a text has the form of a key."""
    return _KEY.fullmatch(text) is not None


class CorruptEntryError(Exception):
    """An entry is damaged; the text is the reason."""


@dataclass(frozen=True, kw_only=True)
class EntryFile:
    """A file of an entry.

    Attributes:
        path: relative to the entry's folder.
        bytes: its length.
        digest: as `CompileReport.outputs` has it; of the model its SHA-256 (hex).
    """

    path: str
    bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class EntryRecord:
    """Record of an entry.

    Attributes:
        key: of the entry.
        model: name of the source when it was compiled.
        created: time in seconds since 1970.
        seconds: duration of the compile.
        partitions: number of partitions that EPs compiled.
        assignments: EP name to the number of nodes that it runs, the CPU EP last.
        node_attributes: names of the attributes that its EPContext nodes have.
        files: all but the record, the context model last.
        ingredients: of the key.
    """

    key: str
    model: str
    created: float
    seconds: float
    partitions: int
    assignments: Mapping[str, int]
    node_attributes: tuple[str, ...]
    files: tuple[EntryFile, ...]
    ingredients: Mapping[str, Any]

    @property
    def eps(self) -> tuple[str, ...]:
        """Names of the EPs that it was compiled for, in order of priority."""
        return tuple(str(provider["ep"]) for provider in self.ingredients["eps"])

    @property
    def size(self) -> int:
        """Bytes of all files but the record."""
        return sum(file.bytes for file in self.files)

    def dump(self) -> bytes:
        """Return the record as JSON, which contains its own digest."""
        fields = {"version": _VERSION, **asdict(self)}
        return json.dumps({**fields, "record": _digest(fields)}).encode()


def read_record(folder: Path) -> EntryRecord | None:
    """Return the record of the entry in a folder, None if there is no such entry.

    Raises:
        CorruptEntryError: the record is damaged.
    """
    path = folder / RECORD
    if not path.is_file():  # a pipe would block
        if not folder.exists():
            return None
        raise CorruptEntryError("it has no record")
    with _blaming_record():
        data = read_small_file(path)
    return parse_record(data, folder.name)


@contextmanager
def _blaming_record() -> Iterator[None]:
    """Attribute to a record that it cannot be read.

    Raises:
        CorruptEntryError: instead of any error that damage leads to.
    """
    try:
        yield
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise CorruptEntryError(
            f"its record is damaged ({type(error).__name__})"
        ) from error


@_blaming_record()
def parse_record(data: bytes, key: str | None = None) -> EntryRecord:
    """Return a record; with a key, of the entry of this key.

    Raises:
        CorruptEntryError: the record is damaged.
    """
    fields = parse_json(data)
    digest = fields.pop("record")
    if (
        digest != _digest(fields)
        or fields.pop("version") != _VERSION
        or key not in {None, fields["key"]}
    ):
        raise ValueError("another record")
    fields["files"] = tuple(EntryFile(**file) for file in fields["files"])
    fields["node_attributes"] = tuple(fields["node_attributes"])
    record = EntryRecord(**fields)
    if not record.files or record.dump() != data:
        raise ValueError("not as it is written")
    return record


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@contextmanager
def blaming_entry() -> Iterator[None]:
    """Attribute to an entry what the system refuses, and errors of its model.

    Raises:
        CorruptEntryError: instead of EpctxError and OSError.
    """
    try:
        yield
    except EpctxError as error:  # some are an OSError, too
        raise CorruptEntryError(error.message.rstrip(".")) from error
    except OSError as error:
        raise CorruptEntryError(
            f"it cannot be read: {error.strerror or error}"
        ) from error


@blaming_entry()
def check_head(folder: Path, record: EntryRecord) -> None:
    """Check the digest of the model and the lengths of all other files.

    The model contains no large weights. A load checks payloads against the manifest
    itself.

    Raises:
        CorruptEntryError: a file is missing or different.
    """
    for file in record.files:
        path = folder / file.path
        if path.is_symlink() or not path.is_file():
            raise CorruptEntryError(f"{file.path} is missing")
        if path.stat().st_size != file.bytes:
            raise CorruptEntryError(f"{file.path} has another length")
    model = record.files[-1]
    data = (folder / model.path).read_bytes()
    if hashlib.sha256(data).hexdigest() != model.digest:
        raise CorruptEntryError(f"{model.path} has another digest")


@blaming_entry()
def check_whole(folder: Path, record: EntryRecord, *, once: bool = False) -> None:
    """Check every byte of an entry; with `once`, of its binaries those that this
    machine has not checked before.

    Raises:
        CorruptEntryError: as `check_head`, or a byte is different.
    """
    # A hit checks the head alone; a load checks the rest.
    from epctx_core.ext import check_required_files

    check_head(folder, record)
    check_required_files(folder / record.files[-1].path, once=once)


USED = "used"
PUSHED = "pushed"
_STAMPED_EVERY = 60
"""Seconds between two stamps of an entry's use."""
_PUSHED_EVERY = 86_400
"""Seconds: a storage may remove what is old."""
_HIDING = "secret"
_SECRET_BYTES = 32
_OUTGOING = "removed-"
_log = logging.getLogger("epctx.cache")


@dataclass(frozen=True, kw_only=True)
class Lease(AbstractContextManager["Lease"]):
    """Entry in use: it is not removed to make room before this is closed.

    Attributes:
        folder: of the entry.
        record: of the entry.
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
    """Entry in the cache.

    Attributes:
        folder: of the entry; its name is the key.
        record: None if it is damaged.
        bytes: of all its files.
        last_use: time in seconds since 1970.
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
    """Entries of one cache folder.

    Args:
        folder: of the cache; made when something is stored.

    Attributes:
        index_folder: of the index of contents.
        locks_folder: of the locks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._root = folder / "v1"
        self._staging = self._root / "staging"
        self.index_folder = self._root / "index"
        self.locks_folder = self._root / "locks"
        self._counters = self._root / "counters.jsonl"

    @property
    def exists(self) -> bool:
        """True if something was stored: a folder alone is no cache yet."""
        return self._root.is_dir()

    def check_readable(self) -> None:
        """Check that the cache can be read; one that does not exist is empty.

        Raises:
            OSError: it is not a folder, or this user cannot read it.
        """
        for folder in (self.folder, self._root):
            # The dot makes the system check that files in the folder can be opened.
            with suppress(FileNotFoundError), os.scandir(f"{folder}{os.sep}."):
                pass

    def entry_folder(self, key: str) -> Path:
        """Return the folder of the entry of a key, which may not exist."""
        return self._root / key[:2] / key

    # -- reading
    # ---------------------------------------------------------------------------------

    def open(self, key: str) -> Lease | None:
        """Return an entry for use, None if there is none; `count_hit` makes it the last
        used one.

        Raises:
            CorruptEntryError: there is one, and it is damaged.
            OSError: it cannot be read.
        """
        folder = self.entry_folder(key)
        try:
            lock = FileLock.take(folder / RECORD, shared=True)
        except FileNotFoundError:
            read_record(folder)  # raises if only the record is missing
            return None
        if lock is None:  # it is being removed
            return None
        with ExitStack() as held:
            held.enter_context(lock)
            if (record := read_record(folder)) is None:
                return None
            check_head(folder, record)
            return Lease(folder=folder, record=record, held=held.pop_all())

    def entries(self) -> Iterator[Stored]:
        """Yield the entries; those that are removed meanwhile are left out."""
        for folder in sorted(self._root.glob("??/*")):
            is_place = folder == self.entry_folder(folder.name)
            if is_place and is_key(folder.name) and folder.is_dir():
                with suppress(FileNotFoundError):
                    yield _describe_entry(folder)

    # -- counting
    # --------------------------------------------------------------------------------

    def count_hit(self, lease: Lease) -> None:
        """Count a use of an entry that was not compiled for it, which is now the last
        used one; failures are ignored.
        """
        count_hit(lease.folder)
        stamp = lease.folder / USED
        if not _is_younger(stamp, _STAMPED_EVERY):
            with suppress(OSError):
                stamp.touch()

    def is_pushed(self, lease: Lease) -> bool:
        """Return whether an entry was put into a shared cache less than a day ago."""
        return _is_younger(lease.folder / PUSHED, _PUSHED_EVERY)

    def note_push(self, lease: Lease) -> None:
        """Note that an entry was put into a shared cache; failures are ignored."""
        with suppress(OSError):
            (lease.folder / PUSHED).touch()

    def count_miss(self, eps: Sequence[str]) -> None:
        """Count a compile for EPs into the cache."""
        count_miss(self._counters, eps)

    def statistics(self) -> CacheStatistics:
        """Return the counters.

        Raises:
            OSError: the cache cannot be read.
        """
        self.check_readable()
        # First, so that the hits of an entry that is removed meanwhile count once.
        uses = list(read_log(self._counters))
        damaged = []
        for entry in self.entries():
            if (record := entry.record) is None:
                damaged.append(entry.bytes)
            else:
                use = count_use(entry.folder, record.eps, record.seconds, entry.bytes)
                uses.append(use)
        return add_up(self.folder, uses, damaged)

    # -- writing
    # ---------------------------------------------------------------------------------

    def create(
        self,
        key: str,
        *,
        model: str,
        cancel: Cancellation,
        write: Callable[[Path], EntryRecord | None],
    ) -> Lease | None:
        """Return the entry of a key, written unless another process wrote it before
        this got the lock.

        Args:
            key: of the entry.
            model: name of the model, for processes that wait.
            cancel: ends a wait.
            write: writes the files into an empty folder and returns their record; None
                to store nothing.

        Returns:
            The entry; None if `write` returned None.

        Raises:
            ModelLoadCanceled: the host cancelled while another process compiled.
            OSError: the cache cannot be written.
        """
        make_private_folder(self.locks_folder)

        appeared = partial(self._open_sound, key, dropping=False)
        with key_lock(
            self.locks_folder / key, model=model, cancel=cancel, appeared=appeared
        ) as entry:
            return (
                entry or self._open_sound(key, dropping=True) or self._write(key, write)
            )

    def _open_sound(self, key: str, *, dropping: bool) -> Lease | None:
        """Return the entry if it is sound; remove a damaged one if `dropping`, which
        needs the lock.
        """
        try:
            return self.open(key)
        except CorruptEntryError as error:
            if dropping:
                _log.warning(
                    "the cache entry %s is damaged and is removed: %s.", key[:12], error
                )
                self._move_out(self.entry_folder(key))
            return None

    def _write(
        self, key: str, write: Callable[[Path], EntryRecord | None]
    ) -> Lease | None:
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
        """Move a finished entry to its folder; it is locked from the start."""
        final = self.entry_folder(record.key)
        (staging / USED).touch()
        (staging / RECORD).write_bytes(record.dump())
        for path in (staging / RECORD, staging):
            _sync(path)
        make_private_folder(final.parent)
        lock = FileLock.take(staging / RECORD, shared=True)
        if lock is None:
            raise OSError(f"{staging} is in use by another process")
        with ExitStack() as held:
            held.enter_context(lock)
            staging.rename(final)
            _sync(final.parent)
            return Lease(folder=final, record=record, held=held.pop_all())

    def read_secret(self) -> bytes:
        """Return the bytes of `secret` if they were made; nothing is written.

        Returns:
            The bytes; none if there are none, so that no entry depends on them.

        Raises:
            OSError: they cannot be read.
        """
        path = self._root / _HIDING
        data = path.read_bytes() if path.is_file() else b""
        return data if len(data) == _SECRET_BYTES else b""

    def secret(self) -> bytes:
        """Return the bytes that hide secret options in this cache's keys; made on first
        use.

        Raises:
            OSError: they can be neither read nor stored.
        """
        path = self._root / _HIDING
        for _ in range(3):
            if data := self.read_secret():
                return data
            make_private_folder(path.parent)
            path.unlink(missing_ok=True)  # damaged: entries that depend on it are lost
            draft = path.with_suffix(f".{os.urandom(4).hex()}")
            try:
                draft.touch(mode=0o600, exist_ok=False)
                draft.write_bytes(os.urandom(_SECRET_BYTES))
                with suppress(FileExistsError):
                    # The first one of several processes counts.
                    os.link(draft, path)
            finally:
                draft.unlink(missing_ok=True)
        raise OSError(f"{path} cannot be read back")

    # -- removing
    # --------------------------------------------------------------------------------

    def remove(self, key: str) -> bool:
        """Remove an entry unless it is being loaded; return whether it is gone.

        A loaded session keeps its mapped files: only their names are removed.

        Raises:
            OSError: the cache cannot be written.
        """
        folder = self.entry_folder(key)
        try:
            lock = FileLock.take(folder / RECORD)
        except OSError:
            self._move_out(folder)  # without a record to lock it cannot be loaded
            return True
        if lock is None:
            return False
        with lock:
            self._move_out(folder)
        return True

    def drop(self, lease: Lease) -> None:
        """Remove an entry that cannot be loaded, if no other one has replaced it."""
        with suppress(OSError, CorruptEntryError):
            if read_record(lease.folder) == lease.record:
                self._move_out(lease.folder)

    def _move_out(self, folder: Path) -> None:
        """Move an entry out of its folder in one step, then remove its files."""
        outgoing = self._staging / f"{_OUTGOING}{os.urandom(8).hex()}"
        make_private_folder(self._staging)
        with suppress(FileNotFoundError):
            folder.rename(outgoing)
            self._remove_outgoing(outgoing)

    def _remove_outgoing(self, outgoing: Path) -> None:
        """Remove the files of an entry that was moved out; its hits stay counted."""
        with suppress(CorruptEntryError, OSError):
            record = parse_record(read_small_file(outgoing / RECORD))
            keep_hits(self._counters, outgoing, record.eps, record.seconds)
        remove_tree(outgoing)

    def sweep(self) -> None:
        """Remove leftovers of killed processes: entries in staging without a lock, and
        unlocked lock files.
        """
        for outgoing in self._staging.glob(f"{_OUTGOING}*"):
            self._remove_outgoing(outgoing)
        for path in (*self._staging.glob("*"), *self.locks_folder.glob("*")):
            place = self.locks_folder / path.name
            if (
                is_key(path.name)
                and (lock := FileLock.take(place, create=True)) is not None
            ):
                with lock:
                    remove_tree(self._staging / path.name)
                    place.unlink(missing_ok=True)


def _is_younger(stamp: Path, seconds: float) -> bool:
    """Return whether a file is there and was touched less than some seconds ago."""
    try:
        return abs(time.time() - stamp.stat().st_mtime) < seconds
    except OSError:
        return False


def _sync(path: Path) -> None:
    """Sync a file or a folder to disk; some network file systems refuse it for a
    folder.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP} or path.is_file():
            raise
    finally:
        os.close(descriptor)


def _describe_entry(folder: Path) -> Stored:
    files = [path.lstat() for path in folder.rglob("*") if not path.is_dir()]
    try:
        record = read_record(folder)
    except CorruptEntryError:
        record = None
    stamp = folder / USED
    last_use = (stamp if stamp.exists() else folder).stat().st_mtime
    return Stored(
        folder=folder,
        record=record,
        bytes=sum(f.st_size for f in files),
        last_use=last_use,
    )


INDEX_KEPT = 90 * 24 * 3600
"""Seconds after which a record of the index is removed; then the file is read again."""


def collect(
    store: EntryStore, limit: int, *, keep: str | None = None
) -> CollectionResult:
    """Remove the least recently used entries until the others fit the limit; those
    being loaded stay.

    Args:
        store: the cache.
        limit: bytes for all entries.
        keep: key of an entry that stays.

    Raises:
        OSError: the cache cannot be written.
    """
    # A hit removes nothing.
    from epctx_cache.results import CollectionResult

    store.sweep()
    forget_older(store.index_folder, INDEX_KEPT)
    entries = sorted(store.entries(), key=lambda entry: (entry.last_use, entry.key))
    total = before = sum(entry.bytes for entry in entries)
    removed: list[str] = []
    for entry in entries:
        if total <= limit:
            break
        if entry.key != keep and store.remove(entry.key):
            removed.append(entry.key)
            total -= entry.bytes
    return CollectionResult(
        cache=str(store.folder),
        removed=removed,
        freed=before - total,
        kept=len(entries) - len(removed),
        bytes=total,
    )


def verify(
    store: EntryStore, progress: Progress = lambda *_: None
) -> Iterator[tuple[Stored, str]]:
    """Check every byte of all entries; yield each with its fault, or an empty text.

    An entry with a fault is removed and is compiled again when it is needed; the fault
    says if it could not be removed.

    Args:
        store: the cache.
        progress: called with a stage, and the numbers of entries checked and of all.

    Raises:
        OSError: the cache cannot be read.
    """
    entries = list(store.entries())
    for number, entry in enumerate(entries):
        progress("checking entries", number, len(entries))
        try:
            lease = store.open(entry.key)
            if lease is None:
                continue
            with lease:
                check_whole(lease.folder, lease.record)
        except CorruptEntryError as fault:
            try:
                end = (
                    "is removed"
                    if store.remove(entry.key)
                    else "stays, because it is being loaded"
                )
            except OSError as error:
                end = f"cannot be removed: {error.strerror or error}"
            yield entry, f"{fault}; it {end}"
        else:
            yield entry, ""


def clear(store: EntryStore) -> CollectionResult:
    """Remove every entry that is not being loaded, and the index.

    Raises:
        OSError: the cache cannot be written.
    """
    forget_older(store.index_folder, 0)
    return collect(store, -1)
