"""`epctx cache`: list, count, check and clear the entries of `load_or_compile`, and
find the one of a model.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

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
    FOLDER_VARIABLE,
    CacheSettings,
    cache_settings,
    parse_size,
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
from epctx_core.errors import EpctxError, Fail, one_line

if TYPE_CHECKING:
    from epctx_cache.differences import Nearest
    from epctx_cache.request import Request

Result = TypeVar("Result")
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


def add_lookup_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx cache lookup`."""
    _add_model_arguments(parser, run=run_lookup)


def add_why_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx cache why`."""
    _add_model_arguments(parser, run=run_why)


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
    settings, store = _open_store(arguments)
    compiling = holders(store.locks_folder)
    entries = _try(settings, lambda: list(store.entries()))
    entries.sort(key=lambda entry: entry.last_use, reverse=True)
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
    console.say(
        f"{settings.folder}: {_count_entries(len(entries))}, {byte_size(total)}"
    )
    facts = [_describe_entry(entry) for entry in entries]
    console.result(
        results.ListResult(
            cache=str(settings.folder),
            bytes=total,
            entries=facts,
            compiling=compiling,
        )
    )
    return ExitCode.DONE


def run_stats(arguments: argparse.Namespace, console: Console) -> int:
    """Show hits, misses and the time that hits saved against compiling again."""
    settings, store = _open_store(arguments)
    statistics = _try(settings, store.statistics)
    rows = [_make_usage_row(", ".join(u.eps) or "none", u) for u in statistics.by_eps]
    if statistics.damaged:
        known = sum(usage.bytes for usage in statistics.by_eps)
        damaged = Usage(
            eps=(), entries=statistics.damaged, bytes=statistics.bytes - known
        )
        rows.append(_make_usage_row(_DAMAGED, damaged))
    console.table(
        ("EPs", "hits", "misses", "compile time saved", "entries", "size"), rows
    )
    if rows:
        console.say()
    console.say(
        f"{settings.folder}: {counted(statistics.hits, 'hit')}, "
        f"{_count_misses(statistics.misses)}, "
        f"{_format_seconds(statistics.seconds_saved)} saved against compiling again; "
        f"{_count_entries(statistics.entries)}, {byte_size(statistics.bytes)}"
    )
    if statistics.damaged:
        console.note(
            f"{_count_entries(statistics.damaged)} cannot be read, and the hits are "
            "not counted. See `epctx cache verify`."
        )
    console.result(statistics.as_dict())
    return ExitCode.DONE


def _make_usage_row(name: str, usage: Usage) -> tuple[str, int, int, str, int, str]:
    return (
        name,
        usage.hits,
        usage.misses,
        _format_seconds(usage.seconds_saved),
        usage.entries,
        byte_size(usage.bytes),
    )


def run_lookup(arguments: argparse.Namespace, console: Console) -> int:
    """Print the context model of a model in the cache; 1 if there is none."""
    settings, store = _open_store(arguments)
    request = _make_request(arguments, settings, console)
    key, _ = _try(settings, request.identify)
    model, fault = _look_up(settings, store, key)
    shared = None if model is not None else _ask_shared(request, key, console)
    if model is not None:
        console.say(one_line(str(model)), wrap=False)
    elif fault:
        console.note(_describe_damage(key, fault, shared))
    else:
        console.note(
            f"{one_line(arguments.model)} is not in {settings.folder} with these "
            f"options{_describe_shared(request, shared)}. `epctx cache why` shows the "
            "nearest entry."
        )
    console.result(
        results.LookupResult(
            cache=str(settings.folder),
            hit=model is not None,
            key=key,
            path=None if model is None else str(model),
            fault=fault or None,
            shared=shared,
        )
    )
    return ExitCode.FAILED if model is None else ExitCode.DONE


def run_why(arguments: argparse.Namespace, console: Console) -> int:
    """Show how the key of a model differs from that of the nearest entry."""
    from epctx_cache.differences import find_nearest

    settings, store = _open_store(arguments)
    request = _make_request(arguments, settings, console)
    key, parts = _try(settings, request.identify)
    model, fault = _look_up(settings, store, key)
    is_hit = model is not None
    shared = None if is_hit else _ask_shared(request, key, console)
    entries = _try(settings, lambda: list(store.entries()))
    unreadable = sum(entry.record is None for entry in entries)
    nearest = None
    if not fault:
        # An entry of the key that is being removed is no hit.
        comparable = [entry for entry in entries if (entry.key == key) == is_hit]
        nearest = find_nearest(parts, Path(arguments.model).name, comparable)

    name = one_line(arguments.model)
    if is_hit:
        console.say(f"{name} is in {settings.folder}: entry {key[:_SHORT]}.")
    elif fault:
        console.say(_describe_damage(key, fault, shared))
    else:
        elsewhere = _describe_shared(request, shared)
        why = "with these options"
        if nearest is None:
            why = "(no entry is comparable)" if entries else "(the cache is empty)"
        console.say(f"{name} is not in {settings.folder} {why}{elsewhere}.")
        if nearest is not None:
            _print_nearest(nearest, console)
    if unreadable and not (is_hit or fault):
        are = "is" if unreadable == 1 else "are"
        console.say()
        console.note(
            f"{_count_entries(unreadable)} {are} not compared: damaged, or of an "
            "earlier version that recorded no parts of keys."
        )
    console.result(
        results.WhyResult(
            cache=str(settings.folder),
            hit=is_hit,
            key=key,
            entries=len(entries),
            not_compared=unreadable,
            nearest=None if nearest is None else _describe_nearest(nearest),
            fault=fault or None,
            shared=shared,
        )
    )
    return ExitCode.DONE


def _look_up(
    settings: CacheSettings, store: EntryStore, key: str
) -> tuple[Path | None, str]:
    """Return the context model of a key, None for a miss; and the fault of a damaged
    entry.
    """
    try:
        lease = _try(settings, lambda: store.open(key))
    except CorruptEntryError as fault:
        return None, str(fault)
    if lease is None:
        return None, ""
    with lease:
        return lease.model, ""


def _ask_shared(request: Request, key: str, console: Console) -> bool | None:
    """Return whether the cache that machines share has an entry; None if there is no
    such cache, or it cannot be asked.
    """
    shared = request.open_shared()
    if shared is None:
        return None
    with console.progress(f"asking {one_line(str(shared))}"):
        return shared.has(key)


def _describe_shared(request: Request, has_entry: bool | None) -> str:
    """Return what the cache that machines share has, as the end of a sentence about
    this one.
    """
    if has_entry is None:
        return ""
    shared = one_line(str(request.open_shared()))
    if has_entry:
        return f", but in {shared}, from where the next load fetches it"
    return f", nor in {shared}"


def _describe_damage(key: str, fault: str, is_shared: bool | None) -> str:
    does = "fetches it from the shared cache" if is_shared else "compiles it again"
    return (
        f"The entry of this key, {key[:_SHORT]}, is damaged: {one_line(fault)}. The "
        f"next load {does}; `epctx cache verify` removes it."
    )


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
    verb = "part" if len(nearest.differences) == 1 else "parts"
    console.say(f"Its key differs in {len(nearest.differences)} {verb}:")
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
    settings, store = _open_store(arguments)
    with console.progress() as progress:
        checked = _try(settings, lambda: list(_verify(store, progress)))
    damaged = [(entry, fault) for entry, fault in checked if fault]
    for entry, fault in damaged:
        console.say(f"{entry.key[:_SHORT]} is damaged: {one_line(fault)}")
    sound = len(checked) - len(damaged)
    console.say(
        f"{settings.folder}: {_count_entries(sound)} sound, {len(damaged)} damaged"
    )
    entries = [
        results.VerifiedEntry(key=entry.key, fault=fault or None)
        for entry, fault in checked
    ]
    console.result(
        results.VerifyResult(
            cache=str(settings.folder), ok=not damaged, entries=entries
        )
    )
    return ExitCode.FAILED if damaged else ExitCode.DONE


def _verify(
    store: EntryStore, progress: Callable[[str, int, int], None]
) -> Iterator[tuple[Stored, str]]:
    """Yield each entry with its fault, and show how many were checked."""
    total = len(list(store.entries()))
    progress("checking entries", 0, total)
    for number, checked in enumerate(verify(store), 1):
        progress("checking entries", number, total)
        yield checked


def run_gc(arguments: argparse.Namespace, console: Console) -> int:
    """Reduce the cache to its limit."""
    settings, store = _open_store(arguments)
    return _print_collection(
        settings, _try(settings, lambda: collect(store, settings.size)), console
    )


def run_clear(arguments: argparse.Namespace, console: Console) -> int:
    """Clear the cache."""
    settings, store = _open_store(arguments)
    return _print_collection(settings, _try(settings, lambda: clear(store)), console)


def _print_collection(
    settings: CacheSettings, collected: results.CollectionResult, console: Console
) -> int:
    console.say(
        f"{settings.folder}: {_count_entries(len(collected.removed))} removed, "
        f"{byte_size(collected.freed)}; {collected.kept} left, "
        f"{byte_size(collected.bytes)}"
    )
    console.result(collected)
    return ExitCode.DONE


def _open_store(arguments: argparse.Namespace) -> tuple[CacheSettings, EntryStore]:
    size = getattr(arguments, "size", None)
    settings = cache_settings(
        arguments.cache_dir, None if size is None else parse_size(size)
    )
    store = EntryStore(settings.folder)
    _try(settings, store.check_readable)
    return settings, store


def _try(settings: CacheSettings, work: Callable[[], Result]) -> Result:
    try:
        return work()
    except EpctxError:
        raise  # some are an OSError, too
    except OSError as error:
        raise _unusable(settings, error) from error


def _unusable(settings: CacheSettings, error: OSError) -> Fail:
    """Return the error for a cache that cannot be used."""
    why = error.strerror or str(error)
    return Fail(
        f"the cache in {str(settings.folder)!r} cannot be used: {why}.",
        path=settings.folder,
        hint=(
            f"Set --cache-dir or {FOLDER_VARIABLE} to a folder that you can read and "
            "write."
        ),
    )


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
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.1f} min"
    return f"{seconds / _HOUR:,.1f} h"


def _format_age(seconds: float) -> str:
    """Return a time ago in words."""
    for unit, name in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= unit:
            return f"{counted(int(seconds // unit), name)} ago"
    return "just now"


def _describe_entry(entry: Stored) -> results.EntryFacts:
    facts = results.EntryFacts(
        key=entry.key,
        sound=entry.record is not None,
        bytes=entry.bytes,
        last_use=entry.last_use,
    )
    if entry.record is None:
        return facts
    return replace(
        facts,
        model=entry.record.model,
        eps=list(entry.record.eps),
        partitions=entry.record.partitions,
        created=entry.record.created,
        compile_seconds=entry.record.seconds,
    )


add_ls_arguments = partial(_add_arguments, run=run_ls)
add_stats_arguments = partial(_add_arguments, run=run_stats)
add_verify_arguments = partial(_add_arguments, run=run_verify)
add_clear_arguments = partial(_add_arguments, run=run_clear)
