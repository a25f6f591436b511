"""Inventory of a registry: what was discovered, one entry for each EP, and what becomes of it when that is done again.

What was imported stays imported, what is gone is REMOVED.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING

from epctx_core.registry.discovery import discover
from epctx_core.registry.lookup import Selection
from epctx_core.registry.records import PluginRecord, PluginState, RecordKey, same_distribution

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider

_log = logging.getLogger("epctx.registry")


class Entry:
    """One EP: its record before selection, its class once loaded, and the lock under which that happens."""

    def __init__(self, record: PluginRecord, cls: type[ExecutionProvider] | None = None) -> None:
        self.record = record
        self.cls = cls
        # Apart from the registry's lock: an import may start threads that ask the registry something.
        self.loading = RLock()


class Inventory:
    """Found EPs by key; read on first use and after `forget`.

    Args:
        entry_points: False to look only into folders and wheels that the host added.
    """

    def __init__(self, *, entry_points: bool) -> None:
        """Make an empty one; reads nothing yet."""
        self.selection = Selection()
        self.paths: list[str] = []
        self._entry_points = entry_points
        self._found: dict[RecordKey, Entry] | None = None
        self._seen: dict[RecordKey, PluginRecord] = {}
        self._imported: dict[RecordKey, Entry] = {}

    def entries(self, given: Collection[str] = ()) -> dict[RecordKey, Entry]:
        """Return what there is.

        Args:
            given: EP types that have a class without a package, which the environment may name, too.

        Raises:
            InvalidArgument: the environment's preference is malformed. Nothing is kept then, so that the
                next call tries again.
        """
        if self._found is None:
            selection = Selection.from_environment(os.environ)
            records = discover(None if self._entry_points else self.paths)
            found: dict[RecordKey, Entry] = {}
            for record in records:  # of two records with one key, the EP comes before a complaint about it
                if record.key not in found:
                    found[record.key] = self._met_again(record)
            for key in self._seen.keys() - found.keys():
                found[key] = Entry(self._removed(key, records))
            self._seen |= {record.key: record for record in records if record.entry_point}
            self.selection, self._found = selection, found
            if self._entry_points and selection != Selection():
                from epctx_core.registry.explaining import misspelt

                for sentence in misspelt(selection, records, given):
                    _log.warning("%s.", sentence)
        return self._found

    def forget(self) -> None:
        """Have everything found anew; what was imported stays known."""
        self._found = None

    def imported(self, entry: Entry) -> None:
        """Remember what an import gave; what was found anew while it went on does not know of it."""
        key = entry.record.key
        self._imported[key] = Entry(entry.record, entry.cls)
        if self._found is not None and self._found.get(key) is not entry:
            self.forget()

    def _removed(self, key: RecordKey, records: list[PluginRecord]) -> PluginRecord:
        """Return the record of an EP that nothing installed brings; its distribution may bring another one instead."""
        instead = next((r for r in records if same_distribution(r.distribution, key.distribution)), None)
        earlier = self._imported.get(key)
        loaded = earlier is not None and earlier.cls is not None
        record = earlier.record if earlier is not None and loaded else self._seen[key]
        gone = (
            f"; {instead.origin}, which is installed now, does not bring it"
            if instead
            else " and is not installed any more"
        )
        reason = f"{record.origin} was {'imported' if loaded else 'found earlier'}{gone}"
        return replace(record, state=PluginState.REMOVED, reason=reason)

    def _met_again(self, found: PluginRecord) -> Entry:
        """Return the entry for what was found, given what this process has imported and no refresh can take back.

        A class that was loaded stays, with the record of what it was loaded from.
        """
        earlier = self._imported.get(found.key)
        if earlier is None:
            return Entry(self._beside_imported(found))
        mine, discovered = earlier.record, found.state is PluginState.DISCOVERED
        same = (found.version, found.entry_point) == (mine.version, mine.entry_point)
        if earlier.cls is not None and same:
            known = replace(found, vendor=mine.vendor, simulated=mine.simulated)
            return Entry(replace(known, state=PluginState.LOADED), earlier.cls)
        if earlier.cls is None and (same or not discovered or not _in_memory(mine)):
            return Entry(found)
        reason = _differs(mine, found)
        if earlier.cls is None:
            return Entry(
                replace(mine, state=PluginState.BROKEN, reason=f"{mine.reason}; {reason}: restart it")
            )
        if not discovered:
            reason = f"{reason}, and what is installed can't be used: {found.reason}"
        return Entry(replace(mine, state=PluginState.RESTART_NEEDED, reason=reason), earlier.cls)

    def _beside_imported(self, found: PluginRecord) -> PluginRecord:
        """Return the record of an EP whose module another version may have left in memory, beside an EP of that one.

        Its class can only come from that module: it is that version's, or not there at all.
        """
        if found.state is not PluginState.DISCOVERED or not _in_memory(found):
            return found
        for mine in (other.record for other in self._imported.values()):
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
