"""Keeping a cache within its limit and in order: what `epctx cache` does, and what follows each compile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epctx_cache.content import forget_older
from epctx_cache.record import CorruptEntryError, check_whole

if TYPE_CHECKING:
    from epctx_cache.store import EntryStore, Stored

INDEX_KEPT = 90 * 24 * 3600
"""Seconds after which the index forgets a file's content; the file is read again then."""


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a collection did.

    Attributes:
        removed: keys of the entries that went.
        freed: bytes that they took.
        kept: how many entries are left.
        bytes: what these take.
    """

    removed: tuple[str, ...]
    freed: int
    kept: int
    bytes: int


def collect(store: EntryStore, limit: int, *, keep: str | None = None) -> Collected:
    """Remove the entries whose last use is longest ago until the others fit the limit.

    One that is being loaded stays.

    Args:
        store: the cache.
        limit: bytes for all entries.
        keep: the key of an entry that stays in any case.

    Raises:
        OSError: the cache cannot be written.
    """
    store.sweep()
    forget_older(store.index_folder, INDEX_KEPT)
    entries = sorted(store.entries(), key=lambda entry: (entry.last_use, entry.key))
    total = sum(entry.bytes for entry in entries)
    removed: list[Stored] = []
    for entry in entries:
        if total <= limit:
            break
        if entry.key != keep and store.remove(entry.key):
            removed.append(entry)
            total -= entry.bytes
    return Collected(
        removed=tuple(entry.key for entry in removed),
        freed=sum(entry.bytes for entry in removed),
        kept=len(entries) - len(removed),
        bytes=total,
    )


def verify(store: EntryStore) -> Iterator[tuple[Stored, str]]:
    """Check every byte of all entries; yield each with what is wrong with it, empty for nothing.

    An entry with a fault is removed: the next one who needs it compiles it again. If it cannot be, the fault says why.

    Raises:
        OSError: the cache cannot be read.
    """
    for entry in list(store.entries()):
        try:
            lease = store.open(entry.key)
            if lease is None:
                continue
            with lease:
                check_whole(lease.folder, lease.record)
        except CorruptEntryError as error:
            yield entry, f"{error}; {_removed(store, entry.key)}"
        else:
            yield entry, ""


def _removed(store: EntryStore, key: str) -> str:
    """Remove an entry; return what came of it."""
    try:
        return "it is dropped" if store.remove(key) else "it stays, because somebody is loading it"
    except OSError as error:
        return f"it cannot be dropped: {error}"


def clear(store: EntryStore) -> Collected:
    """Remove every entry that nobody is loading, and all that the index knows.

    Raises:
        OSError: the cache cannot be written.
    """
    forget_older(store.index_folder, 0)
    return collect(store, -1)
