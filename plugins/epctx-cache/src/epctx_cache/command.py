"""`epctx cache`: list, count, check and clear the entries of `load_or_compile`, and
find the one of a model.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_cli.command import (
    CommandParser,
    Console,
    ExitCode,
    add_common,
    add_providers,
    byte_size,
    counted,
    session_options,
)

from epctx_cache import results
from epctx_cache.counters import Usage
from epctx_cache.lock import holders
from epctx_cache.settings import (
    CacheSettings,
    cache_settings,
    parse_size,
    unusable_cache,
)
from epctx_cache.store import (
    CorruptEntryError,
    EntryStore,
    Stored,
    clear,
    collect,
    is_key,
    verify,
)
from epctx_core.errors import EpctxError, one_line

if TYPE_CHECKING:
    from epctx_cache.differences import Nearest
    from epctx_cache.request import Request

_SHORT = 12
"""Digits of a key in the table."""
_DAMAGED = "(damaged)"
_LONGEST = 100
"""Characters of a value that are shown."""
_BEFORE = 20
"""Characters shown before the first one that differs."""
_CHANGE = re.compile(r"\b([0-9]{19})/([0-9]+)\b")
"""Time of the newest change in nanoseconds, and number of files; see
`key.newest_change`.
"""
_MINUTE = 60
_HOUR = 3600
_DAY = 24 * 3600


def _add_model_arguments(
    parser: CommandParser, *, run: Callable[[argparse.Namespace, Console], int]
) -> None:
    """Declare the arguments that the key of an entry depends on."""
    parser.add_argument("model", metavar="MODEL", help="the ONNX model to look up")
    add_providers(
        parser,
        ep_help="an EP of the entry; may be repeated, in order of priority",
    )
    _add_arguments(parser, run=run)


def add_gc_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx cache gc`."""
    _add_arguments(parser, run=run_gc)
    meaning = "the limit, such as 512M (default: EPCTX_CACHE_SIZE or 10G)"
    parser.add_argument("--size", metavar="SIZE", help=meaning)


def _add_arguments(
    parser: CommandParser, *, run: Callable[[argparse.Namespace, Console], int]
) -> None:
    meaning = "the cache (default: EPCTX_CACHE_DIR or the user's cache folder)"
    parser.add_argument("--cache-dir", metavar="DIR", help=meaning)
    add_common(parser)
    parser.set_defaults(run=run)


def run_ls(arguments: argparse.Namespace, console: Console) -> int:
    """List the entries."""
    with _open_store(arguments) as (_, store):
        compiling = holders(store.locks_folder)
        entries = sorted(store.entries(), key=lambda entry: -entry.last_use)
    total = sum(entry.bytes for entry in entries)
    if entries:
        console.table(
            ("key", "model", "EPs", "size", "last use"),
            [_make_row(entry) for entry in entries],
        )
    for holder in compiling:
        console.say(f"compiling: {holder}")
    if entries:
        console.say()
    console.say(f"{store.folder}: {_count_entries(len(entries))}, {byte_size(total)}")
    console.result(
        results.ListResult(
            cache=str(store.folder),
            bytes=total,
            entries=[_describe_entry(entry) for entry in entries],
            compiling=compiling,
        )
    )
    return ExitCode.DONE


def run_stats(arguments: argparse.Namespace, console: Console) -> int:
    """Show hits, misses and the time that hits saved against compiling again."""
    with _open_store(arguments) as (_, store):
        statistics = store.statistics()
    rows = [(", ".join(usage.eps) or "none", usage) for usage in statistics.by_eps]
    if statistics.damaged:
        known = sum(usage.bytes for usage in statistics.by_eps)
        damaged = Usage(
            eps=(), entries=statistics.damaged, bytes=statistics.bytes - known
        )
        rows.append((_DAMAGED, damaged))
    console.table(
        ("EPs", "hits", "misses", "compile time saved", "entries", "size"),
        [
            (
                name,
                usage.hits,
                usage.misses,
                _format_seconds(usage.seconds_saved),
                usage.entries,
                byte_size(usage.bytes),
            )
            for name, usage in rows
        ],
    )
    if rows:
        console.say()
    console.say(
        f"{store.folder}: {counted(statistics.hits, 'hit')}, "
        f"{_count_misses(statistics.misses)}, "
        f"{_format_seconds(statistics.seconds_saved)} saved against compiling again; "
        f"{_count_entries(statistics.entries)}, {byte_size(statistics.bytes)}"
    )
    if statistics.damaged:
        console.note(
            f"{_count_entries(statistics.damaged)} cannot be read, and the hits are "
            "not counted. See `epctx cache verify`."
        )
    console.result(statistics)
    return ExitCode.DONE


def run_lookup(arguments: argparse.Namespace, console: Console) -> int:
    """Print the context model of a model in the cache; 1 if there is none."""
    with _open_store(arguments) as (settings, store):
        request = _make_request(arguments, settings, console)
        found, _ = _look_up(request, store, console)
    if found.path is not None:
        console.say(one_line(found.path), wrap=False)
    else:
        miss = _describe_miss(found, request, "with these options")
        more = "" if found.fault else " `epctx cache why` shows the nearest entry."
        console.note(f"{miss}{more}")
    console.result(found)
    return ExitCode.DONE if found.hit else ExitCode.FAILED


