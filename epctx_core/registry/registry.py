"""Registry of EPs with their states and classes, and functions over a registry as hosts
call them: the process-wide one is the default.

Owns the states and decides when a plugin is imported; metadata, selection and errors
are in the modules beside it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from epctx_core._version import __version__
from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    NoSuchFile,
    NotFound,
    PluginError,
    suggestion,
)
from epctx_core.options.choices import CPU_EP
from epctx_core.plugin.types import Availability
from epctx_core.process import PerProcess
from epctx_core.registry.discovery import (
    Entry,
    discover,
    invalidate_caches,
    merge_entries,
)
from epctx_core.registry.guard import (
    call_class_method,
    find_problem,
    import_provider,
    mark_broken,
    plugin_error,
)
from epctx_core.registry.lookup import (
    Selection,
    explain_missing,
    explain_unusable,
    find_by_name,
    pick_by_name,
    qualify,
    route_source,
    unusable_error,
)
from epctx_core.registry.records import (
    PluginRecord,
    PluginState,
    RecordKey,
    add_availability,
    is_name_of,
    make_record,
    sort_key,
)

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider, Purpose
    from epctx_core.registry.entries import HostPlugin
    from epctx_core.registry.records import PluginRecord

_log = logging.getLogger("epctx.registry")


class Registry:
    """All EPs that a process can use: those of installed packages, and those that the
    host adds.

    Entry points and the environment (EPCTX_PLUGINS, EPCTX_DISABLE_PLUGINS,
    EPCTX_PREFER) are read on first use and by `refresh`. No plugin is imported before
    it is named. Every method may be called from any thread.

    Args:
        entry_points: False for a registry of only what the host registers or adds.
    """

    def __init__(self, *, entry_points: bool = True) -> None:
        """Make a registry; read nothing yet."""
        # A child may inherit the lock of a thread that it does not have, and the tables
        # between two steps of a change. Each step leaves them whole; what is derived
        # from them is dropped before the first.
        self._lock = PerProcess(threading.RLock).get
        self._entry_points = entry_points
        self._paths: list[str] = []
        self._selection = Selection()
        self._found: dict[RecordKey, Entry] = {}
        self._is_stale = True
        self._registered: dict[str, Entry] = {}
        self._preferred: dict[str, str] = {}
        self._noticed: set[str] = set()
        self._selected: dict[RecordKey, PluginRecord] | None = None
        self._host_plugins: tuple[HostPlugin, ...] = ()

    def __getstate__(self) -> Sequence[Any]:
        """Return what makes the same registry in another process."""
        classes = [(e.cls, e.record.sources) for e in self._registered.values()]
        plugins = [host.plugin for host in self._host_plugins]
        return self._entry_points, self._paths, self._preferred, classes, plugins

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Make the registry of another process here, which finds modules as it does."""
        entry_points, paths, preferred, classes, plugins = state
        Registry.__init__(self, entry_points=entry_points)
        self._paths += paths
        self._preferred.update(preferred)
        for cls, sources in classes:
            self.register(cls, sources=sources)
        for plugin in plugins:
            self.register_host_plugin(plugin)

    # -- records

    def records(self) -> list[PluginRecord]:
        """Return a record for each EP, usable or not, by EP name and distribution;
        import no plugin.

        Raises:
            InvalidArgument: EPCTX_PREFER is malformed.
        """
        return list(self._select().values())

    def available(self) -> list[str]:
        """Return the names of usable EPs, `CPUExecutionProvider` last.

        If several distributions provide one EP, imports those that are not known to be
        simulated or real.
        """
        records = self._settle_duplicates(lambda _record: True)
        return [*(record.name for record in records if record.usable), CPU_EP]

    def refresh(self) -> None:
        """Discover EPs and read the environment again; registered classes and added
        paths stay.
        """
        invalidate_caches()
        with self._lock():
            self._selected = None
            self._is_stale = True
            self._select()

    def _select(self) -> dict[RecordKey, PluginRecord]:
        """Return all records after selection, in order."""
        with self._lock():
            if self._selected is None:
                installed = [entry.record for entry in self._discover().values()]
                records = self._selection.apply(
                    installed,
                    chosen=self._preferred.values(),
                    registered=self._registered,
                )
                records += [entry.record for entry in self._registered.values()]
                self._selected = {
                    record.key: record for record in sorted(records, key=sort_key)
                }
            return self._selected

    def _discover(self) -> dict[RecordKey, Entry]:
        """Return the EPs of distributions; discover them if that has not been done, or
        is out of date.

        Raises:
            InvalidArgument: EPCTX_PREFER is malformed. Nothing is kept then, so that
                the next call tries again.
        """
        if self._is_stale:
            selection = Selection.from_environment(os.environ)
            records = discover(None if self._entry_points else self._paths)
            self._found = merge_entries(records, self._found)
            self._selection = selection
            self._is_stale = False
            if self._entry_points:
                registered = [e.record for e in self._registered.values()]
                for sentence in selection.list_misspelt([*records, *registered]):
                    _log.warning("%s.", sentence)
        return self._found

    # -- plugins of hosts

    @property
    def host_plugins(self) -> tuple[HostPlugin, ...]:
        """Plugins that wrap the hooks of EPs in sessions and compiles made from now on,
        the outermost first.
        """
        return self._host_plugins

    def register_host_plugin(self, plugin: object) -> None:
        """Wrap hooks of EPs in all sessions and compiles that are made from now on; see
        `epctx docs host-plugins`.

        Args:
            plugin: an object with methods named as hooks and marked with
                `@hookimpl(wrapper=True)`. What was registered before is around it.

        Raises:
            InvalidArgument: it has none, or one that is wrong; or it is registered.
        """
        from epctx_core.registry.entries import check_host_plugin

        host = check_host_plugin(plugin)
        with self._lock():
            if any(each.plugin is plugin for each in self._host_plugins):
                raise InvalidArgument(f"the host plugin {host.name} is registered.")
            self._host_plugins = (*self._host_plugins, host)

    def unregister_host_plugin(self, plugin: object) -> None:
        """Leave a plugin out of sessions and compiles that are made from now on.

        Raises:
            InvalidArgument: it is not registered.
        """
        with self._lock():
            remaining = tuple(h for h in self._host_plugins if h.plugin is not plugin)
            if remaining == self._host_plugins:
                raise InvalidArgument(
                    f"no host plugin {type(plugin).__qualname__} is registered."
                )
            self._host_plugins = remaining

    @contextmanager
    def host_plugin(self, plugin: object) -> Iterator[None]:
        """Register a host's plugin for a block; see `register_host_plugin`."""
        self.register_host_plugin(plugin)
        try:
            yield
        finally:
            self.unregister_host_plugin(plugin)

    # -- changes by the host

    def register(
        self, cls: type[ExecutionProvider], *, sources: Sequence[str] = ()
    ) -> None:
        """Add a class without an entry point.

        Args:
            cls: the EP's class.
            sources: further source keys, besides the EP name.

        Raises:
            PluginError: the class breaks the contract.
            InvalidArgument: the name is taken, or `sources` is not a sequence of texts.
        """
        if problem := find_problem(cls):
            fault, hint = problem
            raise PluginError(
                f"{cls!r:.160} is not a valid Execution Provider: {fault}.", hint=hint
            )
        if isinstance(sources, str) or not all(
            isinstance(s, str) and s for s in sources
        ):
            raise InvalidArgument(
                f"{cls.name}: sources are a sequence of non-empty texts, not "
                f"{sources!r}."
            )
        if cls.name == CPU_EP:
            raise InvalidArgument(
                f"the EP name {CPU_EP} is built in; give the class another.", ep=CPU_EP
            )
        with self._lock():
            for record in self._select().values():
                # What was found in a package that knows nothing of epctx gives way.
                if (
                    record.name == cls.name
                    and record.finder is None
                    and (record.usable or record.state is PluginState.DUPLICATE)
                ):
                    raise InvalidArgument(
                        f"the EP name {cls.name} is taken: {record.origin}.",
                        ep=cls.name,
                        hint=f"Call unregister({cls.name!r}) first, or set "
                        f"EPCTX_DISABLE_PLUGINS={cls.name} if a package provides it.",
                    )
            self._selected = None
            self._registered[cls.name] = Entry(make_record(cls, sources), cls)

    def unregister(self, name: str) -> None:
        """Remove a class that `register` added; what uses it keeps it.

        Raises:
            NotFound: the host registered no class of that name.
        """
        with self._lock():
            entry = self._registered.get(name)
            if entry is None:
                raise NotFound(
                    f"no class of the EP name {name!r} was "
                    f"registered.{suggestion(name, self._registered)}",
                    ep=name,
                    hint="EPCTX_DISABLE_PLUGINS disables plugins of packages.",
                )
            self._selected = None
            del self._registered[name]

    @contextmanager
    def temporary(
        self, cls: type[ExecutionProvider], *, sources: Sequence[str] = ()
    ) -> Iterator[PluginRecord]:
        """Register a class for the duration of a block; yield its record.

        The class is removed at the end even if a session that was made in the block is
        still open: that session keeps it.

        Args:
            cls: the EP's class.
            sources: further source keys, besides the EP name.

        Raises:
            PluginError, InvalidArgument: see `register`.

        Examples:
            >>> with registry.temporary(AcmeExecutionProvider):
            ...     session = InferenceSession(
            ...         "model.onnx", providers=["Acme"], registry=registry
            ...     )
        """
        self.register(cls, sources=sources)
        entry = self._registered[cls.name]
        try:
            yield entry.record
        finally:
            with self._lock():
                if self._registered.get(cls.name) is entry:
                    # Else the block has unregistered it.
                    self.unregister(cls.name)

    def add_path(self, path: str | os.PathLike[str]) -> list[PluginRecord]:
        """Use the plugins of a folder or a wheel without installing them; import
        nothing yet.

        The path is appended to `sys.path`: installed packages have precedence.

        Args:
            path: a folder made by `pip install --target`, or a wheel without native
                modules, which Python cannot load from an archive.

        Returns:
            The records of its EPs.

        Raises:
            NoSuchFile: the path does not exist.
            InvalidArgument: it provides no EP.
        """
        try:
            location = os.path.abspath(path)  # noqa: PTH100 - Path.absolute leaves `..` in
        except TypeError:
            raise InvalidArgument(
                f"expected the path of a folder or a wheel, not {path!r:.80}."
            ) from None

        hint = (
            "Pass a folder made by `pip install --target`, or a wheel; install a "
            "project with `pip install -e`."
        )
        invalidate_caches()
        added = discover([location])
        if not added:
            exists = os.path.exists(location)  # noqa: PTH110 - False for a text that is not a path
            problem = "provides no Execution Provider" if exists else "does not exist"
            error = InvalidArgument if exists else NoSuchFile
            raise error(f"{location!r} {problem}.", path=location, hint=hint)

        with self._lock():
            self._selected = None
            if location not in sys.path:
                sys.path.append(location)
            if location not in self._paths:
                self._paths.append(location)
            self._is_stale = True
            view = self._select()

        return [view[record.key] for record in added if record.key in view]

    def prefer(self, ep: str, *, distribution: str) -> None:
        """Choose the distribution of an EP that several provide; has precedence over
        EPCTX_PREFER.

        Raises:
            InvalidArgument: that distribution is not installed or does not provide it.
        """
        with self._lock():
            records = [entry.record for entry in self._discover().values()]
            chosen = find_by_name(qualify(ep, distribution), records)
            if not chosen:
                providing = [r.origin for r in find_by_name(ep, records)]
                raise InvalidArgument(
                    f"the distribution {distribution!r} does not provide {ep}.",
                    ep=ep,
                    hint=f"Distributions that do: {', '.join(providing) or 'none'}.",
                )
            self._selected = None
            for record in chosen:
                self._preferred[record.name] = f"{distribution}:{record.name}"

    # -- from a name or a source to a class

    def find(self, name: str) -> list[PluginRecord]:
        """Return the records that match a host's name, usable or not; import nothing.

        Args:
            name: an EP name, `X` for `XExecutionProvider`, or either of them after
                `<distribution>:`; ignoring case.
        """
        return find_by_name(name, self.records())

    def resolve(self, name: str) -> PluginRecord:
        """Return the record that matches a host's name; import nothing unless several
        distributions provide it.

        Of those, the only one that is not simulated is used.

        Args:
            name: an exact EP name, or ignoring case `X` or `XExecutionProvider`, or
                either of them after `<distribution>:`, which chooses among several that
                provide it.

        Raises:
            InvalidArgument: no such EP is installed, or the name matches several EPs.
            PluginError: it is broken, disabled or otherwise unusable, or two
                distributions provide it.
        """
        if ":" in name:
            return self._resolve_choice(pick_by_name(name, self.records()))
        return self._log_choice(
            pick_by_name(
                name,
                self._settle_duplicates(lambda record: is_name_of(name, record.name)),
            )
        )

    def _settle_duplicates(
        self, is_concerned: Callable[[PluginRecord], bool]
    ) -> list[PluginRecord]:
        """Load the duplicates concerned, to learn which are simulated; return all
        records.
        """
        for record in self.records():
            if record.undecided and record.simulated is None and is_concerned(record):
                with suppress(PluginError):
                    self.load(record)
        return self.records()

    def _log_choice(self, record: PluginRecord) -> PluginRecord:
        """Return a record; log once that it is used instead of simulated ones, unless
        the host chose it.
        """
        rivals = [
            r.origin
            for r in self.records()
            if r.name == record.name and r.undecided and r.simulated
        ]
        if rivals and record.name not in self._noticed:
            self._noticed.add(record.name)
            _log.info(
                "%s is used; %s is simulated. To use that one, name it as "
                "'<distribution>:%s'.",
                record.label,
                " and ".join(rivals),
                record.name,
            )
        return record

    def _resolve_choice(self, record: PluginRecord) -> PluginRecord:
        """Return a record that the host chose, so no longer as a duplicate."""
        if record.state is not PluginState.DUPLICATE:
            return record
        return self._find_entry(record).record

    def _find_entry(self, record: PluginRecord) -> Entry:
        with self._lock():
            entry = (
                self._registered.get(record.name)
                if record.distribution is None
                else self._discover().get(record.key)
            )
        if entry is None:
            raise plugin_error(
                f"{record.label} is no longer known: unregistered or uninstalled.",
                record,
            )
        return entry

    def load(self, record: PluginRecord) -> type[ExecutionProvider]:
        """Return the class of a record; import and check it on the first call.

        Raises:
            PluginError: it can't be imported or breaks the contract (its record then
                says so), or its state forbids loading. The plugin's own exception is
                the cause.
        """
        entry = self._find_entry(record)
        with entry.loading:
            # A duplicate may be loaded: the caller has chosen its record.
            current = self._select().get(record.key, entry.record)
            error = None
            if current.usable or current.state is PluginState.DUPLICATE:
                if entry.cls is None:
                    current, entry.cls, error = import_provider(entry.record)
                    self._store(entry, current)
                if entry.cls is not None:
                    return entry.cls

            raise unusable_error([current]) from error

    def _store(self, entry: Entry, record: PluginRecord) -> None:
        with self._lock():
            self._selected = None
            entry.record = record
            if (
                record.distribution is not None
                and self._found.get(record.key) is not entry
            ):
                # A discovery during this import does not know of it.
                self._found[record.key], self._is_stale = entry, True

    def _change(
        self, record: PluginRecord, make: Callable[[PluginRecord], PluginRecord]
    ) -> None:
        """Replace the record of a loaded class by one made of it, unless it was found
        meanwhile that it is gone.
        """
        with self._lock():
            entry = self._find_entry(record)
            if entry.record.usable:
                self._store(entry, make(entry.record))

    def availability(self, record: PluginRecord, purpose: Purpose) -> Availability:
        """Return whether an EP is available on this machine for a purpose; load its
        class.

        The record keeps the result for each purpose.

        Raises:
            PluginError: the class can't be loaded, raised, or returned another type.
        """
        cls = self.load(record)
        try:
            answer: Availability = call_class_method(
                record, cls, "availability", purpose
            )
        except EpctxError as error:
            # No variable holds the cause, whose traceback has this frame.
            failed = mark_broken(
                record, error.__cause__ or error, "its availability failed"
            )
            # Users of a record put its label before the reason, and a full stop after.
            reason = failed.reason.splitlines()[0].replace(f"{record.label} ", "")
            answer = Availability(False, reason=reason.rstrip("."))
            self._change(
                record,
                lambda now: add_availability(now, purpose, answer, failed.traceback),
            )
            raise
        self._change(record, lambda now: add_availability(now, purpose, answer))
        return answer

    def route(
        self, source: str, among: Sequence[PluginRecord] | None = None
    ) -> PluginRecord | None:
        """Return the record whose EP accepts a node's source: by exact name, else by an
        exact source key.

        Only if no name is equal, those that differ by case are imported and
        `accepts_source` decides; nothing else is imported but duplicates, as in
        `resolve`. An EP that fails to import accepts nothing; its record then has the
        reason.

        Args:
            source: the node's attribute.
            among: the host's explicit list in order of priority, or None for every
                usable EP.

        Raises:
            PluginError: several distributions could accept it, and the host has chosen
                none.
        """
        if among is not None:
            # The host named them, so that none is an undecided duplicate.
            present = self._select()
            records = [
                self._resolve_choice(present.get(record.key, record))
                for record in among
            ]
        else:
            records = self._settle_duplicates(lambda record: record.resembles(source))
        chosen = route_source(
            source,
            records,
            ordered=among is not None,
            accepts=lambda record: self._accepts(record, source),
        )
        if chosen is None or among is not None:
            return chosen
        return self._log_choice(chosen)

    def _accepts(self, record: PluginRecord, source: str) -> bool:
        try:
            cls = self.load(record)
            accepts: bool = call_class_method(record, cls, "accepts_source", source)
        except EpctxError as error:
            _log.warning("%s", error.message)
            cause = error.__cause__ or error
            # A failed import is in the record.
            self._change(
                record, lambda now: mark_broken(now, cause, "accepts_source failed")
            )
            return False
        return accepts

    def explain_missing(
        self, source: str, among: Sequence[str] | None = None
    ) -> tuple[str, str]:
        """Return the reason why `route` found no EP for a source among some (None:
        all), and a hint; import nothing.
        """
        return explain_missing(source, self.records(), among)

    def misspelt(self) -> list[str]:
        """Return a sentence for each name in EPCTX_PLUGINS, EPCTX_DISABLE_PLUGINS or
        EPCTX_PREFER that matches no record.
        """
        records = self.records()  # reads the environment, too
        return self._selection.list_misspelt(records)

    @staticmethod
    def explain_unusable(record: PluginRecord) -> tuple[str, str]:
        """Return the reason why a record cannot be used, without a full stop, and a
        hint.
        """
        return explain_unusable(record)


