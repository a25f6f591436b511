"""Inventory of a registry: what was discovered, one entry for each EP.

What becomes of it when that is done again is known to `refreshing`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from threading import RLock
from typing import TYPE_CHECKING

from epctx_core.registry.discovery import discover
from epctx_core.registry.lookup import Selection

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider
    from epctx_core.registry.records import PluginRecord, RecordKey

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
                found.setdefault(record.key, Entry(record))
            if self._seen:
                from epctx_core.registry.refreshing import met_again

                found = met_again(found, self._seen, self._imported)
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
