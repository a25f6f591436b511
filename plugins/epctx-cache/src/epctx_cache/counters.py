"""Counters of a cache: hits, misses and the time that hits saved against compiling
again.

Nothing is locked and nothing is forced to disk. Each hit appends one byte to the file
`hits` of its entry, whose length is their number. A miss, and an entry that is removed
with its hits, append a line to a log. Knows neither keys nor locks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HITS = "hits"
_LONGEST = 10 * 365 * 24 * 3600.0
"""Seconds that no compile takes, so that sums of durations stay finite."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Use of the entries that were compiled for the same EPs, removed ones included.

    Attributes:
        eps: names of the EPs, in order of priority; none for plain models.
        hits: number of loads, and of paths given, without a compile.
        misses: number of compiles into the cache.
        seconds_saved: for each hit the duration of the compile of its entry, added up.
        entries: number of entries now.
        bytes: bytes of all their files.
    """

    eps: tuple[str, ...]
    hits: int = 0
    misses: int = 0
    seconds_saved: float = 0.0
    entries: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class CacheStatistics:
    """Use of a cache since its folder was made.

    Attributes:
        folder: folder of the cache.
        hits: number of loads, and of paths given, without a compile.
        misses: number of compiles into the cache.
        seconds_saved: for each hit the duration of the compile of its entry, added up.
        entries: number of entries, damaged ones included.
        bytes: bytes of all their files.
        damaged: number of entries without a readable record.
        by_eps: use by EPs, ordered by their names.
    """

    folder: Path
    hits: int
    misses: int
    seconds_saved: float
    entries: int
    bytes: int
    damaged: int
    by_eps: tuple[Usage, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics as JSON can hold them."""
        fields = asdict(self)
        folder = fields.pop("folder")
        return {"cache": str(folder), **fields}


def count_hit(entry: Path) -> None:
    """Count a use of the entry in a folder; a failure is ignored."""
    with suppress(OSError):
        _append(entry / HITS, b"+")


def count_miss(log: Path, eps: Sequence[str]) -> None:
    """Count a compile into the cache; a failure is ignored."""
    with suppress(OSError):
        _append_line(log, {"miss": list(eps)})


def keep_hits(log: Path, entry: Path, eps: Sequence[str], seconds: float) -> None:
    """Log the hits of an entry that is being removed; a failure is ignored.

    The name of its folder is unique then, and part of the line: if a process is killed
    before the folder is gone, a second line of it is not counted.

    Args:
        log: of the cache.
        entry: its folder.
        eps: names of its EPs.
        seconds: duration of its compile.
    """
    with suppress(OSError):
        if hits := _count_hits(entry):
            _append_line(
                log,
                {
                    "removed": entry.name,
                    "eps": list(eps),
                    "hits": hits,
                    "seconds": seconds,
                },
            )


def count_use(entry: Path, eps: tuple[str, ...], seconds: float, size: int) -> Usage:
    """Return the use of the entry in a folder, compiled for EPs in some seconds; `size`
    is that of its files, in bytes.
    """
    hits = _count_hits(entry)
    return Usage(
        eps=eps, hits=hits, seconds_saved=hits * seconds, entries=1, bytes=size
    )


def add_up(
    folder: Path, uses: Iterable[Usage], damaged: Sequence[int]
) -> CacheStatistics:
    """Return the statistics of a cache.

    Args:
        folder: of the cache.
        uses: what its log counts, and each entry that is in it now.
        damaged: bytes of each entry without a readable record.
    """
    by_eps: dict[tuple[str, ...], list[Usage]] = {}
    for use in uses:
        by_eps.setdefault(use.eps, []).append(use)
    rows = tuple(_sum(eps, same) for eps, same in sorted(by_eps.items()))
    total = _sum((), rows)
    return CacheStatistics(
        folder=folder,
        hits=total.hits,
        misses=total.misses,
        seconds_saved=total.seconds_saved,
        entries=total.entries + len(damaged),
        bytes=total.bytes + sum(damaged),
        damaged=len(damaged),
        by_eps=rows,
    )


def _sum(eps: tuple[str, ...], uses: Sequence[Usage]) -> Usage:
    """Return several uses as one, of these EPs."""
    return Usage(
        eps=eps,
        hits=sum(use.hits for use in uses),
        misses=sum(use.misses for use in uses),
        seconds_saved=round(sum((use.seconds_saved for use in uses), 0.0), 3),
        entries=sum(use.entries for use in uses),
        bytes=sum(use.bytes for use in uses),
    )


def _count_hits(entry: Path) -> int:
    try:
        return (entry / HITS).stat().st_size
    except FileNotFoundError:
        return 0


def read_log(log: Path) -> Iterator[Usage]:
    """Yield what each line counts; a damaged line is ignored."""
    seen: set[str] = set()
    try:
        lines = log.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            fields = json.loads(line)
            if "miss" in fields:
                yield Usage(eps=_read_names(fields["miss"]), misses=1)
            elif (removed := str(fields["removed"])) not in seen:
                hits, seconds = fields["hits"], fields["seconds"]
                if not (is_count(hits) and is_duration(seconds)):
                    continue
                usage = Usage(
                    eps=_read_names(fields["eps"]),
                    hits=hits,
                    seconds_saved=hits * float(seconds),
                )
                seen.add(removed)
                yield usage


def _read_names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("not a list of names")
    return tuple(names)


def is_count(value: Any) -> bool:
    """Return whether a value out of a file is a number of things."""
    return type(value) is int and 0 <= value < 1 << 63


def is_duration(value: Any) -> bool:
    """Return whether a value out of a file is a plausible number of seconds."""
    return type(value) in {int, float} and 0 <= value < _LONGEST


def _append_line(log: Path, fields: Mapping[str, Any]) -> None:
    # It begins with a line break, so that a line that a crash cut costs no other one.
    _append(log, f"\n{json.dumps(fields)}\n".encode())


def _append(path: Path, data: bytes) -> None:
    """Append data in one call: the system keeps writers of one file apart."""
    with path.open("ab", buffering=0) as file:
        file.write(data)