def run_why(arguments: argparse.Namespace, console: Console) -> int:
    """Show how the key of a model differs from that of the nearest entry."""
    from epctx_cache.differences import find_nearest

    with _open_store(arguments) as (settings, store):
        request = _make_request(arguments, settings, console)
        found, parts = _look_up(request, store, console)
        entries = list(store.entries())
    unreadable = sum(entry.record is None for entry in entries)
    nearest = None
    if not found.fault:
        # An entry of the key that is being removed is no hit.
        comparable = [e for e in entries if (e.key == found.key) == found.hit]
        nearest = find_nearest(parts, Path(arguments.model).name, comparable)

    if found.hit:
        name = one_line(arguments.model)
        console.say(f"{name} is in {found.cache}: entry {found.key[:_SHORT]}.")
    elif nearest is not None:
        console.say(_describe_miss(found, request, "with these options"))
        _print_nearest(nearest, console)
    else:
        why = "(no entry is comparable)" if entries else "(the cache is empty)"
        console.say(_describe_miss(found, request, why))
    if unreadable and not (found.hit or found.fault):
        are = "is" if unreadable == 1 else "are"
        console.say()
        console.note(
            f"{_count_entries(unreadable)} {are} not compared: damaged, or of an "
            "earlier version that recorded no parts of keys."
        )
    console.result(
        results.WhyResult(
            cache=found.cache,
            hit=found.hit,
            key=found.key,
            entries=len(entries),
            not_compared=unreadable,
            nearest=None if nearest is None else _describe_nearest(nearest),
            fault=found.fault,
            shared=found.shared,
        )
    )
    return ExitCode.DONE


def _look_up(
    request: Request, store: EntryStore, console: Console
) -> tuple[results.LookupResult, Mapping[str, Any]]:
    """Return what the cache has of a model, and the parts of its key."""
    key, parts = request.identify()
    path = fault = has_shared = None
    try:
        lease = store.open(key)
    except CorruptEntryError as error:
        lease, fault = None, str(error)
    if lease is not None:
        with lease:
            path = str(lease.model)
    elif (shared := request.open_shared()) is not None:
        with console.progress(f"asking {one_line(str(shared))}"):
            has_shared = shared.has(key)
    found = results.LookupResult(
        cache=str(store.folder),
        hit=path is not None,
        key=key,
        path=path,
        fault=fault,
        shared=has_shared,
    )
    return found, parts


def _describe_miss(found: results.LookupResult, request: Request, why: str) -> str:
    """Return why a model is not in the cache, and what the next load does."""
    if found.fault:
        does = (
            "fetches it from the shared cache" if found.shared else "compiles it again"
        )
        return (
            f"The entry of this key, {found.key[:_SHORT]}, is damaged: "
            f"{one_line(found.fault)}. The next load {does}; `epctx cache verify` "
            "removes it."
        )
    elsewhere = ""
    if found.shared is not None:
        shared = one_line(str(request.open_shared()))
        elsewhere = (
            f", but in {shared}, from where the next load fetches it"
            if found.shared
            else f", nor in {shared}"
        )
    return f"{one_line(str(request.model))} is not in {found.cache} {why}{elsewhere}."


def _describe_nearest(nearest: Nearest) -> results.NearestEntry:
    entry = _describe_entry(nearest.entry)
    return results.NearestEntry(**vars(entry), differences=list(nearest.differences))


def _print_nearest(nearest: Nearest, console: Console) -> None:
    record = nearest.record
    eps = _cut(", ".join(record.eps)) or "no EP"
    age = _format_age(time.time() - record.created)
    console.say(
        f"Nearest entry: {nearest.entry.key[:_SHORT]}, {_cut(record.model)} for {eps}, "
        f"compiled {age}."
    )
    console.say(f"Its key differs in {counted(len(nearest.differences), 'part')}:")
    for each in nearest.differences:
        now, entry = _describe_values(each.now, each.entry)
        console.say()
        console.say(f"  {_cut(each.part)}")
        console.say(f"    now    {now}")
        console.say(f"    entry  {entry}")


def _describe_values(now: str | None, entry: str | None) -> tuple[str, str]:
    """Return two values of a part of a key as lines that differ: digests with their
    first digits, times as dates, long values from shortly before the first difference.
    """
    values = [_describe_value(value) for value in (now, entry)]
    if values[0] == values[1]:  # two times within a second
        values = [str(now), str(entry)]
    start = 0
    if max(map(len, values)) > _LONGEST:
        common = takewhile(lambda pair: pair[0] == pair[1], zip(*values, strict=False))
        start = max(0, sum(1 for _ in common) - _BEFORE)
    gap = "…" if start else ""
    shown, other = (f"{gap}{_cut(value[start:])}" for value in values)
    return shown, other


