"""What becomes of EPs when they are looked for again: what was imported stays imported, what is gone is REMOVED."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from epctx_core.registry.inventory import Entry
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
    records = [entry.record for entry in found.values()]
    for key in seen.keys() - found.keys():
        instead = next((r for r in records if same_distribution(r.distribution, key.distribution)), None)
        earlier = imported.get(key)
        if earlier is None or earlier.cls is None:
            entries[key] = Entry(_removed(seen[key], "found earlier", instead))
        else:
            entries[key] = Entry(_removed(earlier.record, "imported", instead))
    return entries


def _removed(record: PluginRecord, was: str, instead: PluginRecord | None) -> PluginRecord:
    """Return the record of an EP that nothing installed brings; its distribution may bring another one instead."""
    gone = (
        f"; {instead.origin}, which is installed now, does not bring it"
        if instead
        else " and is not installed any more"
    )
    return replace(record, state=PluginState.REMOVED, reason=f"{record.origin} was {was}{gone}")


def _entry(found: PluginRecord, imported: Mapping[RecordKey, Entry]) -> Entry:
    earlier = imported.get(found.key)
    if earlier is not None:
        return _again(earlier, found)
    beside = (_beside(other.record, found) for other in imported.values())
    return Entry(next((changed for changed in beside if changed is not None), found))


def _again(earlier: Entry, found: PluginRecord) -> Entry:
    """Return the entry for what was found under the same name and distribution as something imported.

    A class that was loaded stays, with the record of what it was loaded from.
    """
    mine, discovered = earlier.record, found.state is PluginState.DISCOVERED
    same = (found.version, found.entry_point, found.place) == (mine.version, mine.entry_point, mine.place)
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


def _beside(mine: PluginRecord, found: PluginRecord) -> PluginRecord | None:
    """Return the record of another EP whose module another version has left in memory; None where none has.

    Its class can only come from that module: it is that version's, or not there at all.
    """
    if found.state is not PluginState.DISCOVERED or not _in_memory(found):
        return None
    if not same_distribution(found.distribution, mine.distribution) or found.origin == mine.origin:
        return None
    reason = _differs(mine, found)
    module, _, attribute = found.entry_point.partition(":")
    if attribute.partition(".")[0] not in getattr(sys.modules.get(module), "__dict__", {}):
        return replace(found, state=PluginState.BROKEN, reason=f"{reason}: restart it")
    return replace(
        found, version=mine.version, place=mine.place, state=PluginState.RESTART_NEEDED, reason=reason
    )


def _differs(mine: PluginRecord, found: PluginRecord) -> str:
    return f"{found.origin} is installed, but this process has imported {mine.origin}"


def _in_memory(record: PluginRecord) -> bool:
    """Whether its module stayed, so that importing again would give the old code."""
    return record.entry_point.partition(":")[0] in sys.modules
