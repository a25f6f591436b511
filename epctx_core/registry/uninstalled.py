"""EPs that no installed distribution brings: those of a folder or a wheel, and classes without a package.

Such classes are registered by a host, or under development and named by EPCTX_PLUGIN.
"""

from __future__ import annotations

import importlib.abc
import logging
import os
import sys
import threading
import tomllib
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from epctx_core.errors import EpctxError, Fail, InvalidArgument, NoSuchFile, NotFound, PluginError, suggestion
from epctx_core.options.choices import CPU_EP
from epctx_core.registry.discovery import (
    EP_GROUP,
    SOURCE_GROUP,
    EntryPoint,
    class_path,
    distributions,
    mentions_group,
    read_distribution,
)
from epctx_core.registry.inventory import CLASS_VARIABLE, Entry
from epctx_core.registry.loading import ROOTS, Outcome, find_problems, import_provider
from epctx_core.registry.lookup import names_in
from epctx_core.registry.records import PluginRecord, PluginState, RecordKey, simulates, sort_key

if TYPE_CHECKING:
    from types import ModuleType

    from epctx_core.plugin import ExecutionProvider

_log = logging.getLogger("epctx.registry")


class InstalledDistribution(Protocol):
    """What the library's and the standard library's distributions have in common, as far as it is used."""

    @property
    def name(self) -> str:
        """Name as the metadata spells it; raises where there is none."""

    @property
    def version(self) -> str:
        """Version as the metadata spells it; raises where there is none."""

    @property
    def entry_points(self) -> Any:
        """All entry points; raises where their file is malformed."""

    def read_text(self, filename: str) -> str | None:
        """Return a metadata file's text, or None if there is no such file."""


_NATIVE = frozenset({".so", ".pyd", ".dll", ".dylib"})
_PROJECT = "pyproject.toml"
_ACCEPTED = (
    "Give a wheel, a folder that `pip install --target` filled, or a project folder whose pyproject.toml has "
    f'[project.entry-points."{EP_GROUP}"].'
)


def discover_at(place: Path) -> list[PluginRecord]:
    """Return a record for each EP that a folder or a wheel brings; imports nothing.

    Raises:
        NoSuchFile: there is nothing at that path.
        InvalidArgument: it brings no EP, cannot be read, or is a wheel with native modules.
    """
    if not place.exists():
        raise NoSuchFile(f"there is no folder or wheel {str(place)!r}.", path=place, hint=_ACCEPTED)
    found = [dist for dist in _distributions_at(place) if mentions_group(dist)]
    records = [replace(r, place=str(place)) for dist in found for r in read_distribution(dist)]
    if not records:
        raise InvalidArgument(f"{str(place)!r} brings no Execution Provider.", path=place, hint=_ACCEPTED)
    return sorted(records, key=sort_key)


def _distributions_at(place: Path) -> Sequence[InstalledDistribution]:
    if place.is_file():
        _check_wheel(place)
    elif (place / _PROJECT).is_file():
        return [_Project(place)]
    return list(distributions(path=[str(place)]))


def _check_wheel(wheel: Path) -> None:
    if wheel.suffix != ".whl":
        raise InvalidArgument(f"{str(wheel)!r} is neither a folder nor a wheel.", path=wheel, hint=_ACCEPTED)
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise InvalidArgument(f"the wheel {str(wheel)!r} cannot be read: {error}.", path=wheel) from error
    native = next((name for name in names if _NATIVE & set(PurePosixPath(name).suffixes)), None)
    if native is not None:
        raise InvalidArgument(
            f"the wheel {str(wheel)!r} has native modules ({native}), which Python loads from no archive.",
            path=wheel,
            hint=f"Install it, or unpack it (pip install --target FOLDER {wheel.name}) and give the folder.",
        )


class _Project:
    """A source tree, as discovery reads a distribution."""

    def __init__(self, folder: Path) -> None:
        try:
            project = tomllib.loads((folder / _PROJECT).read_text("utf-8"))["project"]
            self.name: str = project["name"]
            self._groups: dict[str, dict[str, str]] = project.get("entry-points", {})
            self._entries = list(self._read())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(
                f"{str(folder / _PROJECT)!r} cannot be read as a plugin's: {type(error).__name__}: {error}.",
                path=folder,
                hint=_ACCEPTED,
            ) from error
        self._version: Any = project.get("version")

    def _read(self) -> Iterator[EntryPoint]:
        for group in (EP_GROUP, SOURCE_GROUP):
            for name, value in self._groups.get(group, {}).items():
                yield EntryPoint(name=name, value=value, group=group)

    @property
    def version(self) -> str:
        """As the project says; KeyError where its build back end finds out."""
        if not isinstance(self._version, str):
            raise KeyError("version")
        return self._version

    @property
    def entry_points(self) -> list[EntryPoint]:
        return self._entries

    def read_text(self, filename: str) -> str | None:
        return "\n".join(f"[{group}]" for group in self._groups) if filename == "entry_points.txt" else None


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return a path that stays the same wherever the host goes; a link stays one, so that it may be set anew."""
    try:
        return Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute leaves `..` in
    except TypeError:
        raise InvalidArgument(f"a folder or a wheel is named by a path, not {path!r:.80}.") from None


def records_at(place: Path) -> list[PluginRecord]:
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


def import_root(place: str) -> str:
    """Return what Python has to search for a place's packages: itself, or a source tree's `src`."""
    source = os.path.join(place, "src")  # noqa: PTH118 - as in sys.path, a text
    is_tree = os.path.isfile(os.path.join(place, _PROJECT)) and os.path.isdir(source)  # noqa: PTH112, PTH113, PTH118
    return source if is_tree else place


class _TopLevelFinder(importlib.abc.MetaPathFinder):
    """Finds the packages that entry points of a place name there, before any that is installed."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - Python's signature
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        root = ROOTS.get(fullname)
        return None if root is None else PathFinder.find_spec(fullname, [root], target)


