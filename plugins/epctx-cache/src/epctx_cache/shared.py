"""Cache that several machines share, behind the folder of each: any storage that fsspec
knows by its address.

    <address>/v1/entries/<aa>/<key>.json    record of an entry, and digests of its blobs
    <address>/v1/blobs/<aa>/<sha256>        a file, by its content

An entry is put there blobs first, so that a record names only what is there. What comes
from there is taken for hostile, and nothing that happens there fails a load: a storage
that cannot be used, or does not answer, is left alone for a while.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from epctx_cache.foreign import (
    MAX_RECORD,
    PULLED,
    check_foreign_files,
    parse_foreign_record,
)
from epctx_cache.store import (
    CorruptEntryError,
    EntryFile,
    EntryRecord,
    Lease,
    is_key,
)
from epctx_core.errors import one_line
from epctx_core.ext import remove_tree

if TYPE_CHECKING:
    from epctx_cache.settings import Progress
    from epctx_core.plugin import Cancellation

T = TypeVar("T")

STALLED_AFTER: Final = 30.0
"""Seconds in which a storage must transfer `LEAST_BYTES`, or it is given up."""
LEAST_BYTES: Final = 1_000_000
LEFT_ALONE: Final = 60.0
"""Seconds in which a storage that failed is not asked again by this process."""
_FORMAT: Final = {"format": "epctx-shared-cache", "version": 1}
_CHUNK: Final = 1 << 20
_BLOCK: Final = 5 << 20
"""Bytes that a storage sends at a time: the least part of an upload to S3. Its default
is ten times as many, in which nothing would seem to happen for long.
"""
_PAUSE: Final = 0.1
_log = logging.getLogger("epctx.cache")
_failed: dict[str, float] = {}


def hide_user(text: str) -> str:
    """Return an address, or a text with addresses, without names and passwords of
    users.
    """
    # To the last @: a password may have any letters.
    return re.sub(r"(?<=://).*@", "***@", text)


class _GivenUpError(Exception):
    """The host does not wait for the storage any more."""


class _LocalError(Exception):
    """A file of this machine cannot be read or written; the cause says why."""


class SharedCache:
    """Cache that several machines share.

    Args:
        address: as fsspec takes it, such as `s3://bucket/folder`.
        cancel: ends every wait.
        progress: called with the stage `pull` or `push`, and bytes.
    """

    def __init__(
        self, address: str, *, cancel: Cancellation, progress: Progress | None
    ) -> None:
        self._address = address
        self._cancel = cancel
        self._progress = progress
        self._is_rewriting = False

    def __str__(self) -> str:
        return f"the shared cache {hide_user(self._address)}"

    def has(self, key: str) -> bool | None:
        """Return whether there is an entry of a key; None if the storage cannot be
        asked, and a warning says why.

        Raises:
            ModelLoadCanceled: the host cancelled meanwhile.
        """
        return self._try(
            f"entry {key[:12]} cannot be looked for",
            "pull",
            lambda _: bool(self._storage.exists(self._entry_path(key))),
        )

    def pull(self, key: str, folder: Path, limit: int) -> EntryRecord | None:
        """Put the files of an entry into a folder, and return its record.

        Args:
            key: of the entry.
            folder: an empty folder, which stays empty without an entry.
            limit: bytes that an entry may have.

        Returns:
            None if there is no such entry, or none that can be had; a warning says why.

        Raises:
            ModelLoadCanceled: the host cancelled meanwhile.
            OSError: the folder cannot be used.
        """
        inside = folder / PULLED
        inside.mkdir()
        try:
            record = self._try(
                f"entry {key[:12]} cannot be read",
                "pull",
                lambda transfer: self._pull(key, inside, limit, transfer),
            )
            if record is not None:
                for path in inside.iterdir():
                    path.rename(folder / path.name)
        finally:
            remove_tree(inside)
        return record

    def push(self, lease: Lease, *, rewriting: bool = False) -> bool:
        """Put an entry there; a warning says why if it cannot.

        Args:
            lease: the entry.
            rewriting: true to write files that seem to be there, too. So does an entry
                whose pull found damage.

        Returns:
            True if it is there.

        Raises:
            ModelLoadCanceled: the host cancelled meanwhile.
        """
        self._is_rewriting |= rewriting
        key = lease.record.key[:12]
        try:
            return bool(
                self._try(
                    f"entry {key} cannot be written",
                    "push",
                    lambda transfer: self._push(lease, transfer),
                )
            )
        except OSError as error:
            _log.warning("entry %s is not put into %s: %s.", key, self, error)
            return False

    # -- one transfer
    # ---------------------------------------------------------------------------------

    def _pull(
        self, key: str, folder: Path, limit: int, transfer: _Transfer
    ) -> EntryRecord | None:
        try:
            with self._storage.open(self._entry_path(key), "rb") as file:
                data = file.read(MAX_RECORD + 1)
        except (FileNotFoundError, KeyError):  # the second of archives in old fsspec
            return None
        try:
            record, digests = _parse_entry(data, key, limit)
            transfer.total = record.size
            for file, digest in zip(record.files, digests, strict=True):
                self._read_blob(digest, file, folder, transfer)
            with transfer.local():
                check_foreign_files(folder, record)
        except CorruptEntryError as fault:
            # It is written anew when it was compiled.
            self._is_rewriting = True
            _log.warning("entry %s of %s is refused: %s.", key[:12], self, fault)
            return None
        _log.info("pulled %s from %s: %s", one_line(record.model), self, key)
        return record

    def _push(self, lease: Lease, transfer: _Transfer) -> bool:
        record = lease.record
        transfer.total = record.size
        digests = []
        for file in record.files:
            path = lease.folder / file.path
            with transfer.local(), path.open("rb") as source:
                digest = hashlib.file_digest(source, "sha256").hexdigest()
            self._write_blob(digest, file.bytes, path, transfer)
            digests.append(digest)
        entry = {**_FORMAT, "blobs": digests, "record": record.dump().decode()}
        with self._writing(self._entry_path(record.key)) as target:
            target.write(json.dumps(entry).encode())
        _log.info("pushed %s to %s: %s", one_line(record.model), self, record.key)
        return True

    def _read_blob(
        self, digest: str, file: EntryFile, folder: Path, transfer: _Transfer
    ) -> None:
        """Copy a blob whose length and digest are known into a new file of a folder.

        Raises:
            CorruptEntryError: it is missing or different.
        """
        try:
            source = self._storage.open(self._locate("blobs", digest), "rb")
        except FileNotFoundError:
            raise CorruptEntryError(f"blob {digest[:12]} is missing") from None

        # Whoever gave this up has removed the folder.
        transfer.advance(0)
        with source, _creating(folder, file.path, transfer) as target:
            seen = hashlib.sha256()
            left = file.bytes
            # One byte more than expected shows that it is longer.
            while chunk := source.read(min(_CHUNK, left + 1)):
                transfer.advance(len(chunk))
                left -= len(chunk)
                if left < 0:
                    break
                seen.update(chunk)
                with transfer.local():
                    target.write(chunk)
        if left:
            raise CorruptEntryError(f"blob {digest[:12]} has another length")
        if seen.hexdigest() != digest:
            raise CorruptEntryError(f"blob {digest[:12]} has another digest")

    def _write_blob(
        self, digest: str, size: int, path: Path, transfer: _Transfer
    ) -> None:
        blob = self._locate("blobs", digest)
        try:
            # One that was refused may have the right length.
            is_there = not self._is_rewriting and self._storage.size(blob) == size
        except FileNotFoundError:
            is_there = False
        if is_there:
            transfer.advance(size)
            return
        with self._writing(blob) as target:
            for chunk in _read_local(path, transfer):
                target.write(chunk)
                transfer.advance(len(chunk))

    # -- the storage
    # ---------------------------------------------------------------------------------

    @cached_property
    def _located(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        storage, root = url_to_fs(self._address)
        return storage, root.rstrip("/")

    @property
    def _storage(self) -> Any:
        return self._located[0]

    def _locate(self, folder: str, name: str) -> str:
        return f"{self._located[1]}/v1/{folder}/{name[:2]}/{name}"

    def _entry_path(self, key: str) -> str:
        return self._locate("entries", f"{key}.json")

    @contextmanager
    def _writing(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file to write, which is there only when it is whole.

        An object store shows an object once it is closed. Where there are folders, a
        file would be seen while it grows, and a link in its place would be followed:
        there another file takes its name at the end.
        """
        rename = self._rename
        if rename is None:
            with self._create(path) as target:
                yield target
            return

        part = f"{path}.{secrets.token_hex(8)}.part"
        try:
            with self._create(part) as target:
                yield target
            rename(part, path)
        except BaseException:
            with suppress(Exception):
                self._storage.rm_file(part)
            raise

    @cached_property
    def _rename(self) -> Callable[[str, str], None] | None:
        """Function that renames a file of the storage over another one; None if it has
        no folders, and would copy it.
        """
        from fsspec import AbstractFileSystem
        from fsspec.implementations.local import LocalFileSystem

        if isinstance(self._storage, LocalFileSystem):
            return os.replace  # some versions of fsspec copy
        if type(self._storage).mv is AbstractFileSystem.mv:
            return None
        rename: Callable[[str, str], None] = self._storage.mv
        return rename

    def _create(self, path: str) -> Any:
        """Return a file to write; its folder is made where the storage has folders."""
        try:
            return self._storage.open(path, "wb", block_size=_BLOCK)
        except FileNotFoundError:
            self._storage.makedirs(path.rpartition("/")[0], exist_ok=True)
            return self._storage.open(path, "wb", block_size=_BLOCK)

    # -- whatever happens
    # ---------------------------------------------------------------------------------

    def _try(
        self, failure: str, stage: str, work: Callable[[_Transfer], T]
    ) -> T | None:
        """Return the result of a transfer; None if the storage cannot be used.

        Raises:
            ModelLoadCanceled: the host cancelled meanwhile.
            OSError: a file of this machine cannot be used.
        """
        if time.monotonic() < _failed.get(self._address, 0):
            return None
        transfer = _Transfer(work)
        for done, total in transfer.watch(self._cancel):
            if self._progress is not None and total:
                self._progress(stage, done, total)
        if transfer.error is None:
            result: T = transfer.result
            return result
        if isinstance(transfer.error, _LocalError):
            raise transfer.error.__cause__ or transfer.error

        _failed[self._address] = time.monotonic() + LEFT_ALONE
        _log.warning(
            "%s in %s: %s. It is left alone for %d seconds.",
            failure,
            self,
            _describe(transfer.error),
            LEFT_ALONE,
        )
        return None


