"""Inventory of a registry: what was discovered and what the host registered, one record each.

A refresh forgets what is gone, but what was imported stays imported.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from epctx_core.errors import EpctxError, Fail, InvalidArgument, NotFound, suggestion
from epctx_core.registry import development
from epctx_core.registry.discovery import discover, discover_at
from epctx_core.registry.loading import Imported, check_provider_class, removed
from epctx_core.registry.lookup import Selection
from epctx_core.registry.records import (
    PluginRecord,
    PluginState,
    RecordKey,
    normalised,
    same_distribution,
    simulates,
)

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider

_log = logging.getLogger("epctx.registry")


class Uses:
    """Remembers users by EP; callable from any thread.

    Takes no lock: a session may end within any allocation, when the collector finds it, and each change
    here is a single step of one list.
    """

    def __init__(self) -> None:
        """Begin with no user."""
        self._users: dict[RecordKey, list[str]] = {}

    @contextmanager
    def held(self, key: RecordKey, by: str) -> Iterator[None]:
        """Count a user while the block lasts.

        Args:
            key: of the EP's record.
            by: who, for messages: `a session of 'resnet'`.
        """
        users = self._users.setdefault(key, [])
        users.append(by)
        try:
            yield
        finally:
            users.remove(by)

    def of(self, key: RecordKey) -> list[str]:
        """Return who uses an EP, equal users once with their number."""
        users = list(self._users.get(key, ()))
        counts = {user: users.count(user) for user in users}
        return [user if count == 1 else f"{user} ({count} times)" for user, count in counts.items()]


class GivenClasses:
    """Entries by EP type; those of EPCTX_PLUGIN that cannot be used, by what the variable says.

    Args:
        changed: called after each change.
    """

    def __init__(self, *, changed: Callable[[], None]) -> None:
        """Begin without any."""
        self._changed = changed
        self.uses = Uses()
        self._host: dict[str, Entry] = {}
        self._developed: dict[str, Entry] | None = None
        # Apart from the owner's lock, like an entry's: classes are imported under it.
        self._developing = threading.RLock()

    def entries(self) -> dict[str, Entry]:
        """Return all, the host's before those under development."""
        return {**(self._developed or {}), **self._host}

    def givers(self) -> dict[str, str]:
        """Return EP type to a sentence that says who gave its class."""
        named = f"{development.VARIABLE} names a class of this EP type"
        return {name: named for name, entry in (self._developed or {}).items() if entry.cls} | dict.fromkeys(
            self._host, "the host registered a class of this EP type itself"
        )

    def develop(self, environment: Mapping[str, str], *, again: bool = False) -> None:
        """Import what EPCTX_PLUGIN names; what is done already is done `again` only if asked for.

        Who asks meanwhile waits, but for the plugin's own import, which finds the classes of before.
        """
        with self._developing:
            before = self._developed
            if before is not None and not again:
                return
            self._developed = before or {}
            try:
                outcomes = development.import_developed(environment, taken=self._host.keys())
            except BaseException:  # the user's interrupt
                self._developed = before
                raise
            self._developed = {o.record.name: Entry(o.record, o.cls) for o in outcomes}
            self._changed()
        for outcome in outcomes:
            if outcome.cls is None:
                _log.warning("%s: %s", development.VARIABLE, outcome.record.reason)

    def add(self, cls: type[ExecutionProvider], sources: Sequence[str]) -> Entry:
        """Add a class of the host's; its name is free."""
        record = PluginRecord(
            name=cls.name,
            sources=tuple(dict.fromkeys((cls.name, *sources))),
            distribution=None,
            version=None,
            vendor=cls.vendor or None,
            simulated=simulates(cls),
            state=PluginState.LOADED,
            entry_point=f"{cls.__module__}:{cls.__qualname__}",
        )
        self._host[cls.name] = Entry(record, cls)
        self._changed()
        return self._host[cls.name]

    def remove(self, name: str) -> None:
        """Take a class of the host's back.

        Raises:
            NotFound: the host registered none of that EP type.
            Fail: somebody uses it.
        """
        if name not in self._host:
            raise NotFound(
                f"no class of the EP type {name!r} was registered.{suggestion(name, self._host)}",
                ep=name,
                hint="Plugins of installed packages are kept out with EPCTX_DISABLE_PLUGINS.",
            )
        users = self.uses.of(RecordKey(name, None))
        if users:
            raise Fail(
                f"{name} cannot be unregistered while it is used by {', '.join(users)}.",
                ep=name,
                hint="First close the sessions and share groups, and wait for the compiles.",
            )
        del self._host[name]
        self._changed()

    def end(self, entry: Entry) -> None:
        """Take a temporary class back, whoever uses it, unless that was done."""
        name = entry.record.name
        if self._host.get(name) is not entry:
            return
        users = self.uses.of(entry.record.key)
        if users:
            _log.warning("%s was taken back while it is used by %s.", name, ", ".join(users))
        del self._host[name]
        self._changed()


def check_given(cls: type[ExecutionProvider], sources: Sequence[str]) -> None:
    """Check what a host registers.

    Raises:
        PluginError: the class breaks the contract.
        InvalidArgument: `sources` is not a sequence of texts.
    """
    check_provider_class(cls)
    if isinstance(sources, str) or not all(isinstance(s, str) and s for s in sources):
        raise InvalidArgument(f"{cls.name}: sources must be a sequence of non-empty texts, not {sources!r}.")


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
