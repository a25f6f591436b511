"""What becomes of EPs when they are looked for again: what was imported stays imported, what is gone is REMOVED."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from epctx_core.registry.discovery import Entry
from epctx_core.registry.records import PluginRecord, PluginState, RecordKey, same_distribution


def met_again(
    found: Mapping[RecordKey, Entry],
    seen: Mapping[RecordKey, PluginRecord],
    imported: Mapping[RecordKey, Entry],
) -> dict[RecordKey, Entry]:
    """Return what is found now, given what was found before, by key.

    Args:
        found: as discovered now.
        seen: what was discovered ever.
        imported: what this process has imported, each as it was then; no refresh can take it back.
    """
    entries = {key: _entry(entry.record, imported) for key, entry in found.items()}
    for key in seen.keys() - found.keys():
        # The distribution may bring another one instead.
        others = (
            entry.record.origin
            for entry in found.values()
            if same_distribution(entry.record.distribution, key.distribution)
        )
        instead = next(others, None)
        gone = (
            f"; {instead}, which is installed now, does not bring it"
            if instead
            else " and is not installed any more"
        )
        earlier = imported.get(key)
        loaded = earlier is not None and earlier.cls is not None
        record = earlier.record if earlier is not None and loaded else seen[key]
        reason = f"{record.origin} was {'imported' if loaded else 'found earlier'}{gone}"
        entries[key] = Entry(replace(record, state=PluginState.REMOVED, reason=reason))
    return entries


def _entry(found: PluginRecord, imported: Mapping[RecordKey, Entry]) -> Entry:
    """Return the entry for what was found, given what this process has imported and no refresh can take back.

    A class that was loaded stays, with the record of what it was loaded from.
    """
    earlier = imported.get(found.key)
    if earlier is None:
        return Entry(_beside(found, imported))
    mine, discovered = earlier.record, found.state is PluginState.DISCOVERED
    same = (found.version, found.entry_point) == (mine.version, mine.entry_point)
    if earlier.cls is not None and same:
        known = replace(found, vendor=mine.vendor, simulated=mine.simulated)
        return Entry(replace(known, state=PluginState.LOADED), earlier.cls)
    if earlier.cls is None and (same or not discovered or not _in_memory(mine)):
        return Entry(found)
    reason = _differs(mine, found)
    if earlier.cls is None:
        return Entry(replace(mine, state=PluginState.BROKEN, reason=f"{mine.reason}; {reason}: restart it"))
    if not discovered:
        reason = f"{reason}, and what is installed can't be used: {found.reason}"
    return Entry(replace(mine, state=PluginState.RESTART_NEEDED, reason=reason), earlier.cls)


def _beside(found: PluginRecord, imported: Mapping[RecordKey, Entry]) -> PluginRecord:
    """Return the record of an EP whose module another version may have left in memory, beside an EP of that one.

    Its class can only come from that module: it is that version's, or not there at all.
    """
    if found.state is not PluginState.DISCOVERED or not _in_memory(found):
        return found
    for mine in (other.record for other in imported.values()):
        if same_distribution(found.distribution, mine.distribution) and found.origin != mine.origin:
            reason = _differs(mine, found)
            module, _, attribute = found.entry_point.partition(":")
            if attribute.partition(".")[0] in getattr(sys.modules.get(module), "__dict__", {}):
                state = PluginState.RESTART_NEEDED
                return replace(found, version=mine.version, state=state, reason=reason)
            return replace(found, state=PluginState.BROKEN, reason=f"{reason}: restart it")
    return found


def _differs(mine: PluginRecord, found: PluginRecord) -> str:
    return f"{found.origin} is installed, but this process has imported {mine.origin}"


def _in_memory(record: PluginRecord) -> bool:
    """Whether its module stayed, so that importing again would give the old code."""
    return record.entry_point.partition(":")[0] in sys.modules