class _Transfer:
    """Work with a storage in a thread of its own, so that one that does not answer can
    be given up.
    """

    def __init__(self, work: Callable[[_Transfer], Any]) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self.total = 0
        self._done = 0
        self._work = work
        self._is_local = False
        self._is_given_up = False
        self._ended = threading.Event()

    def advance(self, count: int) -> None:
        """Note bytes that were transferred; called by the work.

        Raises:
            _GivenUpError: nobody waits for more.
        """
        if self._is_given_up:
            raise _GivenUpError
        self._done += count

    @contextmanager
    def local(self) -> Iterator[None]:
        """Work with files of this machine: no storage is to blame for what that takes,
        or for errors.
        """
        self._is_local = True
        try:
            yield
        except OSError as error:
            raise _LocalError from error
        finally:
            self._is_local = False

    def watch(self, cancel: Cancellation) -> Iterator[tuple[int, int]]:
        """Do the work; yield the bytes that are transferred and all, now and then and
        at the end.

        Raises:
            ModelLoadCanceled: the host cancelled meanwhile.
        """
        # A daemon: a storage that hangs must not keep the process.
        threading.Thread(target=self._run, name="epctx-shared", daemon=True).start()
        begun, before = time.monotonic(), 0
        try:
            while not self._ended.wait(_PAUSE):
                cancel.raise_if_requested()
                # One that drips would hold a load for as long as it likes.
                if self._is_local or self._done - before >= LEAST_BYTES:
                    begun, before = time.monotonic(), self._done
                elif time.monotonic() - begun > STALLED_AFTER:
                    self.error = TimeoutError(
                        f"it transferred {self._done - before:,} bytes in "
                        f"{STALLED_AFTER:g} seconds"
                    )
                    return
                yield self._done, self.total
        finally:
            self._is_given_up = True
        if self.error is None:
            yield self.total, self.total

    def _run(self) -> None:
        try:
            self.result = self._work(self)
        except Exception as error:  # noqa: BLE001 - a storage raises errors of its own
            self.error = self.error or error
        finally:
            self._ended.set()


