"""What was found: EPs of installed packages and of places that were added, and what became of them in this process.

Owns what a refresh forgets and what it cannot: what was imported stays imported. Its owner holds a lock
around every call. Knows no class of the host, and imports no plugin.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from epctx_core.errors import EpctxError, InvalidArgument
from epctx_core.registry.discovery import discover
from epctx_core.registry.loading import Imported, removed
from epctx_core.registry.places import discover_at
from epctx_core.registry.records import (
    PluginRecord,
    PluginState,
    RecordKey,
    normalised,
    same_distribution,
)
from epctx_core.registry.selection import Selection

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider

PATH_VARIABLE = "EPCTX_PLUGIN_PATH"
"""Folders and wheels, separated as in PATH."""
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
        entry_points: False to look only at places that the host added.
        given: gives the EP types that have a class without a package.
    """

    def __init__(self, *, entry_points: bool, given: Callable[[], Collection[str]]) -> None:
        """Make an empty one; reads nothing yet."""
        self._given = given
        self.selection = Selection(preferred={})
        self._entry_points = entry_points
        self._places: list[Path] = []
        self._found: dict[RecordKey, Entry] | None = None
        self._seen: dict[RecordKey, PluginRecord] = {}
        self._imported: dict[RecordKey, Imported] = {}

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
                found.setdefault(record.key, self._entry(record))
            found |= {key: self._removed(key, records) for key in self._seen.keys() - found.keys()}
            self._seen |= {record.key: record for record in records if record.entry_point}
            self.selection, self._found = selection, found
            for warning in selection.unknown_names(records, self._given()) if self._entry_points else ():
                _log.warning("%s.", warning)
        return self._found

    def _records(self) -> Iterator[PluginRecord]:
        """Yield what is found; a distribution at a place goes before one of its name that is installed."""
        named = os.environ.get(PATH_VARIABLE, "") if self._entry_points else ""
        from_environment = [_absolute(item) for item in named.split(os.pathsep) if item]
        hidden: set[str] = set()
        for place in dict.fromkeys([*self._places, *from_environment]):
            for record in _records_at(place):
                hidden.add(normalised(record.distribution or ""))
                yield record
        for record in discover() if self._entry_points else ():
            if normalised(record.distribution or "") not in hidden:
                yield record

    def _entry(self, record: PluginRecord) -> Entry:
        """Return the entry of a record, given what this process imported under its key before."""
        earlier = self._imported.get(record.key)
        if earlier is not None:
            return Entry(*earlier.met_again(record))
        beside = (other.met_beside(record) for other in self._imported.values())
        return Entry(next((changed for changed in beside if changed is not None), record))

    def _removed(self, key: RecordKey, records: Sequence[PluginRecord]) -> Entry:
        instead = next((r for r in records if same_distribution(r.distribution, key.distribution)), None)
        earlier = self._imported.get(key)
        if earlier is None or earlier.cls is None:
            return Entry(removed(self._seen[key], imported=False, instead=instead))
        return Entry(removed(earlier.record, imported=True, instead=instead))

    def forget(self) -> None:
        """Have everything found anew; what was imported stays known."""
        self._found = None

    def add(self, path: str | os.PathLike[str]) -> list[RecordKey]:
        """Add a place; return the keys of what it brings.

        Raises:
            NoSuchFile, InvalidArgument: see `discover_at`.
        """
        place = _absolute(path)
        records = discover_at(place)
        if place not in self._places:
            self._places.append(place)
            self.forget()
        return [record.key for record in records]

    def imported(self, entry: Entry) -> None:
        """Remember what an import gave; what was found anew while it went on does not know of it."""
        key = entry.record.key
        self._imported[key] = Imported(record=entry.record, cls=entry.cls)
        if self._found is not None and self._found.get(key) is not entry:
            self.forget()


def _absolute(path: str | os.PathLike[str]) -> Path:
    """Return a path that stays the same wherever the host goes; a link stays one, so that it may be set anew."""
    try:
        return Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute leaves `..` in
    except TypeError:
        raise InvalidArgument(f"a folder or a wheel is named by a path, not {path!r:.80}.") from None


def _records_at(place: Path) -> list[PluginRecord]:
    """Return the records of a place, a BROKEN one if it brings none."""
    try:
        return discover_at(place)
    except EpctxError as error:
        broken = PluginRecord(
            name=str(place),
            sources=(str(place),),
            distribution=None,
            version=None,
            place=str(place),
            state=PluginState.BROKEN,
            reason=error.message.rstrip("."),
            entry_point="",
        )
        return [broken]
