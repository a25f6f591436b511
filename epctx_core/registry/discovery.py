"""Discovery of EPs by the entry points of installed distributions, without importing a
plugin.

Reads metadata only, and lets no distribution disturb another.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING

from epctx_core.options.choices import CPU_EP
from epctx_core.registry.installed import (
    OBJECT,
    Distribution,
    EntryPoint,
    list_distributions,
    parse_place,
)
from epctx_core.registry.records import (
    PluginRecord,
    PluginState,
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
EP_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def discover(paths: Sequence[str] | None = None) -> list[PluginRecord]:
    """Return a record for each EP of every distribution, sorted by EP name and
    distribution.

    States are DISCOVERED, or BROKEN where the metadata is wrong. No plugin is imported.
    An EP whose entry point names an extra has no record as long as the distribution of
    that name is not installed.

    Args:
        paths: folders and wheels to search; None for `sys.path`.
    """
    found = list(list_distributions(paths))
    installed = {dist.key for dist in found}
    if paths is not None:
        installed |= {dist.key for dist in list_distributions()}
    ours = [dist for dist in found if dist.is_ours]
    where = [*sys.path, *(paths or ())]
    records = [each for dist in ours for each in _read_records(dist, where, installed)]
    return sorted(records, key=sort_key)


def _read_records(
    dist: Distribution, where: list[str], installed: Collection[str]
) -> list[PluginRecord]:
    """Return the records of one distribution; a single broken one if its metadata can't
    be read.

    Args:
        dist: the distribution.
        where: folders that its finders search.
        installed: keys of the distributions that extras may name.
    """
    version = dist.version
    label = dist.name or dist.key
    reason = ""
    entries: list[EntryPoint] = []
    if not dist.name:
        reason = f"its metadata in {dist.place!r} have no name, so reinstall it"
    try:
        entries = dist.read_entry_points()
    except ValueError as error:
        reason = str(error)
    if reason:
        return [_make_record(label, "", label, version, reason)]

    providers: dict[str, list[str]] = {}
    for entry in entries:
        if entry.group == EP_GROUP:
            providers.setdefault(entry.name, []).append(entry.value)
    simulated = {e.name: e.value for e in entries if e.group == SIMULATED_GROUP}
    sources = [entry for entry in entries if entry.group == SOURCE_GROUP]
    targets: set[str | None] = set()
    records = []
    for ep, (value, *more) in providers.items():
        own = {ep, parse_place(value)}
        targets |= own
        if not _list_needed(value).issubset(installed):
            continue
        reason = f"its group {EP_GROUP} has {ep!r} more than once" if more else ""
        record = _make_record(ep, value, label, version, reason)
        keys = {source.name for source in sources if _find_targets(source) & own}
        said = _SAID.get(simulated.get(ep, ""))
        records.append(
            replace(record, sources=(ep, *sorted(keys - {ep})), simulated=said)
        )

    for source in sources:
        if not _find_targets(source) & targets:
            reason = (
                f"its group {SOURCE_GROUP} gives the source {source.name!r} to "
                f"{source.value!r}, and its group {EP_GROUP} does not have an EP of "
                "that name or class"
            )
            records.append(_make_record(source.name, "", label, version, reason))
    return [*records, *_ask_finders(entries, label, version, where)]


def _find_targets(source: EntryPoint) -> set[str | None]:
    """Return by what a source key may name its EP: its name, or its class."""
    return {source.value.strip(), parse_place(source.value)} - {None}


def _ask_finders(
    entries: Iterable[EntryPoint],
    distribution: str,
    version: str | None,
    where: list[str],
) -> Iterator[PluginRecord]:
    """Yield a record for each EP that the finders of a distribution name; a broken one
    for a finder that fails.
    """
    for entry in entries:
        if entry.group != FINDER_GROUP:
            continue
        finder = f"{distribution}:{entry.name}"
        try:
            records = [
                replace(
                    _make_record(ep, target, package, release, problem), finder=finder
                )
                for package, release, ep, target, problem in entry.load()(where)
            ]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - as in an import of a plugin
            reason = f"it failed to find EPs: {type(error).__name__}: {error}"
            records = [_make_record(finder, "", distribution, version, reason)]
        yield from records


def _list_needed(value: str) -> set[str]:
    """Return the keys of the distributions that an entry point's value names as
    extras.
    """
    match = OBJECT.fullmatch(value)
    named = ((match and match["extras"]) or "").split(",")
    return {normalise_name(name.strip()) for name in named} - {""}


def _make_record(
    name: str, value: str, distribution: str, version: str | None, reason: str
) -> PluginRecord:
    """Return the record of one EP; BROKEN for a reason, and for metadata that describe
    no usable EP.
    """
    target = parse_place(value) or ""
    if not reason and not EP_NAME.fullmatch(name):
        reason = f"the EP name {name!r} may only have letters, digits, '_', '.' and '-'"
    elif not reason and name == CPU_EP:
        reason = f"the EP name {CPU_EP} is built in and can't be provided by a plugin"
    elif not reason and not target:
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
        entry_point="" if reason else target,
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