_finder = _TopLevelFinder()


def find_top_level(top: str, place: str) -> None:
    """Have Python find a package, and what else lies beside it, at a place.

    The package itself is taken from there, also where one of that name is installed; all others only if
    they are not installed, so that a folder's copy of numpy never becomes the host's.

    Args:
        top: the package of an entry point.
        place: the folder or wheel.

    Raises:
        ImportError: this process has imported a package of that name from elsewhere.
    """
    root = import_root(place)
    origin = getattr(getattr(sys.modules.get(top), "__spec__", None), "origin", None)
    if origin is not None and not os.path.realpath(origin).startswith(os.path.realpath(root) + os.sep):
        raise ImportError(
            f"this process has imported {top} from {origin}, so it cannot have the one in {place} too"
        )
    ROOTS[top] = root
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    if root not in sys.path:
        sys.path.append(root)


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
    """Classes without a package, by EP type; those of EPCTX_PLUGIN that cannot be used, by what the variable says.

    Args:
        changed: called after each change.
        looked: whether the environment was found to name none.
    """

    def __init__(self, *, changed: Callable[[], None], looked: bool) -> None:
        """Begin without any."""
        self._changed = changed
        self.uses = Uses()
        self._host: dict[str, Entry] = {}
        self._developed: dict[str, Entry] | None = {} if looked else None
        # Apart from the owner's lock, like an entry's: classes are imported under it.
        self._developing = threading.RLock()

    def entries(self) -> dict[str, Entry]:
        """Return all, the host's before those under development."""
        return {**(self._developed or {}), **self._host}

    def givers(self) -> dict[str, str]:
        """Return EP type to a sentence that says who gave its class."""
        named = f"{CLASS_VARIABLE} names a class of this EP type"
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
                outcomes = _import_developed(environment, taken=self._host.keys())
            except BaseException:  # the user's interrupt
                self._developed = before
                raise
            self._developed = {o.record.name: Entry(o.record, o.cls) for o in outcomes}
            self._changed()
        for outcome in outcomes:
            if outcome.cls is None:
                _log.warning("%s: %s", CLASS_VARIABLE, outcome.record.reason)

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
    problems = find_problems(cls)
    if problems:
        kind = f"an object of type {type(cls).__name__}"
        raise PluginError(
            f"{f'{cls.__module__}:{cls.__qualname__}' if isinstance(cls, type) else kind} is no valid Execution "
            f"Provider: {'; '.join(problem.what for problem in problems)}.",
            hint=" ".join(dict.fromkeys(problem.hint for problem in problems)),
        )
    if isinstance(sources, str) or not all(isinstance(s, str) and s for s in sources):
        raise InvalidArgument(f"{cls.name}: sources must be a sequence of non-empty texts, not {sources!r}.")


def _import_developed(environment: Mapping[str, str], taken: Collection[str]) -> list[Outcome]:
    """Import the classes that the environment names; one that cannot be used is a BROKEN record.

    Only a class knows its EP type, so this is the one variable that has plugins imported. The record of
    a class that cannot be used has the text in the variable as its name.

    Args:
        environment: where to look for the variable.
        taken: EP types that the host registered itself.
    """
    outcomes: list[Outcome] = []
    for given in dict.fromkeys(names_in(environment.get(CLASS_VARIABLE, ""))):
        outcome = _import_named(given)
        earlier = [other.record.name for other in outcomes if other.cls is not None]
        problem = _conflict(outcome.record.name, taken, earlier) if outcome.cls is not None else ""
        outcomes.append(Outcome(record=_broken_class(given, problem)) if problem else outcome)
    return outcomes


def _import_named(given: str) -> Outcome:
    target = class_path(given)
    if target is None:
        return Outcome(
            record=_broken_class(given, f"{CLASS_VARIABLE} has {given!r}, not of the form module:Class")
        )
    outcome = import_provider(_developed(given, target), any_name=True)
    if outcome.cls is None:
        return outcome
    return replace(outcome, record=replace(outcome.record, sources=(outcome.cls.name,)))


def _conflict(name: str, taken: Collection[str], earlier: Collection[str]) -> str:
    if name == CPU_EP:
        return f"the EP type {CPU_EP} is built in"
    if name in taken:
        return f"the host registered a class of the EP type {name} itself"
    return f"{CLASS_VARIABLE} names two classes of the EP type {name}" if name in earlier else ""


def _developed(given: str, target: str) -> PluginRecord:
    return PluginRecord(
        name=given,
        sources=(given,),
        distribution=None,
        version=None,
        place=CLASS_VARIABLE,
        state=PluginState.DISCOVERED,
        entry_point=target,
    )


def _broken_class(given: str, reason: str) -> PluginRecord:
    return replace(_developed(given, ""), state=PluginState.BROKEN, reason=reason)
