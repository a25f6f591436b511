"""Inventory of a registry: what was discovered, one record for each EP.

What becomes of a record when it is discovered again is known to `refreshing`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from epctx_core.registry.discovery import discover
from epctx_core.registry.lookup import Selection
from epctx_core.registry.records import PluginRecord, RecordKey, normalised

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider

_log = logging.getLogger("epctx.registry")

CLASS_VARIABLE = "EPCTX_PLUGIN"
"""Classes without a package, `module:Class`, separated by commas."""
PATH_VARIABLE = "EPCTX_PLUGIN_PATH"
"""Folders and wheels, separated as in PATH."""


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
        entry_points: False to look only at places that the host added.
        given: gives the EP types that have a class without a package.
    """

    def __init__(self, *, entry_points: bool, given: Callable[[], Collection[str]]) -> None:
        """Make an empty one; reads nothing yet."""
        self._given = given
        self.selection = Selection()
        self._entry_points = entry_points
        self._places: list[Path] = []
        self._found: dict[RecordKey, Entry] | None = None
        self._seen: dict[RecordKey, PluginRecord] = {}
        self._imported: dict[RecordKey, Entry] = {}

    def entries(self) -> dict[RecordKey, Entry]:
        """Return what there is.

        Raises:
            InvalidArgument: the environment's preference is malformed. Nothing is kept then, so that the
                next call tries again.
        """
        if self._found is None:
            selection = Selection.from_environment(os.environ)
            records = list(self._records())
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

                for sentence in misspelt(selection, records, self._given()):
                    _log.warning("%s.", sentence)
        return self._found

    def _records(self) -> Iterator[PluginRecord]:
        """Yield what is found; a distribution at a place goes before one of its name that is installed."""
        named = os.environ.get(PATH_VARIABLE, "") if self._entry_points else ""
        hidden: set[str] = set()
        if self._places or named:
            from epctx_core.registry.uninstalled import absolute, records_at

            from_environment = [absolute(item) for item in named.split(os.pathsep) if item]
            for place in dict.fromkeys([*self._places, *from_environment]):
                for record in records_at(place):
                    hidden.add(normalised(record.distribution or ""))
                    yield record
        for record in discover() if self._entry_points else ():
            if normalised(record.distribution or "") not in hidden:
                yield record

    def forget(self) -> None:
        """Have everything found anew; what was imported stays known."""
        self._found = None

    def add(self, path: str | os.PathLike[str]) -> list[RecordKey]:
        """Add a place; return the keys of what it brings.

        Raises:
            NoSuchFile, InvalidArgument: see `discover_at`.
        """
        from epctx_core.registry.uninstalled import absolute, discover_at

        place = absolute(path)
        records = discover_at(place)
        if place not in self._places:
            self._places.append(place)
            self.forget()
        return [record.key for record in records]

    def imported(self, entry: Entry) -> None:
        """Remember what an import gave; what was found anew while it went on does not know of it."""
        key = entry.record.key
        self._imported[key] = Entry(entry.record, entry.cls)
        if self._found is not None and self._found.get(key) is not entry:
            self.forget()
