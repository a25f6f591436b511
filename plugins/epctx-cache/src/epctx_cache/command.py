"""`epctx cache`: list, count, check, exchange and clear the entries of
`load_or_compile`, and find the one of a model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
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
from epctx_cache.caching import CacheSettings, cache_settings, parse_size
from epctx_cache.lock import holders
from epctx_cache.store import (
    Collected,
    EntryStore,
    Stored,
    clear,
    collect,
    is_key,
    verify,
)
from epctx_core.errors import EpctxError, Fail, InvalidArgument

if TYPE_CHECKING:
    from epctx_cache.differences import Nearest
    from epctx_cache.exchange import Exchanged
    from epctx_cache.request import Request

Result = TypeVar("Result")
_SHORT = 12
"""Digits of a key in the table."""
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


def add_export_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx cache export`."""
    parser.add_argument("file", metavar="FILE.tar", help="the tar file to write")
    parser.add_argument(
        "entries",
        metavar="ENTRY",
        nargs="*",
        help="a key, or its first digits as `epctx cache ls` shows them (default: all)",
    )
    _add_arguments(parser, run=run_export)


def add_import_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx cache import`."""
    meaning = "a tar file that `epctx cache export` wrote"
    parser.add_argument("file", metavar="FILE.tar", help=meaning)
    _add_arguments(parser, run=run_import)


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
    entries = sorted(store.entries(), key=lambda entry: entry.last_use, reverse=True)
    total = sum(entry.bytes for entry in entries)
    if entries:
        console.table(
            ("key", "model", "EPs", "size", "last use"),
            [_make_row(entry) for entry in entries],
        )
    for holder in compiling:
        console.say(f"compiling: {holder}")
    gap = "\n" if entries else ""
    console.say(
        f"{gap}{settings.folder}: {_count_entries(len(entries))}, {byte_size(total)}"
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
    """Show hits, misses and the time that hits saved."""
    settings, store = _open_store(arguments)
    statistics = _try(settings, store.statistics)
    console.table(
        ("EPs", "hits", "misses", "time saved", "entries", "size"),
        [
            (
                ", ".join(usage.eps) or "none",
                usage.hits,
                usage.misses,
                _format_seconds(usage.seconds_saved),
                usage.entries,
                byte_size(usage.bytes),
            )
            for usage in statistics.by_eps
        ],
    )
    gap = "\n" if statistics.by_eps else ""
    console.say(
        f"{gap}{settings.folder}: {counted(statistics.hits, 'hit')}, "
        f"{_count_misses(statistics.misses)}, "
        f"{_format_seconds(statistics.seconds_saved)} saved; "
        f"{_count_entries(statistics.entries)}, {byte_size(statistics.bytes)}"
    )
    if statistics.damaged:
        console.note(
            f"{_count_entries(statistics.damaged)} cannot be read, and the hits are "
            "not counted. See `epctx cache verify`."
        )
    console.result(statistics.as_dict())
    return ExitCode.DONE


def run_lookup(arguments: argparse.Namespace, console: Console) -> int:
    """Print the context model of a model in the cache; 1 if there is none."""
    from epctx_cache.store import CorruptEntryError

    settings, store = _open_store(arguments)
    key, _ = _try(settings, _make_request(arguments, settings, console).identify)
    fault = ""
    model: Path | None = None
    try:
        if lease := _try(settings, lambda: store.open(key)):
            with lease:
                model = lease.model
    except CorruptEntryError as error:
        fault = str(error)
    if model is not None:
        console.say(str(model))
    elif fault:
        console.note(f"The entry {key[:_SHORT]} is damaged: {fault}.")
    else:
        console.note(
            f"{arguments.model} is not in {settings.folder} with these options. "
            "`epctx cache why` shows the nearest entry."
        )
    console.result(
        results.LookupResult(
            cache=str(settings.folder),
            hit=model is not None,
            key=key,
            path=None if model is None else str(model),
            fault=fault or None,
        )
    )
    return ExitCode.FAILED if model is None else ExitCode.DONE


def run_why(arguments: argparse.Namespace, console: Console) -> int:
    """Show how the key of a model differs from that of the nearest entry."""
    from epctx_cache.differences import find_nearest

    settings, store = _open_store(arguments)
    key, parts = _try(settings, _make_request(arguments, settings, console).identify)
    entries = _try(settings, lambda: list(store.entries()))
    unreadable = sum(entry.record is None for entry in entries)
    nearest = find_nearest(parts, Path(arguments.model).name, entries)
    _print_nearest(arguments.model, settings, key, nearest, console)
    if unreadable:
        are = "is" if unreadable == 1 else "are"
        console.note(
            f"\n{_count_entries(unreadable)} {are} not compared: damaged, or of an "
            "earlier version that recorded no parts of keys."
        )
    console.result(
        results.WhyResult(
            cache=str(settings.folder),
            hit=nearest is not None and nearest.entry.key == key,
            key=key,
            entries=len(entries),
            not_compared=unreadable,
            nearest=None if nearest is None else _describe_nearest(nearest),
        )
    )
    return ExitCode.DONE


def _describe_nearest(nearest: Nearest) -> results.NearestEntry:
    differences = [
        results.PartDifference(**asdict(each)) for each in nearest.differences
    ]
    entry = _describe_entry(nearest.entry)
    return results.NearestEntry(**vars(entry), differences=differences)


def _print_nearest(
    model: str,
    settings: CacheSettings,
    key: str,
    nearest: Nearest | None,
    console: Console,
) -> None:
    if nearest is None:
        console.say(f"{model} is not in {settings.folder}, and no entry is comparable.")
        return
    record = nearest.record
    if nearest.entry.key == key:
        console.say(f"{model} is in {settings.folder}: entry {key[:_SHORT]}.")
        return
    console.say(f"{model} is not in {settings.folder} with these options.")
    eps = ", ".join(record.eps) or "no EP"
    age = _format_age(time.time() - record.created)
    console.say(
        f"Nearest entry: {nearest.entry.key[:_SHORT]}, {record.model} for {eps}, "
        f"compiled {age}."
    )
    verb = "part" if len(nearest.differences) == 1 else "parts"
    console.say(f"Its key differs in {len(nearest.differences)} {verb}:")
    for each in nearest.differences:
        console.say(f"\n  {each.part}")
        console.say(f"    now    {_shorten(each.now)}")
        console.say(f"    entry  {_shorten(each.entry)}")


def _shorten(value: str | None) -> str:
    """Return the value of a part of a key as a line; a digest with its first digits."""
    if value is None:
        return "(none)"
    if not value:
        return "(empty)"
    return f"{value[:_SHORT]}…" if is_key(value) else value


def _make_request(
    arguments: argparse.Namespace, settings: CacheSettings, console: Console
) -> Request:
    """Return the request that a host with the arguments of a command would make."""
    from epctx_cache.request import Request, cacheable
    from epctx_core import GraphOptimizationLevel, default_registry

    session = session_options(arguments, console)
    return Request(
        model=arguments.model,
        options=cacheable(session, None, None),
        level=GraphOptimizationLevel.ORT_DISABLE_ALL,
        settings=settings,
        progress=None,
        registry=default_registry,
    )


def run_export(arguments: argparse.Namespace, console: Console) -> int:
    """Write entries into a tar file; 1 if one was left out, or none is there."""
    from epctx_cache.exchange import export_entries

    settings, store = _open_store(arguments)
    file = Path(arguments.file)
    keys = _try(settings, lambda: [entry.key for entry in store.entries()])
    if arguments.entries:
        keys = [_find_key(text, keys) for text in dict.fromkeys(arguments.entries)]
    try:
        with console.progress() as progress:
            exchanged = export_entries(store, file, sorted(set(keys)), progress)
    except EpctxError:
        raise  # some are an OSError, too
    except OSError as error:
        why = error.strerror or error
        raise Fail(f"{str(file)!r} cannot be written: {why}.", path=file) from error

    faults = _print_faults(exchanged, console)
    done = [result for result in exchanged if not result.fault]
    if done:
        console.say(
            f"{file}: {_count_entries(len(done))}, "
            f"{byte_size(sum(result.bytes for result in done))}"
        )
    else:
        why = "no entry was exported" if exchanged else "the cache is empty"
        console.say(f"{file} is not written: {why}.")
    is_whole = bool(done) and not faults
    console.result(
        results.ExportResult(
            cache=str(settings.folder),
            file=str(file),
            ok=is_whole,
            entries=[_describe_exchanged(result) for result in exchanged],
        )
    )
    return ExitCode.DONE if is_whole else ExitCode.FAILED


def _find_key(text: str, keys: Sequence[str]) -> str:
    """Return the key that begins with the digits of an argument."""
    found = [key for key in keys if text and key.startswith(text.lower())]
    if len(found) == 1:
        return found[0]
    number = f"{len(found)} entries have" if found else "no entry has"
    raise InvalidArgument(
        f"{number} a key that begins with {text!r:.80}.",
        hint="Give more digits; `epctx cache ls --json` shows all of them."
        if found
        else "See `epctx cache ls`.",
    )


def run_import(arguments: argparse.Namespace, console: Console) -> int:
    """Add the entries of a tar file to the cache; 1 if one was refused."""
    from epctx_cache.exchange import import_entries

    settings, store = _open_store(arguments)
    file = Path(arguments.file)
    with console.progress() as progress:
        exchanged = _try(
            settings,
            lambda: list(import_entries(store, file, settings.size, progress)),
        )
        collected = _try(settings, lambda: collect(store, settings.size))

    faults = _print_faults(exchanged, console)
    existed = sum(result.existed for result in exchanged)
    new = [result for result in exchanged if not (result.fault or result.existed)]
    console.say(
        f"{settings.folder}: {_count_entries(len(new))} imported, "
        f"{byte_size(sum(result.bytes for result in new))}; {existed} existed, "
        f"{faults} refused"
    )
    if collected.removed:
        console.note(
            f"{_count_entries(len(collected.removed))} removed to keep the limit of "
            f"{byte_size(settings.size)}; EPCTX_CACHE_SIZE sets another one."
        )
    console.result(
        results.ImportResult(
            cache=str(settings.folder),
            file=str(file),
            ok=not faults,
            entries=[_describe_exchanged(result) for result in exchanged],
            removed=list(collected.removed),
        )
    )
    return ExitCode.FAILED if faults else ExitCode.DONE


def _print_faults(exchanged: Sequence[Exchanged], console: Console) -> int:
    """Show what was left out; return the number."""
    faults = [result for result in exchanged if result.fault]
    for result in faults:
        name = result.key[:_SHORT] if is_key(result.key) else repr(result.key)[:80]
        console.say(f"{name} is left out: {result.fault}")
    return len(faults)


def _describe_exchanged(result: Exchanged) -> results.ExchangedEntry:
    facts = {**asdict(result), "fault": result.fault or None}
    return results.ExchangedEntry(**facts)


def run_verify(arguments: argparse.Namespace, console: Console) -> int:
    """Check the entries; 1 if one was damaged."""
    settings, store = _open_store(arguments)
    with console.progress() as progress:
        checked = _try(settings, lambda: list(_verify(store, progress)))
    damaged = [(entry, fault) for entry, fault in checked if fault]
    for entry, fault in damaged:
        console.say(f"{entry.key[:_SHORT]} is damaged: {fault}")
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
    settings: CacheSettings, collected: Collected, console: Console
) -> int:
    console.say(
        f"{settings.folder}: {_count_entries(len(collected.removed))} removed, "
        f"{byte_size(collected.freed)}; {collected.kept} left, "
        f"{byte_size(collected.bytes)}"
    )
    console.result(
        results.CollectionResult(cache=str(settings.folder), **asdict(collected))
    )
    return ExitCode.DONE


def _open_store(arguments: argparse.Namespace) -> tuple[CacheSettings, EntryStore]:
    size = getattr(arguments, "size", None)
    settings = cache_settings(
        arguments.cache_dir, None if size is None else parse_size(size)
    )
    return settings, EntryStore(settings.folder)


def _try(settings: CacheSettings, work: Callable[[], Result]) -> Result:
    try:
        return work()
    except EpctxError:
        raise  # some are an OSError, too
    except OSError as error:
        raise Fail(
            f"the cache in {str(settings.folder)!r} cannot be used: {error}.",
            path=settings.folder,
        ) from error


def _make_row(entry: Stored) -> tuple[str, str, str, str, str]:
    record = entry.record
    model, eps = (
        ("(damaged)", "-")
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
