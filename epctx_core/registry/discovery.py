"""Discovery: the entry points of installed distributions and of folders that a host adds, without importing a plugin.

Reads metadata only, and lets no distribution disturb another.
"""

from __future__ import annotations

import importlib.abc
import os
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from importlib_metadata import EntryPoint, PackageNotFoundError, distribution, distributions

from epctx_core.errors import InvalidArgument, NoSuchFile
from epctx_core.registry.records import PluginRecord, PluginState, normalised, same_distribution, sort_key

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["EntryPoint", "InstalledDistribution", "PackageNotFoundError", "distribution", "distributions"]


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


@dataclass(frozen=True, kw_only=True)
class KnownSource:
    """A source and who brings it.

    Attributes:
        ep: the EP type.
        aliases: other sources that stand for it.
        vendor: whose hardware it stands for.
        package: the distribution that brings a simulated back end for it, or None if there is none of ours.
        reserved: the name kept for the vendor's own distribution.
        spelling: the one source accepted, or None where case does not count.
    """

    ep: str
    aliases: tuple[str, ...] = ()
    vendor: str
    package: str | None = None
    reserved: str
    spelling: str | None = None

    def hint(self, source: str) -> str:
        """Say how to get an EP for this source, and that it is not the vendor's."""
        if self.package is None:
            return (
                f"epctx brings no package for {self.ep} ({self.vendor}): install the vendor's plugin for epctx "
                f"if there is one ({self.reserved} is reserved for it), or use an onnxruntime built with that EP."
            )
        text = (
            f"{self.package} brings a simulated one (pip install {self.package}), which does not read "
            f"payloads made for {self.vendor} hardware. The name {self.reserved} is reserved for the vendor."
        )
        if self.spelling not in (None, source):
            text += f" It takes only the source {self.spelling!r}, exactly; this node says {source!r}."
        return text


_KNOWN = (
    KnownSource(
        ep="QNNExecutionProvider",
        aliases=("QNN",),
        vendor="Qualcomm",
        package="epctx-sim-qnn",
        reserved="epctx-qnn",
    ),
    KnownSource(
        ep="OpenVINOExecutionProvider",
        vendor="Intel",
        package="epctx-sim-openvino",
        reserved="epctx-openvino",
        spelling="OpenVINOExecutionProvider",
    ),
    KnownSource(
        ep="VitisAIExecutionProvider",
        vendor="AMD",
        package="epctx-sim-vitisai",
        reserved="epctx-vitisai",
        spelling="VitisAIExecutionProvider",
    ),
    KnownSource(ep="MorphiZenExecutionProvider", vendor="AMD", reserved="epctx-morphizen"),
    KnownSource(ep="TensorrtExecutionProvider", vendor="NVIDIA", reserved="epctx-tensorrt"),
    KnownSource(ep="NvTensorRTRTXExecutionProvider", vendor="NVIDIA", reserved="epctx-tensorrt-rtx"),
)

KNOWN_SOURCES: Mapping[str, KnownSource] = MappingProxyType(
    {source.casefold(): known for known in _KNOWN for source in (known.ep, *known.aliases)}
)
"""By casefolded source: each EP of onnxruntime that writes EPContext nodes."""


def is_simulated(distribution: str) -> bool:
    """Whether a distribution is one of the packages whose EPs are simulated, by its name."""
    return any(same_distribution(known.package, distribution) for known in _KNOWN)


def known_source(source: str) -> KnownSource | None:
    """Return who brings a node's source, compared without case."""
    return KNOWN_SOURCES.get(source.casefold())


def known_name(name: str) -> KnownSource | None:
    """Return who brings an EP that a host named: `X` or `XExecutionProvider`, without case."""
    return known_source(name) or known_source(f"{name}ExecutionProvider")


EP_GROUP = "epctx.execution_providers"
"""One entry for each EP: its name is the EP type, its value `module:Class`."""
SOURCE_GROUP = "epctx.ep_sources"
"""One entry for each further source key of an EP: its value is that of the EP's own entry."""
CPU_PROVIDER = "CPUExecutionProvider"
"""Built in, so no plugin may bring it."""
EP_NAME = re.compile(r"[A-Za-z0-9_.-]+")

