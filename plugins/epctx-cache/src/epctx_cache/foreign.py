"""Checks of entries of a shared cache, which were made elsewhere.

They are taken for hostile, and published only when every byte was checked.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path, PurePosixPath
from typing import Final

from epctx_cache import key as keys
from epctx_cache.counters import HITS, is_count, is_duration
from epctx_cache.store import (
    PUSHED,
    RECORD,
    USED,
    CorruptEntryError,
    EntryFile,
    EntryRecord,
    blaming_entry,
    check_whole,
    is_key,
    parse_record,
)

MAX_RECORD: Final = 16 << 20
"""Bytes of a record that are read."""
_MAX_FILES: Final = 1000
PULLED: Final = "pulled"
"""Folder in that of an entry, while it is pulled."""
_MAX_NAME: Final = 255
"""Bytes of a name in most file systems."""
_MAX_PATH: Final = 1000
"""Bytes of a path in an entry: a system takes some 4,000, with the cache's folder."""
_OWN: Final = {RECORD, USED, HITS, PUSHED, PULLED}
_LATEST: Final = 253_402_300_800.0
"""The year 10000, in seconds since 1970: no date is later."""


def parse_foreign_record(data: bytes, key: str, limit: int) -> EntryRecord:
    """Return the record of an entry, if it is sound in all but the bytes of its files.

    Args:
        data: its JSON.
        key: of the entry.
        limit: bytes that the entry may have.

    Raises:
        CorruptEntryError: it is not, or the entry has more bytes.
    """
    record = parse_record(data, key)
    if not _has_sound_fields(record):
        raise CorruptEntryError("its record has fields of another form")
    if keys.key_of(record.ingredients) != key:
        raise CorruptEntryError("its key is not that of its record")
    paths = [file.path for file in record.files]
    if len(paths) > _MAX_FILES:
        raise CorruptEntryError(f"it has {len(paths):,} files")
    for path in paths:
        # Some names are the cache's own.
        if not is_inside(path) or path.split("/")[0].lower() in _OWN:
            raise CorruptEntryError(f"{path!r:.80} is no name of a file in an entry")
    # Not every file system tells upper case from lower case, or forms of letters.
    names = {unicodedata.normalize("NFC", path).casefold() for path in paths}
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    if len(names) != len(paths) or names & folders:
        raise CorruptEntryError("its record names a file twice")
    if record.size > limit:
        raise CorruptEntryError(
            f"it has {record.size:,} bytes, and the limit of the cache is {limit:,}"
        )
    return record


def is_inside(path: str) -> bool:
    """Return whether a path can be that of a file in an entry's folder."""
    # What cannot be encoded is not printable.
    return (
        path.isprintable()
        and "\\" not in path
        and len(path.encode()) <= _MAX_PATH
        and all(
            part not in {"", ".", ".."} and len(part.encode()) <= _MAX_NAME
            for part in path.split("/")
        )
    )


def check_foreign_files(folder: Path, record: EntryRecord) -> None:
    """Check every byte of an entry, that its model names its other files, and that the
    digests of its payloads are those of its record.

    Raises:
        CorruptEntryError: they are not.
    """
    from epctx_core import Registry, inspect_model

    check_whole(folder, record)
    path = folder / record.files[-1].path
    with blaming_entry():
        # Such an entry must not cause the import of a plugin.
        info = inspect_model(path, registry=Registry(entry_points=False))
    payloads = () if info.manifest is None else info.manifest.payloads
    digests = {each.name: each.root for each in payloads if not each.embedded}
    for file in record.files[:-1]:
        if file.path not in {*digests, *info.required_files}:
            raise CorruptEntryError(f"its model does not name {file.path!r:.80}")
        if digests.get(file.path, file.digest) != file.digest:
            raise CorruptEntryError(
                f"{file.path!r:.80} has another digest than in its record"
            )


def _has_sound_fields(record: EntryRecord) -> bool:
    """True if the fields of a record have the types that the commands show."""
    try:
        return (
            isinstance(record.model, str)
            and type(record.created) in {int, float}
            and 0 <= record.created < _LATEST
            and is_duration(record.seconds)
            and is_count(record.partitions)
            and all(map(is_count, record.assignments.values()))
            and all(isinstance(name, str) for name in record.node_attributes)
            and all(_is_sound_file(file) for file in record.files)
            and len(record.eps) == len(set(record.eps))
        )
    except (AttributeError, KeyError, TypeError, IndexError):
        return False


def _is_sound_file(file: EntryFile) -> bool:
    return (
        isinstance(file.path, str)
        and is_count(file.bytes)
        and isinstance(file.digest, str)
        and is_key(file.digest)  # a digest of the same form
    )