default_registry: Registry = Registry()
"""The registry that sessions and the command line use."""


def get_available_providers(*, registry: Registry = default_registry) -> list[str]:
    """Return the names of the EPs that can be requested, the CPU EP last, simulated
    ones included.

    Imports no installed plugin, unless two distributions provide one EP: those are
    loaded to learn which are simulated. `PluginRecord.simulated` is None where that is
    not known; `get_ep_metadata` loads an EP and tells.
    """
    return registry.available()


def plugins(*, registry: Registry = default_registry) -> list[PluginRecord]:
    """Return a record for every EP, usable or not; import no installed plugin."""
    return registry.records()


def refresh_plugins(*, registry: Registry = default_registry) -> None:
    """Discover installed EPs again, and read the environment again.

    An EP that was installed since can be used at once; one that is gone is REMOVED. An
    imported EP of which another version is installed now stays in use, as
    RESTART_NEEDED.
    """
    registry.refresh()


def register_execution_provider(
    cls: type[ExecutionProvider],
    *,
    sources: Sequence[str] = (),
    registry: Registry = default_registry,
) -> None:
    """Add an EP class without an entry point.

    Args:
        cls: the EP's class.
        sources: further source keys, besides the EP name.
        registry: the registry to add it to.

    Raises:
        PluginError: the class breaks the contract.
        InvalidArgument: its name is taken.
    """
    registry.register(cls, sources=sources)


def unregister_execution_provider(
    name: str, *, registry: Registry = default_registry
) -> None:
    """Remove an EP class that was registered by the host; see `Registry.unregister`.

    Raises:
        NotFound: there is none of that name.
    """
    registry.unregister(name)


def temporary_execution_provider(
    cls: type[ExecutionProvider],
    *,
    sources: Sequence[str] = (),
    registry: Registry = default_registry,
) -> AbstractContextManager[PluginRecord]:
    """Register an EP class for the duration of a block; see `Registry.temporary`."""
    return registry.temporary(cls, sources=sources)


def add_plugin_path(
    path: str | os.PathLike[str], *, registry: Registry = default_registry
) -> list[PluginRecord]:
    """Use the plugins of a folder or a wheel without installing them; see
    `Registry.add_path`.
    """
    return registry.add_path(path)


def get_device() -> str:
    """Return "CPU": EPs choose their devices themselves."""
    return "CPU"


def get_all_providers() -> list[str]:
    """Return the EPs of all installed plugins, usable or not, the CPU EP last; imports
    no plugin.
    """
    return [*dict.fromkeys(record.name for record in plugins()), CPU_EP]


def get_version_string() -> str:
    """Return epctx's version."""
    return __version__