_TARGET = re.compile(r"\s*(?P<module>[\w.]+)\s*:\s*(?P<attribute>[\w.]+)\s*(\[.*\]\s*)?")
_UNNAMED = "unnamed distribution"
# METADATA is missing, can't be decoded or lacks the field; versions of the library raise differently.
_UNREADABLE = (KeyError, OSError, TypeError, ValueError)


def discover() -> list[PluginRecord]:
    """Return a record for each EP of every installed distribution, by EP type and distribution.

    States are DISCOVERED, or BROKEN where the metadata is wrong. No plugin is imported.
    """
    records = [record for dist in _with_plugins() for record in read_distribution(dist)]
    return sorted(records, key=sort_key)


def _with_plugins() -> Iterator[InstalledDistribution]:
    """Yield the distributions that name one of our groups; of one found twice, the first on sys.path."""
    seen: set[str] = set()
    for dist in distributions():
        if not mentions_group(dist):
            continue
        name = _name(dist)
        if name is None:
            yield dist
        elif normalised(name) not in seen:
            seen.add(normalised(name))
            yield from _first_on_path(name, dist)


def _first_on_path(name: str, found: InstalledDistribution) -> Iterator[InstalledDistribution]:
    # The one found here may be hidden by another version, earlier on sys.path, that has no entry points.

    first: InstalledDistribution
    try:
        first = distribution(name)
    except PackageNotFoundError:  # its folder is not named after it, so only the walk finds it
        first = found
    if mentions_group(first):
        yield first


def mentions_group(dist: InstalledDistribution) -> bool:
    """Whether the entry points are any of our business; also true if they can't be decoded but name us."""
    try:
        text = dist.read_text("entry_points.txt") or ""
    except UnicodeDecodeError as error:
        return EP_GROUP.encode() in error.object or SOURCE_GROUP.encode() in error.object
    except OSError:
        return False
    return EP_GROUP in text or SOURCE_GROUP in text


def _name(dist: InstalledDistribution) -> str | None:
    try:
        return dist.name or None
    except _UNREADABLE:
        return None


def _version(dist: InstalledDistribution) -> str | None:
    try:
        return dist.version or None
    except _UNREADABLE:
        return None


def read_distribution(dist: InstalledDistribution) -> list[PluginRecord]:
    """Return the records of one distribution; a single broken one if its entry points can't be read."""
    name, version = _name(dist), _version(dist)
    try:
        entries = [entry for entry in dist.entry_points if entry.group in (EP_GROUP, SOURCE_GROUP)]
    except Exception as error:  # noqa: BLE001 - whatever the parser trips over must stay with this distribution
        label = name or _UNNAMED
        return [_broken(label, label, version, _why_unreadable(dist, error))]
    records = list(_records(entries, name or _UNNAMED, version))
    if name is not None:
        return records
    reason = f"the metadata of the distribution that brings it has no name, so reinstall it: {dist}"
    return [_broken(r.name, _UNNAMED, version, reason) for r in records]


def _why_unreadable(dist: InstalledDistribution, error: Exception) -> str:
    """Name the line that is no `name = value`, which the parser's own error does not."""
    if isinstance(error, UnicodeDecodeError):
        return "its entry_points.txt is not UTF-8"
    for number, line in enumerate((dist.read_text("entry_points.txt") or "").splitlines(), start=1):
        text = line.strip()
        if text and not text.startswith(("#", "[")) and "=" not in text:
            return f"line {number} of its entry_points.txt is not of the form name = module:Class: {text!r}"
    return f"its entry_points.txt cannot be read ({type(error).__name__}: {error})"


def _records(entries: list[EntryPoint], distribution: str, version: str | None) -> Iterator[PluginRecord]:
    providers = [entry for entry in entries if entry.group == EP_GROUP]
    sources = [entry for entry in entries if entry.group == SOURCE_GROUP]
    names = [entry.name for entry in providers]
    for name in dict.fromkeys(names):
        mine = [entry for entry in providers if entry.name == name]
        yield _record(mine, sources, distribution, version)
    yield from _orphans(sources, providers, distribution, version)


