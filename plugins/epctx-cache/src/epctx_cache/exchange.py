"""Entries in one tar file, to take them to another machine.

    <key>/entry.json    the record of an entry, as in the cache
    <key>/<file>        each file of the record, in its order
    index.json          the keys; the last member, so that a missing end is noticed

An archive is taken for hostile: its members are read where they lie, their names never
lead out of a new folder, and an entry is published only when every byte was checked.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TypeAlias

from epctx_cache.foreign import (
    MAX_RECORD,
    check_foreign_files,
    is_inside,
    parse_foreign_record,
)
from epctx_cache.results import ExchangedEntry
from epctx_cache.store import (
    RECORD,
    CorruptEntryError,
    EntryRecord,
    EntryStore,
    check_whole,
    is_key,
)
from epctx_core import SessionOptions
from epctx_core.errors import Fail, InvalidArgument, NoSuchFile

INDEX = "index.json"
MAX_MEMBERS = 100_000
"""Members of an archive that are read; tarfile keeps all of them in memory."""
_MAX_HEADER = 1 << 20
"""Bytes of an extended header, which tarfile reads at once."""
_CHUNK = 1 << 20
_SUFFIX = ".tar"
_DIGITS = re.compile("[0-9a-f]{4,64}")
"""The name of an entry, which a user may take for the first argument."""
_FORMAT = {"format": "epctx-cache", "version": 1}

Progress: TypeAlias = Callable[[str, int, int], None]
_DAMAGED = (
    tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError,
)  # fmt: skip
"""Errors that tarfile raises for bytes that are not a tar file."""


class _BoundedFile(io.FileIO):
    """File of which tarfile reads no more at once than a header may have, and whose
    errors of position are those of a damaged archive.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= max(_MAX_HEADER, _CHUNK):
            raise tarfile.ReadError("a header is too large")
        return super().read(size) or b""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        try:
            return super().seek(offset, whence)
        except (OSError, OverflowError) as error:
            raise tarfile.ReadError("a header leads out of the file") from error


# -- export
# ------------------------------------------------------------------------------------


def export_entries(
    store: EntryStore, file: Path, keys_of_entries: Sequence[str], progress: Progress
) -> list[ExchangedEntry]:
    """Write entries into a tar file, in the order of their keys; the same entries give
    the same bytes.

    A damaged entry is left out. The file appears when it is complete, and not at all
    without an entry.

    Args:
        store: the cache.
        file: the tar file; an earlier archive is replaced.
        keys_of_entries: of the entries.
        progress: called with (stage, done, total), in entries.

    Raises:
        InvalidArgument: the name of the file does not end in `.tar`.
        Fail: another file than an archive has this name.
        OSError: the file cannot be written.
    """
    _check_replaceable(file)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    results: list[ExchangedEntry] = []
    try:
        with tarfile.open(
            draft, "x", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="strict"
        ) as tar:
            for number, key in enumerate(sorted(keys_of_entries)):
                progress("exporting entries", number, len(keys_of_entries))
                results.append(_export(store, key, tar))
            exported = [result.key for result in results if not result.fault]
            index = json.dumps({**_FORMAT, "entries": exported}).encode()
            tar.addfile(_member(INDEX, len(index)), io.BytesIO(index))
        if exported:
            draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return results


def _check_replaceable(file: Path) -> None:
    """Check that a file may be written: a mistaken argument must not cost a model.

    Raises:
        InvalidArgument: its name does not end in `.tar`.
        Fail: there is a file that is no archive, or only the beginning of one.
        OSError: it cannot be read.
    """
    if file.suffix.lower() != _SUFFIX:
        keys_first = f" {file}" if _DIGITS.fullmatch(str(file)) else ""
        raise InvalidArgument(
            f"the name of the file to write, {str(file)!r}, does not end in {_SUFFIX}.",
            path=file,
            hint=f"Call `epctx cache export FILE{_SUFFIX}{keys_first}`.",
        )
    if os.path.lexists(file) and not _is_archive(file):
        raise Fail(
            f"{str(file)!r} exists and is not an archive of `epctx cache export`.",
            path=file,
            hint="Remove it, or name another file.",
        )


def _is_archive(file: Path) -> bool:
    """Return whether a file is a whole archive."""
    if not file.is_file():  # a pipe would block
        return False
    with (
        suppress(*_DAMAGED),
        _BoundedFile(file) as data,
        tarfile.open(fileobj=data, mode="r:", encoding="utf-8") as tar,
    ):
        members, _ = _list_members(tar)
        last = members[-1] if members else None
        return (
            last is not None
            and last.name == INDEX
            and _read_index(tar, last) is not None
        )
    return False


