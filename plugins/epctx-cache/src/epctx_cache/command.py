"""`epctx cache`: list, check and clear the cache of `load_or_compile`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from epctx_cli.command import (
    CommandParser,
    Console,
    ExitCode,
    add_common,
    byte_size,
    counted,
)

from epctx_cache.caching import CacheSettings, cache_settings, parse_size
from epctx_cache.lock import holders
from epctx_cache.store import Collected, EntryStore, Stored, clear, collect, verify
from epctx_core.errors import Fail

Result = TypeVar("Result")
_SHORT = 12
"""Digits of a key in the table."""
_MINUTE = 60
_HOUR = 3600
_DAY = 24 * 3600


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
        {
            "cache": str(settings.folder),
            "bytes": total,
            "entries": facts,
            "compiling": compiling,
        }
    )
    return ExitCode.DONE


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
    facts = [{"key": entry.key, "fault": fault or None} for entry, fault in checked]
    console.result({"cache": str(settings.folder), "ok": not damaged, "entries": facts})
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
    console.result({"cache": str(settings.folder), **asdict(collected)})
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


def _format_age(seconds: float) -> str:
    """Return a time ago in words."""
    for unit, name in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= unit:
            return f"{counted(int(seconds // unit), name)} ago"
    return "just now"


def _describe_entry(entry: Stored) -> dict[str, Any]:
    record = entry.record
    facts = {
        "key": entry.key,
        "sound": record is not None,
        "bytes": entry.bytes,
        "last_use": entry.last_use,
    }
    if record is not None:
        facts |= {
            "model": record.model,
            "eps": list(record.eps),
            "partitions": record.partitions,
            "created": record.created,
            "compile_seconds": record.seconds,
        }
    return facts


add_ls_arguments = partial(_add_arguments, run=run_ls)
add_verify_arguments = partial(_add_arguments, run=run_verify)
add_clear_arguments = partial(_add_arguments, run=run_clear)
