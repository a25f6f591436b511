"""Merge of newly discovered EPs with those found before: imported ones stay,
uninstalled ones are REMOVED.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from epctx_core.registry.discovery import Entry
from epctx_core.registry.records import (
    PluginRecord,
    PluginState,
    RecordKey,
    is_same_distribution,
)


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
        installed = [
            r.origin
            for r in records
            if is_same_distribution(r.distribution, mine.distribution)
        ]
        reason = f"{mine.origin} is not installed any more"
        if installed:
            reason = f"{installed[0]}, which is installed now, does not provide it"
        entries[key] = Entry(
            replace(mine, state=PluginState.REMOVED, reason=reason), earlier.cls
        )
    return entries


def _merge(installed: PluginRecord, previous: Mapping[RecordKey, Entry]) -> Entry:
    """Return the entry of an installed EP; a class that was imported stays, with its
    record.
    """
    earlier = previous.get(installed.key)
    if earlier is not None and earlier.cls is not None:
        mine = earlier.record
        if (installed.version, installed.entry_point) == (
            mine.version,
            mine.entry_point,
        ):
            record = replace(
                installed,
                vendor=mine.vendor,
                simulated=mine.simulated,
                state=PluginState.LOADED,
            )
            return Entry(record, earlier.cls)
        reason = _describe_difference(mine, installed)
        if installed.state is not PluginState.DISCOVERED:
            reason = (
                f"{reason}, and what is installed can't be used: {installed.reason}"
            )
        return Entry(
            replace(mine, state=PluginState.RESTART_NEEDED, reason=reason), earlier.cls
        )
    if installed.entry_point.partition(":")[0] in sys.modules:
        # Importing again would give the old code.
        for other in previous.values():
            mine = other.record
            has_imported = other.cls is not None or (
                mine.state is PluginState.BROKEN and mine.entry_point
            )
            if (
                has_imported
                and is_same_distribution(installed.distribution, mine.distribution)
                and installed.origin != mine.origin
            ):
                reason = f"{_describe_difference(mine, installed)}: restart it"
                return Entry(
                    replace(
                        installed,
                        version=mine.version,
                        state=PluginState.BROKEN,
                        reason=reason,
                    )
                )
    return Entry(installed)


def _describe_difference(mine: PluginRecord, installed: PluginRecord) -> str:
    return (
        f"{installed.origin} is installed, but this process has imported {mine.origin}"
    )