def _record(
    mine: list[EntryPoint], sources: list[EntryPoint], distribution: str, version: str | None
) -> PluginRecord:
    """Return the record of one EP type, for which `mine` holds one entry unless the metadata is wrong."""
    entry = mine[0]
    target = _target(entry)
    problem = _problem(mine)
    if problem or target is None:
        return _broken(entry.name, distribution, version, problem)
    further = sorted({s.name for s in sources if _target(s) == target} - {entry.name})
    return PluginRecord(
        name=entry.name,
        sources=(entry.name, *further),
        distribution=distribution,
        version=version,
        state=PluginState.DISCOVERED,
        entry_point=target,
        simulated=is_simulated(distribution) or None,
    )


def _problem(mine: list[EntryPoint]) -> str:
    name, value = mine[0].name, mine[0].value
    if len(mine) > 1:
        return f"its group {EP_GROUP} has {name!r} more than once"
    if not EP_NAME.fullmatch(name):
        return f"the EP type {name!r} may only have letters, digits, '_', '.' and '-'"
    if name == CPU_PROVIDER:
        return f"the EP type {CPU_PROVIDER} is built in and can't be brought by a plugin"
    if _target(mine[0]) is None:
        return f"its entry point {name!r} has the value {value!r}, which is not of the form module:Class"
    return ""


def _orphans(
    sources: Iterable[EntryPoint], providers: list[EntryPoint], distribution: str, version: str | None
) -> Iterator[PluginRecord]:
    """Yield a broken record for each source key whose class is no EP of the same distribution."""
    targets = {_target(entry) for entry in providers} - {None}
    for entry in sources:
        if _target(entry) not in targets:
            reason = (
                f"its group {SOURCE_GROUP} gives the source {entry.name!r} to {entry.value!r}, "
                f"which its group {EP_GROUP} does not have"
            )
            yield _broken(entry.name, distribution, version, reason)


def _target(entry: EntryPoint) -> str | None:
    # Not entry.module and entry.attr: for what does not match, each version of the library fails differently.
    return class_path(entry.value)


def class_path(text: str) -> str | None:
    """Return `module:Class` without spaces and extras, or None if a text is not of that form."""
    match = _TARGET.fullmatch(text)
    return f"{match['module']}:{match['attribute']}" if match else None


def _broken(name: str, distribution: str, version: str | None, reason: str) -> PluginRecord:
    return PluginRecord(
        name=name,
        sources=(name,),
        distribution=distribution,
        version=version,
        state=PluginState.BROKEN,
        reason=reason,
        entry_point="",
    )


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


def import_root(place: str) -> str:
    """Return what Python has to search for a place's packages: itself, or a source tree's `src`."""
    source = os.path.join(place, "src")  # noqa: PTH118 - as in sys.path, a text
    is_tree = os.path.isfile(os.path.join(place, _PROJECT)) and os.path.isdir(source)  # noqa: PTH112, PTH113, PTH118
    return source if is_tree else place


class _TopLevelFinder(importlib.abc.MetaPathFinder):
    """Finds the packages that entry points of a place name there, before any that is installed."""

    def __init__(self) -> None:
        self.roots: dict[str, str] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - Python's signature
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        root = self.roots.get(fullname)
        return None if root is None else PathFinder.find_spec(fullname, [root], target)


_finder = _TopLevelFinder()


def find_top_level(entry_point: str, place: str) -> None:
    """Have Python find the package of an entry point, and what else lies beside it, at a place.

    The package itself is taken from there, also where one of that name is installed; all others only if
    they are not installed, so that a folder's copy of numpy never becomes the host's.

    Args:
        entry_point: `module:Class`.
        place: the folder or wheel; empty for what is installed.

    Raises:
        ImportError: this process has imported a package of that name from elsewhere.
    """
    top = entry_point.partition(":")[0].partition(".")[0]
    if not place:
        _finder.roots.pop(top, None)
        return
    root = import_root(place)
    origin = getattr(getattr(sys.modules.get(top), "__spec__", None), "origin", None)
    if origin is not None and not os.path.realpath(origin).startswith(os.path.realpath(root) + os.sep):
        raise ImportError(
            f"this process has imported {top} from {origin}, so it cannot have the one in {place} too"
        )
    _finder.roots[top] = root
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    if root not in sys.path:
        sys.path.append(root)
