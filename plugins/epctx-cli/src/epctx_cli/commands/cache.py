"""`epctx cache`: what `load_or_compile` keeps: list it, check it, make room."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from epctx_cli import text
from epctx_cli.arguments import CommandParser, add_common
from epctx_cli.exit_codes import DONE, FAILED
from epctx_core.errors import Fail

if TYPE_CHECKING:
    from epctx_cache.housekeeping import Collected
    from epctx_cache.settings import CacheSettings
    from epctx_cache.store import EntryStore, Stored

    from epctx_cli.console import Console

Result = TypeVar("Result")
_SHORT = 12
"""Digits of a key that the table shows."""
_MINUTE, _HOUR, _DAY = 60, 3600, 24 * 3600


def add_arguments(parser: CommandParser) -> None:
    """Declare the actions and their options."""
    parser.set_defaults(parser=parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, action, summary in (
        ("ls", run_ls, "list the entries, the last used first"),
        ("verify", run_verify, "check every byte of all entries; damaged ones are dropped"),
        ("gc", run_gc, "remove the entries used longest ago until the others fit the limit"),
        ("clear", run_clear, "remove all entries"),
    ):
        own = actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        own.add_argument(
            "--cache-dir",
            metavar="DIR",
            help="the cache; without it EPCTX_CACHE_DIR, or the user's cache folder",
        )
        if name == "gc":
            own.add_argument(
                "--size", metavar="SIZE", help="the limit, such as 512M; without it EPCTX_CACHE_SIZE, or 10G"
            )
        add_common(own)
        own.set_defaults(run=action, parser=own)


def run_ls(arguments: argparse.Namespace, console: Console) -> int:
    """List the entries."""
    from epctx_cache.lock import holders

    settings, store = _opened(arguments)
    compiling = holders(store.locks_folder)
    entries = sorted(store.entries(), key=lambda entry: entry.last_use, reverse=True)
    total = sum(entry.bytes for entry in entries)
    if entries:
        console.table(("key", "model", "EPs", "size", "last use"), [_row(entry) for entry in entries])
        console.say()
    for holder in compiling:
        console.say(f"under way: {holder}")
    console.say(f"{settings.folder}: {_counted(len(entries))}, {text.size(total)}")
    console.result(
        {
            "cache": str(settings.folder),
            "bytes": total,
            "entries": [_described(entry) for entry in entries],
            "compiling": [asdict(holder) for holder in compiling],
        }
    )
    return DONE


def run_verify(arguments: argparse.Namespace, console: Console) -> int:
    """Check the entries; 1 if one was damaged."""
    from epctx_cache.housekeeping import verify

    settings, store = _opened(arguments)
    checked = _done(settings, lambda: list(verify(store)))
    damaged = [(entry, fault) for entry, fault in checked if fault]
    for entry, fault in damaged:
        console.say(f"{entry.key[:_SHORT]} is damaged: {fault}")
    sound = len(checked) - len(damaged)
    console.say(f"{settings.folder}: {_counted(sound)} sound, {len(damaged)} damaged")
    console.result(
        {
            "cache": str(settings.folder),
            "ok": not damaged,
            "entries": [{"key": entry.key, "fault": fault or None} for entry, fault in checked],
        }
    )
    return FAILED if damaged else DONE


def run_gc(arguments: argparse.Namespace, console: Console) -> int:
    """Bring the cache within its limit."""
    from epctx_cache.housekeeping import collect

    settings, store = _opened(arguments)
    return _collected(settings, _done(settings, lambda: collect(store, settings.size)), console)


def run_clear(arguments: argparse.Namespace, console: Console) -> int:
    """Empty the cache."""
    from epctx_cache.housekeeping import clear

    settings, store = _opened(arguments)
    return _collected(settings, _done(settings, lambda: clear(store)), console)


def _collected(settings: CacheSettings, what: Collected, console: Console) -> int:
    console.say(
        f"{settings.folder}: {_counted(len(what.removed))} removed, {text.size(what.freed)}; "
        f"{what.kept} left, {text.size(what.bytes)}"
    )
    console.result(
        {
            "cache": str(settings.folder),
            "removed": list(what.removed),
            "freed": what.freed,
            "kept": what.kept,
            "bytes": what.bytes,
        }
    )
    return DONE


def _opened(arguments: argparse.Namespace) -> tuple[CacheSettings, EntryStore]:
    from epctx_cache.settings import cache_settings, parse_size
    from epctx_cache.store import EntryStore

    given = getattr(arguments, "size", None)
    settings = cache_settings(arguments.cache_dir, None if given is None else parse_size(given))
    return settings, EntryStore(settings.folder)


def _done(settings: CacheSettings, work: Callable[[], Result]) -> Result:
    try:
        return work()
    except OSError as error:
        raise Fail(
            f"the cache in {str(settings.folder)!r} cannot be used: {error}.", path=settings.folder
        ) from error


def _row(entry: Stored) -> tuple[str, str, str, str, str]:
    record = entry.record
    return (
        entry.key[:_SHORT],
        record.model if record is not None else "(damaged)",
        ", ".join(record.eps) or "none" if record is not None else "-",
        text.size(entry.bytes),
        _ago(time.time() - entry.last_use),
    )


def _counted(number: int) -> str:
    return "1 entry" if number == 1 else f"{number:,} entries"


def _ago(seconds: float) -> str:
    """Return how long ago something was, as people say it."""
    for unit, name in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= unit:
            return f"{text.count(int(seconds // unit), name)} ago"
    return "just now"


def _described(entry: Stored) -> Mapping[str, Any]:
    record = entry.record
    known: Mapping[str, Any] = (
        {}
        if record is None
        else {
            "model": record.model,
            "eps": list(record.eps),
            "partitions": record.partitions,
            "created": record.created,
            "compile_seconds": record.seconds,
        }
    )
    return {
        "key": entry.key,
        "sound": record is not None,
        "bytes": entry.bytes,
        "last_use": entry.last_use,
        **known,
    }
