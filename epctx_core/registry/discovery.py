"""Discovery of EPs by the entry points of installed distributions, without importing a
plugin, and their merge with those found before: imported ones stay, uninstalled ones
are REMOVED.

Reads metadata only, and lets no distribution disturb another.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING

from epctx_core.errors import describe
from epctx_core.options.choices import CPU_EP
from epctx_core.registry.installed import (
    Distribution,
    EntryPoint,
    list_distributions,
    parse_place,
)
from epctx_core.registry.records import (
    PluginRecord,
    PluginState,
    RecordKey,
    is_same_distribution,
    normalise_name,
    sort_key,
)

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider

EP_GROUP = "epctx.execution_providers"
"""One entry for each EP: its name is the EP name, its value `module:Class`, followed by
an extra that is called as the distribution without which the EP is not there.
"""
SOURCE_GROUP = "epctx.ep_sources"
"""One entry for each further source key of an EP: its value is the EP's name, or that
of the EP's own entry.
"""
FINDER_GROUP = "epctx.ep_finders"
"""One entry for each function that finds EPs in packages which know nothing of epctx.

It gets the folders to search, imports no EP, and yields for each EP distribution,
version, EP name, `module:Class` as an entry point of that package would say, and what
keeps it from being used, or an empty text.
"""
SIMULATED_GROUP = "epctx.simulated"
"""One entry for each EP that says before an import whether it is simulated: its name is
the EP name, its value `true` or `false`.
"""
_SAID = {"true": True, "false": False}
_ATTEMPTS = 5
_PLACE = re.compile(r"[\w.]+:[\w.]+")
EP_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def invalidate_caches() -> None:
    """Have Python look into its folders again.

    It walks tables to which an import in another thread may add meanwhile.
    """
    for _ in range(_ATTEMPTS):
        with suppress(RuntimeError):
            importlib.invalidate_caches()
            return
    importlib.invalidate_caches()


def discover(paths: Sequence[str] | None = None) -> list[PluginRecord]:
    """Return a record for each EP of every distribution, sorted by EP name and
    distribution.

    States are DISCOVERED, or BROKEN where the metadata is wrong. No plugin is imported.
    An EP whose entry point names an extra has no record as long as the distribution of
    that name is not installed.

    Args:
        paths: folders and wheels to search; None for `sys.path`.
    """
    distributions = list(list_distributions(paths))
    installed = {dist.key for dist in distributions}
    if paths is not None:
        installed |= {dist.key for dist in list_distributions()}
    where = [*sys.path, *(paths or ())]
    records = [
        record
        for dist in distributions
        if dist.is_ours
        for record in _read_records(dist, where, installed)
    ]
    return sorted(records, key=sort_key)


def _read_records(
    dist: Distribution, where: list[str], installed: Collection[str]
) -> Iterator[PluginRecord]:
    """Yield the records of one distribution.

    Args:
        dist: the distribution.
        where: folders that its finders search.
        installed: keys of the distributions that extras may name.
    """
    make = partial(_make_record, distribution=dist.name, version=dist.version)
    groups: dict[str, dict[str, EntryPoint]] = defaultdict(dict)
    for entry in dist.read_entry_points():
        groups[entry.group][entry.name] = entry

    # A source key names its EP, or its class.
    targets = {source: entry.place for source, entry in groups[SOURCE_GROUP].items()}
    known: set[str] = set()
    for ep, entry in groups[EP_GROUP].items():
        own = {ep, entry.place}
        known |= own
        if _list_needed(entry.value).issubset(installed):
            keys = {source for source, target in targets.items() if target in own}
            simulated = groups[SIMULATED_GROUP].get(ep)
            yield replace(
                make(ep, entry.value),
                sources=(ep, *sorted(keys - {ep})),
                simulated=_SAID.get(simulated.value) if simulated else None,
            )

    for source, target in targets.items():
        if target not in known:
            reason = (
                f"its group {SOURCE_GROUP} gives the source {source!r} to {target!r}, "
                f"and its group {EP_GROUP} does not have an EP of that name or class"
            )
            yield make(source, reason=reason)

    for entry in groups[FINDER_GROUP].values():
        yield from _ask_finder(entry, f"{dist.name}:{entry.name}", where, make)


def _ask_finder(
    entry: EntryPoint,
    finder: str,
    where: list[str],
    make: Callable[..., PluginRecord],
) -> list[PluginRecord]:
    """Return a record for each EP that a finder names; a broken one of its distribution
    if it fails.
    """
    try:
        return [
            replace(_make_record(ep, target, problem, package, release), finder=finder)
            for package, release, ep, target, problem in entry.load()(where)
        ]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as in an import of a plugin
        reason = f"it failed to find EPs: {describe(error)}"
        return [make(finder, reason=reason)]


def _list_needed(value: str) -> set[str]:
    """Return the keys of the distributions that an entry point's value names as
    extras.
    """
    extras = value.partition("[")[2].rstrip("] ").split(",")
    return {normalise_name(name.strip()) for name in extras} - {""}


def _make_record(
    name: str,
    value: str = "",
    reason: str = "",
    distribution: str = "",
    version: str | None = None,
) -> PluginRecord:
    """Return the record of one EP; BROKEN for a reason, and for metadata that describe
    no usable EP.
    """
    place = parse_place(value)
    if not reason and not EP_NAME.fullmatch(name):
        reason = f"the EP name {name!r} may only have letters, digits, '_', '.' and '-'"
    elif not reason and name == CPU_EP:
        reason = f"the EP name {CPU_EP} is built in and can't be provided by a plugin"
    elif not reason and not _PLACE.fullmatch(place):
        reason = (
            f"its entry point {name!r} has the value {value!r}, which is not of the "
            "form module:Class"
        )
    return PluginRecord(
        name=name,
        sources=(name,),
        distribution=distribution,
        version=version,
        state=PluginState.BROKEN if reason else PluginState.DISCOVERED,
        reason=reason,
        entry_point="" if reason else place,
    )


class Entry:
    """One EP: its record before selection, its class once loaded, and the lock held
    while loading.
    """

    def __init__(
        self, record: PluginRecord, cls: type[ExecutionProvider] | None = None
    ) -> None:
        self.record = record
        self.cls = cls
        # Apart from the registry's lock: an import may start threads that call the
        # registry.
        self.loading = RLock()


def merge_entries(
    records: Sequence[PluginRecord], previous: Mapping[RecordKey, Entry]
) -> dict[RecordKey, Entry]:
    """Return an entry for each EP that is installed, or was.

    Args:
        records: as discovered now.
        previous: the entries found before, with the classes that this process has
            imported.
    """
    entries: dict[RecordKey, Entry] = {}
    for record in records:
        # Of two records with one key, the EP comes before a complaint about it.
        entries.setdefault(record.key, _merge(record, previous))
    for key, earlier in previous.items():
        mine = earlier.record
        if key in entries or not mine.entry_point:
            continue
        reason = f"{mine.origin} is not installed any more"
        for record in records:
            if is_same_distribution(record.distribution, mine.distribution):
                reason = f"{record.origin}, which is installed now, does not provide it"
        record = replace(mine, state=PluginState.REMOVED, reason=reason)
        entries[key] = Entry(record, earlier.cls)
    return entries


def _merge(installed: PluginRecord, previous: Mapping[RecordKey, Entry]) -> Entry:
    """Return the entry of an installed EP; a class that was imported stays, with its
    record.
    """
    earlier = previous.get(installed.key)
    if earlier is not None and earlier.cls is not None:
        mine = earlier.record
        if mine.origin == installed.origin:
            record = replace(
                installed,
                vendor=mine.vendor,
                simulated=mine.simulated,
                state=PluginState.LOADED,
            )
        else:
            reason = _describe_difference(mine, installed)
            record = replace(mine, state=PluginState.RESTART_NEEDED, reason=reason)
        return Entry(record, earlier.cls)

    if installed.entry_point.partition(":")[0] in sys.modules:
        # Importing again would give the old code.
        for mine in (entry.record for entry in previous.values()):
            if (
                is_same_distribution(installed.distribution, mine.distribution)
                and installed.origin != mine.origin
            ):
                reason = f"{_describe_difference(mine, installed)}: restart it"
                record = replace(
                    installed,
                    version=mine.version,
                    state=PluginState.BROKEN,
                    reason=reason,
                )
                return Entry(record)
    return Entry(installed)


def _describe_difference(mine: PluginRecord, installed: PluginRecord) -> str:
    return (
        f"{installed.origin} is installed, but this process has imported {mine.origin}"
    )