@contextmanager
def _creating(folder: Path, name: str, transfer: _Transfer) -> Iterator[IO[bytes]]:
    """Open a new file in a folder to write; it is on the disk at the end."""
    path = folder / name
    with transfer.local():
        # The folder itself is not made: it is removed when a transfer is given up.
        for parent in reversed(Path(name).parents[:-1]):
            (folder / parent).mkdir(mode=0o700, exist_ok=True)
        target = path.open("xb")
    with target:
        yield target
        with transfer.local():
            target.flush()
            os.fsync(target.fileno())


def _read_local(path: Path, transfer: _Transfer) -> Iterator[bytes]:
    with transfer.local():
        source = path.open("rb")
    with source:
        while True:
            with transfer.local():
                chunk = source.read(_CHUNK)
            if not chunk:
                return
            yield chunk


def _parse_entry(data: bytes, key: str, limit: int) -> tuple[EntryRecord, list[str]]:
    """Return the record of an entry, and the digest of each of its files.

    Raises:
        CorruptEntryError: it is not what `push` writes for this key.
    """
    try:
        fields = json.loads(data) if len(data) <= MAX_RECORD else {}
        digests = fields.pop("blobs")
        text = fields.pop("record").encode()
        is_sound = fields == _FORMAT and all(map(is_key, digests))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        raise CorruptEntryError("it is not of the form of an entry")
    record = parse_foreign_record(text, key, limit)
    if len(digests) != len(record.files):
        raise CorruptEntryError("it has another number of blobs than files")
    return record, digests


def _describe(error: Exception) -> str:
    if isinstance(error, ImportError) and error.name in {None, "fsspec"}:
        named = "pip install 'epctx-cache[shared]'"
        return f"{error}; {named}" if error.name else f"{error}"
    words = " ".join(hide_user(str(error)).split()) or type(error).__name__
    return f"{type(error).__name__}: {words}"[:300]
