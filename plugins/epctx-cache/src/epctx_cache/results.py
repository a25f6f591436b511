"""Results of `epctx cache`: what `--json` prints, and what the functions behind it
return.

The JSON Schemas in `schemas` are made from these dataclasses (`make tables`). A key
whose field has the default None is left out where there is nothing to say.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EntryFacts:
    """Entry of a cache. The keys from `model` to `compile_seconds` are left out if it
    is damaged.

    Attributes:
        key: its key.
        sound: false if its record cannot be read.
        bytes: bytes of its files.
        last_use: time of the last use, in seconds since 1970.
        model: file name of the model.
        eps: names of the EPs, in order of priority.
        partitions: number of partitions.
        created: time of the compile, in seconds since 1970.
        compile_seconds: duration of the compile.
    """

    key: str
    sound: bool
    bytes: int
    last_use: float
    model: str | None = None
    eps: list[str] | None = None
    partitions: int | None = None
    created: float | None = None
    compile_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class ListResult:
    """Result of `epctx cache ls`.

    Attributes:
        cache: folder of the cache.
        bytes: bytes of all entries.
        entries: entries, the last used one first.
        compiling: processes that compile into the cache now, in words.
    """

    cache: str
    bytes: int
    entries: list[EntryFacts]
    compiling: list[str]


@dataclass(frozen=True, kw_only=True)
class LookupResult:
    """Result of `epctx cache lookup`.

    Attributes:
        cache: folder of the cache.
        hit: true if the model is in the cache.
        key: key of the model with these options.
        path: path of the context model.
        fault: what is wrong with a damaged entry.
        shared: whether the cache that machines share has the entry; null if it was not
            asked, or cannot be.
    """

    cache: str
    hit: bool
    key: str
    path: str | None
    fault: str | None
    shared: bool | None


@dataclass(frozen=True, kw_only=True)
class PartDifference:
    """Part of two keys that differs.

    Attributes:
        part: the part, in words, such as `option htp_arch of QNNExecutionProvider`.
        now: its value in the key that was asked for; null without such a part. Values
            that may be secret are digests.
        entry: its value in the key of the entry; null without such a part.
    """

    part: str
    now: str | None
    entry: str | None


@dataclass(frozen=True, kw_only=True)
class NearestEntry(EntryFacts):
    """Entry whose key differs least.

    Attributes:
        differences: parts of the key that differ; none for the entry of the key itself.
    """

    differences: list[PartDifference]


@dataclass(frozen=True, kw_only=True)
class WhyResult:
    """Result of `epctx cache why`.

    Attributes:
        cache: folder of the cache.
        hit: true if the model is in the cache.
        key: key of the model with these options.
        entries: number of entries.
        not_compared: number of entries that record no parts of their keys.
        nearest: entry whose key differs least; null if none can be compared, or if
            that of the key itself is damaged.
        fault: what is wrong with a damaged entry of the key itself.
        shared: whether the cache that machines share has the entry; null if it was not
            asked, or cannot be.
    """

    cache: str
    hit: bool
    key: str
    entries: int
    not_compared: int
    nearest: NearestEntry | None
    fault: str | None
    shared: bool | None


@dataclass(frozen=True, kw_only=True)
class VerifiedEntry:
    """Entry that was checked.

    Attributes:
        key: its key.
        fault: what was wrong with it; a damaged entry is removed.
    """

    key: str
    fault: str | None


@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """Result of `epctx cache verify`.

    Attributes:
        cache: folder of the cache.
        ok: true if no entry was damaged.
        entries: each entry.
    """

    cache: str
    ok: bool
    entries: list[VerifiedEntry]


@dataclass(frozen=True, kw_only=True)
class CollectionResult:
    """Result of `epctx cache gc` and `epctx cache clear`.

    Attributes:
        cache: folder of the cache.
        removed: keys of the removed entries.
        freed: their bytes.
        kept: number of the other entries.
        bytes: bytes of the other entries.
    """

    cache: str
    removed: list[str]
    freed: int
    kept: int
    bytes: int