def _export(store: EntryStore, key: str, tar: tarfile.TarFile) -> ExchangedEntry:
    try:
        lease = store.open(key)
        if lease is None:
            return ExchangedEntry(key=key, fault="it was removed meanwhile")
        with lease:
            check_whole(lease.folder, lease.record)
            record = lease.record.dump()
            tar.addfile(_member(f"{key}/{RECORD}", len(record)), io.BytesIO(record))
            for file in lease.record.files:
                with (lease.folder / file.path).open("rb") as data:
                    tar.addfile(_member(f"{key}/{file.path}", file.bytes), data)
            return ExchangedEntry(key=key, bytes=lease.record.size, fault=None)
    except CorruptEntryError as fault:
        return ExchangedEntry(key=key, fault=str(fault))


def _member(name: str, size: int) -> tarfile.TarInfo:
    """Return the header of a file without times and owners, which differ by machine."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member


# -- import
# ------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Packed:
    """Entry in an archive.

    Attributes:
        members: by their path in the entry.
        fault: the first one found; empty without any.
    """

    members: dict[str, tarfile.TarInfo] = field(default_factory=dict)
    fault: str = ""


@dataclass(kw_only=True)
class _Archive:
    """Members of an archive, read and judged by their headers.

    Attributes:
        tar: the open file.
        entries: by key, in the order of the file.
        faults: of what belongs to no entry.
    """

    tar: tarfile.TarFile
    entries: dict[str, _Packed] = field(default_factory=dict)
    faults: list[ExchangedEntry] = field(default_factory=list)


def import_entries(
    store: EntryStore, file: Path, limit: int, progress: Progress
) -> Iterator[ExchangedEntry]:
    """Publish the entries of a tar file that `export_entries` wrote; yield the result
    for each, and a fault for each member that belongs to none.

    A bad entry stops no other one, and nothing of it is published.

    Args:
        store: the cache.
        file: the tar file.
        limit: bytes that an entry may have.
        progress: called with (stage, done, total), in entries.

    Raises:
        NoSuchFile: there is no such file.
        InvalidArgument: it is not such a tar file, or has too many members.
        OSError: it cannot be read, or the cache cannot be written.
    """
    with _open_archive(file) as archive:
        yield from archive.faults
        for number, (key, packed) in enumerate(archive.entries.items()):
            progress("importing entries", number, len(archive.entries))
            yield _import(store, archive.tar, key, packed, limit)


@contextmanager
def _open_archive(file: Path) -> Iterator[_Archive]:
    try:
        if not file.is_file():
            raise NoSuchFile(f"there is no file {str(file)!r}.", path=file)
        opened = _BoundedFile(file)
    except PermissionError as error:
        why = error.strerror
        raise Fail(f"{str(file)!r} cannot be read: {why}.", path=file) from error
    with opened as data:
        try:
            tar = tarfile.open(fileobj=data, mode="r:", encoding="utf-8")  # noqa: SIM115 - closed below
        except _DAMAGED as error:
            raise _is_not_archive(file, str(error)) from error
        with tar:
            archive = _Archive(tar=tar)
            _scan(archive, file)
            yield archive


def _is_not_archive(file: Path, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"{str(file)!r} is not an uncompressed tar file of entries: {why}.",
        path=file,
        hint="Write one by `epctx cache export FILE.tar`.",
    )


def _scan(archive: _Archive, file: Path) -> None:
    """Sort the members of an archive by entry, and judge their headers."""
    members, end = _list_members(archive.tar)
    if len(members) > MAX_MEMBERS:
        raise InvalidArgument(
            f"{str(file)!r} has more than {MAX_MEMBERS:,} members.", path=file
        )

    total = file.stat().st_size
    index: tarfile.TarInfo | None = None
    for member in members:
        if member.name == INDEX and index is None:
            index = member
        else:
            _sort_in(archive, member, total)

    listed = None if index is None else _read_index(archive.tar, index)
    if listed is None:
        if not archive.entries:
            raise _is_not_archive(file, f"it has no {INDEX}")
        archive.faults.append(ExchangedEntry(key=file.name, fault=end))
    for key in listed or ():
        if key not in archive.entries:
            archive.entries[key] = _Packed(fault="the archive does not have its files")


def _list_members(tar: tarfile.TarFile) -> tuple[list[tarfile.TarInfo], str]:
    """Return the members, and the reason why there is no index if it is not among them;
    one member more than are allowed ends the list.
    """
    members: list[tarfile.TarInfo] = []
    try:
        for member in islice(tar, MAX_MEMBERS + 1):
            members.append(member)  # noqa: PERF402 - those before an error count
    except _DAMAGED as error:
        # The members before the damage are whole.
        return members, f"it is damaged behind {len(members)} members: {error}"
    return members, "its end is missing"


def _sort_in(archive: _Archive, member: tarfile.TarInfo, total: int) -> None:
    """Add a member to its entry, or to the faults."""
    key, _, path = member.name.partition("/")
    if not is_key(key):
        fault = "it belongs to no entry"
        archive.faults.append(ExchangedEntry(key=member.name, fault=fault))
        return
    fault = _find_fault(member, path, total)
    packed = archive.entries.setdefault(key, _Packed())
    if not fault and path in packed.members:
        fault = "is there twice"
    packed.fault = packed.fault or (fault and f"{path!r:.80} {fault}")
    packed.members[path] = member


def _find_fault(member: tarfile.TarInfo, path: str, total: int) -> str:
    """Return the reason why a member cannot be a file of an entry; empty if it can."""
    if not member.isreg() or member.sparse is not None:
        return "is not a regular file"
    if not is_inside(path):
        return "does not have the name of a file in an entry"
    if not 0 <= member.size <= total - member.offset_data:
        return "is cut off"
    # Python before 3.11.4 lacks the filter; it forbids less than the lines above.
    data_filter = getattr(tarfile, "data_filter", None)
    if data_filter is not None:
        try:
            data_filter(member, os.curdir)
        except tarfile.TarError:
            # What it says names a folder that is never written.
            return "is not what a file of an entry may be"
    return ""


def _read_index(tar: tarfile.TarFile, member: tarfile.TarInfo) -> list[str] | None:
    """Return the keys of an index; None if it is not one of this version."""
    try:
        fields = json.loads(_read(tar, member))
        entries = fields.pop("entries")
        is_sound = fields == _FORMAT and all(map(is_key, entries))
        return list(entries) if is_sound else None
    except (*_DAMAGED, CorruptEntryError, KeyError, TypeError, AttributeError):
        return None


def _import(
    store: EntryStore, tar: tarfile.TarFile, key: str, packed: _Packed, limit: int
) -> ExchangedEntry:
    written = False

    def write(folder: Path) -> EntryRecord:
        nonlocal written
        for file in record.files:
            _extract(tar, packed.members[file.path], folder / file.path)
        check_foreign_files(folder, record)
        written = True
        return record

    try:
        record = _read_record(tar, key, packed, limit)
        lease = store.create(
            key,
            model=f"{record.model} (an import)",
            cancel=SessionOptions().cancellation,
            write=write,
        )
    except CorruptEntryError as fault:
        return ExchangedEntry(key=key, fault=str(fault))
    if lease is not None:
        lease.held.close()
    return ExchangedEntry(key=key, bytes=record.size, fault=None, existed=not written)


def _read_record(
    tar: tarfile.TarFile, key: str, packed: _Packed, limit: int
) -> EntryRecord:
    """Return the record of an entry in an archive, if all but its bytes is sound.

    Raises:
        CorruptEntryError: it is not, or the entry has more bytes than the limit.
    """
    members = packed.members
    if packed.fault:
        raise CorruptEntryError(packed.fault)
    if RECORD not in members:
        raise CorruptEntryError("it has no record")
    record = parse_foreign_record(_read(tar, members[RECORD]), key, limit)
    _check_files(record, members)
    return record


def _check_files(record: EntryRecord, members: Mapping[str, tarfile.TarInfo]) -> None:
    """Check that the members of an entry are the files of its record.

    Raises:
        CorruptEntryError: they are not.
    """
    sizes = {file.path: file.bytes for file in record.files}
    for path in sorted({*sizes, *members} - {RECORD}):
        if path not in members:
            raise CorruptEntryError(f"{path!r:.80} is missing")
        if path not in sizes:
            raise CorruptEntryError(f"{path!r:.80} is not in its record")
        if members[path].size != sizes[path]:
            raise CorruptEntryError(f"{path!r:.80} has another length")


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """Return the bytes of a small member."""
    if member.size > MAX_RECORD:
        raise CorruptEntryError(f"{member.name!r:.80} is too large")
    return b"".join(_chunks(tar, member))


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write a member into a new file and force it to disk."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("xb") as file:
        for chunk in _chunks(tar, member):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def _chunks(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    """Yield the bytes of a member, a bounded number at a time."""
    data: IO[bytes] | None = tar.extractfile(member)
    if data is None:
        raise CorruptEntryError(f"{member.name!r:.80} is not a regular file")
    with data:
        try:
            while chunk := data.read(_CHUNK):
                yield chunk
        except _DAMAGED as error:
            raise CorruptEntryError(f"{member.name!r:.80}: {error}") from error