def _describe_value(value: str | None) -> str:
    if value is None:
        return "(none)"
    if not value:
        return "(empty)"
    if is_key(value):
        return f"{value[:_SHORT]}…"
    return _CHANGE.sub(_as_date, value)


def _as_date(match: re.Match[str]) -> str:
    seconds = int(match[1]) // 10**9
    date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    return f"{date}, {counted(int(match[2]), 'file')}"


def _cut(text: str) -> str:
    """Return the beginning of a text out of a record as one printable line."""
    shown = ""
    for character in text:
        piece = one_line(character)
        if len(shown) + len(piece) > _LONGEST:
            return f"{shown}…"
        shown += piece
    return shown


def _make_request(
    arguments: argparse.Namespace, settings: CacheSettings, console: Console
) -> Request:
    """Return the request that a host with the arguments of a command would make."""
    from epctx_cache.request import Request, cacheable
    from epctx_core import default_registry

    session = session_options(arguments, console)
    return Request(
        model=arguments.model,
        options=cacheable(session, None, None),
        level=None,
        settings=settings,
        progress=None,
        registry=default_registry,
    )


def run_verify(arguments: argparse.Namespace, console: Console) -> int:
    """Check the entries; 1 if one was damaged."""
    with _open_store(arguments) as (_, store), console.progress() as progress:
        entries = [
            results.VerifiedEntry(key=entry.key, fault=fault or None)
            for entry, fault in verify(store, progress)
        ]
    damaged = 0
    for entry in entries:
        if entry.fault:
            damaged += 1
            console.say(f"{entry.key[:_SHORT]} is damaged: {one_line(entry.fault)}")
    sound = len(entries) - damaged
    console.say(f"{store.folder}: {_count_entries(sound)} sound, {damaged} damaged")
    console.result(
        results.VerifyResult(cache=str(store.folder), ok=not damaged, entries=entries)
    )
    return ExitCode.FAILED if damaged else ExitCode.DONE


def run_gc(arguments: argparse.Namespace, console: Console) -> int:
    """Reduce the cache to its limit."""
    with _open_store(arguments) as (settings, store):
        collected = collect(store, settings.size)
    return _print_collection(collected, console)


def run_clear(arguments: argparse.Namespace, console: Console) -> int:
    """Clear the cache."""
    with _open_store(arguments) as (_, store):
        collected = clear(store)
    return _print_collection(collected, console)


def _print_collection(collected: results.CollectionResult, console: Console) -> int:
    console.say(
        f"{collected.cache}: {_count_entries(len(collected.removed))} removed, "
        f"{byte_size(collected.freed)}; {collected.kept} left, "
        f"{byte_size(collected.bytes)}"
    )
    console.result(collected)
    return ExitCode.DONE


@contextmanager
def _open_store(
    arguments: argparse.Namespace,
) -> Iterator[tuple[CacheSettings, EntryStore]]:
    """Give the cache that a command names, whose failures in the block become errors.

    Raises:
        Fail: it cannot be used.
    """
    size = getattr(arguments, "size", None)
    settings = cache_settings(
        arguments.cache_dir, None if size is None else parse_size(size)
    )
    store = EntryStore(settings.folder)
    try:
        store.check_readable()
        yield settings, store
    except EpctxError:
        raise  # some are an OSError, too
    except OSError as error:
        why = error.strerror or error
        raise unusable_cache(store.folder, why, "--cache-dir") from error


def _make_row(entry: Stored) -> tuple[str, str, str, str, str]:
    record = entry.record
    model, eps = (
        (_DAMAGED, "-")
        if record is None
        else (record.model, ", ".join(record.eps) or "none")
    )
    return (
        entry.key[:_SHORT],
        model,
        eps,
        byte_size(entry.bytes),
        _format_age(time.time() - entry.last_use),
    )


def _count_entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number:,} entries"


def _count_misses(number: int) -> str:
    return "1 miss" if number == 1 else f"{number:,} misses"


def _format_seconds(seconds: float) -> str:
    """Return a duration in words."""
    for unit, name in ((_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:.1f} s"


def _format_age(seconds: float) -> str:
    """Return a time ago in words."""
    for unit, name in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= unit:
            return f"{counted(int(seconds // unit), name)} ago"
    return "just now"


def _describe_entry(entry: Stored) -> results.EntryFacts:
    record = entry.record
    known: dict[str, Any] = {}
    if record is not None:
        known = {
            "model": record.model,
            "eps": list(record.eps),
            "partitions": record.partitions,
            "created": record.created,
            "compile_seconds": record.seconds,
        }
    return results.EntryFacts(
        key=entry.key,
        sound=record is not None,
        bytes=entry.bytes,
        last_use=entry.last_use,
        **known,
    )


add_ls_arguments = partial(_add_arguments, run=run_ls)
add_stats_arguments = partial(_add_arguments, run=run_stats)
add_verify_arguments = partial(_add_arguments, run=run_verify)
add_lookup_arguments = partial(_add_model_arguments, run=run_lookup)
add_why_arguments = partial(_add_model_arguments, run=run_why)
add_clear_arguments = partial(_add_arguments, run=run_clear)
