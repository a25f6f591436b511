"""The registry: which EPs there are, in what state, and the class behind each.

Owns the states and when a plugin is imported; reading metadata, selection and wording are its neighbours'.
Knows nothing of graphs, files or sessions.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace

from epctx_core.errors import EpctxError, InvalidArgument, NotFound, suggestion
from epctx_core.plugin import Availability, ExecutionProvider, Purpose
from epctx_core.registry import lookup
from epctx_core.registry.discovery import CPU_PROVIDER, discover
from epctx_core.registry.guard import blame, plugin_error
from epctx_core.registry.loading import Imported, import_provider
from epctx_core.registry.records import (
    PluginRecord,
    PluginState,
    RecordKey,
    means,
    same_distribution,
    sort_key,
)
from epctx_core.registry.routing import route_source
from epctx_core.registry.selection import Selection
from epctx_core.registry.validation import check_provider_class

_log = logging.getLogger("epctx.registry")


class _Entry:
    """One EP: its record before selection, its class once loaded, and the lock under which that happens."""

    def __init__(self, record: PluginRecord, cls: type[ExecutionProvider] | None = None) -> None:
        self.record = record
        self.cls = cls
        # Apart from the registry's lock: an import may start threads that ask the registry something.
        self.loading = threading.RLock()


class Registry:
    """All EPs that a process can use: those of installed packages, and classes that the host registers.

    Entry points and the environment (EPCTX_PLUGINS, EPCTX_DISABLE_PLUGINS, EPCTX_PREFER) are read on first
    use and by `refresh`, and no plugin is imported before it is named. Every method may be called from
    any thread.

    Args:
        entry_points: False to know only what the host registers.
    """

    def __init__(self, *, entry_points: bool = True) -> None:
        """Make a registry; reads nothing yet."""
        self._lock = threading.RLock()
        self._entry_points = entry_points
        self._selection = Selection(preferred={})
        self._preferred: dict[str, str] = {}
        self._host: dict[str, _Entry] = {}
        self._found: dict[RecordKey, _Entry] | None = None
        self._imported: dict[RecordKey, Imported] = {}
        self._selected: dict[RecordKey, PluginRecord] | None = None

    # -- what there is ---------------------------------------------------------------------------

    def records(self) -> list[PluginRecord]:
        """Return a record for each EP, usable or not, by EP type and distribution. Imports no plugin.

        Raises:
            InvalidArgument: EPCTX_PREFER is malformed.
        """
        return list(self._view().values())

    def available(self) -> list[str]:
        """Return the EP types that can be used by name, `CPUExecutionProvider` last. Imports no plugin."""
        return [*(record.name for record in self.records() if record.usable), CPU_PROVIDER]

    def refresh(self) -> None:
        """Forget what was discovered and discover again; classes that the host registered stay."""
        importlib.invalidate_caches()
        with self._lock:
            self._found = self._selected = None
            self._discovered()

    def _discovered(self) -> dict[RecordKey, _Entry]:
        with self._lock:
            if self._found is None:
                # Both reads may raise; nothing is kept then, so that the next call tries again.
                selection = Selection.from_environment(os.environ)
                found = discover() if self._entry_points else []
                self._found = {}
                for record in found:  # of two records with one key, the EP comes before a complaint about it
                    self._found.setdefault(record.key, self._entry(record))
                for key, earlier in self._imported.items():
                    if key not in self._found and earlier.cls is not None:
                        self._found[key] = _Entry(earlier.removed())
                self._selection = selection
                for warning in selection.unknown_names(found) if self._entry_points else ():
                    _log.warning("%s.", warning)
            return self._found

    def _entry(self, record: PluginRecord) -> _Entry:
        """Return the entry of a discovered record, given what this process imported under its key before."""
        earlier = self._imported.get(record.key)
        return _Entry(record) if earlier is None else _Entry(*earlier.met_again(record))

    def _view(self) -> dict[RecordKey, PluginRecord]:
        """Return every record as selection leaves it, in order."""
        with self._lock:
            found = self._discovered()
            if self._selected is None:
                records = self._selection.apply(
                    [entry.record for entry in found.values()],
                    chosen=self._preferred,
                    host_names=self._host.keys(),
                )
                records += [entry.record for entry in self._host.values()]
                self._selected = {record.key: record for record in sorted(records, key=sort_key)}
            return self._selected

    # -- what the host says ----------------------------------------------------------------------

    def register(self, cls: type[ExecutionProvider], *, sources: Sequence[str] = ()) -> None:
        """Add a class without an entry point.

        Args:
            cls: the EP's class.
            sources: further source keys, besides the EP type.

        Raises:
            PluginError: the class breaks the contract.
            InvalidArgument: the name is taken, or `sources` is not a sequence of texts.
        """
        check_provider_class(cls)
        if isinstance(sources, str) or not all(isinstance(s, str) and s for s in sources):
            raise InvalidArgument(
                f"{cls.name}: sources must be a sequence of non-empty texts, not {sources!r}."
            )
        record = PluginRecord(
            name=cls.name,
            sources=tuple(dict.fromkeys((cls.name, *sources))),
            distribution=None,
            version=None,
            state=PluginState.LOADED,
            entry_point=f"{cls.__module__}:{cls.__qualname__}",
        )
        with self._lock:
            self._refuse_taken(cls.name)
            self._host[cls.name] = _Entry(record, cls)
            self._selected = None

    def _refuse_taken(self, name: str) -> None:
        if name == CPU_PROVIDER:
            raise InvalidArgument(f"the EP type {name} is built in; give the class another name.", ep=name)
        for record in self._view().values():
            if record.name == name and (record.usable or record.state is PluginState.DUPLICATE):
                raise InvalidArgument(
                    f"the EP type {name} is taken: {record.origin}.",
                    ep=name,
                    hint=f"Call unregister({name!r}) first."
                    if record.distribution is None
                    else f"Set EPCTX_DISABLE_PLUGINS={record.distribution} to use the class of your own.",
                )

    def unregister(self, name: str) -> None:
        """Take back what `register` added.

        Raises:
            NotFound: the host registered no class of that EP type.
        """
        with self._lock:
            if name not in self._host:
                raise NotFound(
                    f"no class of the EP type {name!r} was registered.{suggestion(name, self._host)}",
                    ep=name,
                    hint="Plugins of installed packages are kept out with EPCTX_DISABLE_PLUGINS.",
                )
            del self._host[name]
            self._selected = None

    def prefer(self, ep: str, *, distribution: str) -> None:
        """Choose the distribution that brings an EP type when several do; wins over EPCTX_PREFER.

        Raises:
            InvalidArgument: that distribution is not installed or does not bring it.
        """
        with self._lock:
            bringing = [entry.record for entry in self._discovered().values() if means(ep, entry.record.name)]
            chosen = [r for r in bringing if same_distribution(r.distribution, distribution)]
            if not chosen:
                origins = lookup.listed([r.origin for r in bringing])
                raise InvalidArgument(
                    f"the distribution {distribution!r} does not bring {ep}.",
                    ep=ep,
                    hint=f"Who brings it: {origins}.",
                )
            for record in chosen:
                self._preferred[record.name] = distribution
            self._selected = None

    # -- from a name or a source to a class ------------------------------------------------------

    def resolve(self, name: str) -> PluginRecord:
        """Return the record that a host's name means; imports nothing.

        Args:
            name: an EP type exactly, or without case `X` or `XExecutionProvider`, or either of them
                after `<distribution>:`, which chooses among several that bring it.

        Raises:
            InvalidArgument: nothing of that name is installed, or it fits several EP types.
            PluginError: it is broken, disabled or otherwise unusable, or two distributions bring it.
        """
        return self._chosen(lookup.pick_by_name(name, self.records()))

    def _chosen(self, record: PluginRecord) -> PluginRecord:
        """Return a record as one that the host picked, so no longer a duplicate."""
        if record.state is not PluginState.DUPLICATE:
            return record
        return self._entry_of(record).record

    def _entry_of(self, record: PluginRecord) -> _Entry:
        with self._lock:
            of_host = record.distribution is None
            entry = self._host.get(record.name) if of_host else self._discovered().get(record.key)
        if entry is None:
            raise plugin_error(f"{record.label} is not known any more: unregistered or uninstalled.", record)
        return entry

    def load(self, record: PluginRecord) -> type[ExecutionProvider]:
        """Return the class behind a record, imported and checked on the first call only.

        Raises:
            PluginError: it can't be imported or breaks the contract (its record then says so), or
                its state forbids loading. The plugin's own exception is the cause.
        """
        entry = self._entry_of(record)
        with entry.loading:
            self._refuse_unusable(record.key)
            return entry.cls or self._import(entry)

    def _refuse_unusable(self, key: RecordKey) -> None:
        # A duplicate may be loaded: who has its record has chosen.
        current = self._view().get(key)
        if current is not None and not current.usable and current.state is not PluginState.DUPLICATE:
            raise lookup.unusable([current])

    def _import(self, entry: _Entry) -> type[ExecutionProvider]:
        """Import an entry's class; runs without the registry's lock, once for each entry."""
        outcome = import_provider(entry.record)
        entry.cls = outcome.cls
        self._keep(entry, outcome.record)
        if outcome.cls is None:
            raise lookup.unusable([outcome.record]) from outcome.error
        return outcome.cls

    def _keep(self, entry: _Entry, record: PluginRecord) -> None:
        with self._lock:
            entry.record = record
            self._selected = None
            if record.distribution is not None:
                self._imported[record.key] = Imported(record=record, cls=entry.cls)

    def availability(self, record: PluginRecord, purpose: Purpose) -> Availability:
        """Ask a class whether this machine has what a purpose needs; loads it.

        The record is UNAVAILABLE from then on if the answer was no, until a later answer is yes.

        Raises:
            PluginError: the class can't be loaded, raised, or answered with something else.
        """
        cls = self.load(record)
        with blame(record, "availability"):
            answer = cls.availability(purpose)
        if not isinstance(answer, Availability):
            raise plugin_error(
                f"{record.label} returned {type(answer).__name__} from availability, not an Availability.",
                record,
                hook="availability",
                hint="Return Availability(True), or Availability(False, reason=…, hint=…).",
            )
        entry = self._entry_of(record)
        state = PluginState.LOADED if answer.available else PluginState.UNAVAILABLE
        reason = (
            ""
            if answer.available
            else f"not available for {purpose.value}: {answer.reason or 'no reason given'}"
        )
        self._keep(entry, replace(entry.record, state=state, reason=reason))
        return answer

    def route(self, source: str, among: Sequence[PluginRecord] | None = None) -> PluginRecord | None:
        """Return the record that takes a node's source: by exact name, else by an exact source key.

        Only where no name is equal are those that differ by case imported and asked
        (`accepts_source`); nothing else is imported. One that fails to import takes nothing, and its
        record then says why.

        Args:
            source: as the node says it.
            among: the host's explicit list in order of priority, or None for every usable EP.

        Raises:
            PluginError: several distributions could take it and the host has not chosen.
        """
        records = self.records() if among is None else [self._named(record) for record in among]
        return route_source(
            source, records, ordered=among is not None, accepts=lambda record: self._accepts(record, source)
        )

    def _named(self, record: PluginRecord) -> PluginRecord:
        """Return the present state of a record that the host named, so one that is no undecided duplicate."""
        return self._chosen(self._view().get(record.key, record))

    def _accepts(self, record: PluginRecord, source: str) -> bool:
        try:
            cls = self.load(record)
            with blame(record, "accepts_source"):
                return bool(cls.accepts_source(source))
        except EpctxError as error:
            _log.warning("%s", error.message)
            entry = self._entry_of(record)
            if entry.record.usable:  # it was the question that failed, not the import
                self._keep(entry, replace(entry.record, state=PluginState.BROKEN, reason=error.message))
            return False

    def explain_missing(self, source: str) -> tuple[str, str]:
        """Return why `route` found nobody for a source, and what to do about it; imports nothing."""
        return lookup.explain(source, self.records())


default_registry = Registry()
"""The one that sessions and the command line use."""
