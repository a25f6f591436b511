"""Packages for epctx, and the libraries that they require, with installed versions.

Reads metadata only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from importlib_metadata import PackageNotFoundError, distribution, distributions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from epctx_cli.entry_points import EP_GROUP, KINDS
from epctx_cli.plugin_results import EpLibrary, Library

if TYPE_CHECKING:
    from importlib_metadata import EntryPoint
    from packaging.specifiers import SpecifierSet

CORE = "epctx-core"
_OURS = "epctx-"
_NOT_LISTED = frozenset({"all", "test"})
"""Extras that are not listed: the others have the libraries of `all`, and `test` is for
developers.
"""


class Package(NamedTuple):
    """Installed package that requires epctx-core or has entry points for it; or
    epctx-core.

    Attributes:
        origin: name and version.
        extras: names of its extras.
        requirements: requirements with and without an extra.
        entries: entry points for epctx.
    """

    origin: str
    extras: list[str]
    requirements: list[Requirement]
    entries: list[EntryPoint]

    @property
    def names(self) -> set[str]:
        """Names of what it requires, with or without an extra."""
        return {canonicalize_name(need.name) for need in self.requirements}

    def select(self, extras: Collection[str] = ()) -> Iterator[Requirement]:
        """Yield what it requires here with some of its extras."""
        for need in self.requirements:
            if need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in extras or ("",)
            ):
                yield need


def find_packages() -> dict[str, Package]:
    """Return the packages for epctx by name, sorted."""
    packages: dict[str, Package] = {}
    for found in distributions():
        with suppress(Exception):  # metadata of other packages fails in many ways
            name = canonicalize_name(found.metadata["Name"])
            # Python imports the first of a name.
            if name not in packages:
                packages[name] = Package(
                    origin=f"{found.metadata['Name']} {found.version}",
                    extras=found.metadata.get_all("Provides-Extra") or [],
                    requirements=[*map(Requirement, found.requires or ())],
                    entries=[
                        entry
                        for entry in found.entry_points
                        if entry.group.startswith("epctx.")
                    ],
                )
    return {
        name: package
        for name, package in sorted(packages.items())
        if name == CORE or package.entries or CORE in package.names
    }


def list_owners(packages: Mapping[str, Package], group: str) -> dict[str, list[str]]:
    """Return the origins of the packages that have each name of an entry-point
    group.
    """
    owners: dict[str, list[str]] = {}
    for package in packages.values():
        for entry in package.entries:
            if entry.group == group:
                owners.setdefault(entry.name, []).append(package.origin)
    return owners


def list_idle(packages: Mapping[str, Package]) -> list[str]:
    """Return the packages that require epctx-core, provide nothing to it, and are no
    library of epctx-core or of another package for it.
    """
    groups = {EP_GROUP, *(kind.group for kind in KINDS)}
    libraries = {name for package in packages.values() for name in package.names}
    return [
        name
        for name, package in packages.items()
        if CORE in package.names
        and name not in libraries
        and groups.isdisjoint(entry.group for entry in package.entries)
    ]


class Libraries(NamedTuple):
    """Libraries of packages for epctx.

    Attributes:
        core: libraries that epctx-core requires or can use, in order of its extras;
            none if it is importable, but not installed.
        eps: libraries of EPs, without packages of epctx and the libraries of those.
        others: further libraries of packages for epctx, without those of extras.
    """

    core: list[Library]
    eps: list[EpLibrary]
    others: list[Library]


def find_libraries(packages: Mapping[str, Package]) -> Libraries:
    """Return the libraries of packages, installed or not."""
    if CORE not in packages:
        return Libraries([], [], [])
    core: dict[str, Library] = {}
    extras = [each for each in packages[CORE].extras if each not in _NOT_LISTED]
    for extra in ("", *extras):
        _add_libraries(core, packages, CORE, {extra}, extra)
    eps: dict[tuple[str, str, str], EpLibrary] = {}
    for user, package in packages.items():
        for library in _find_libraries_of_eps(user, package):
            if library.name not in core and not library.name.startswith(_OURS):
                eps.setdefault((user, library.ep, library.name), library)

    listed = {
        (library.user, library.name) for library in (*core.values(), *eps.values())
    }
    others: list[Library] = []
    for user, package in packages.items():
        others += [
            Library(**_look_up(need, user))
            for need in package.select()
            if (user, need.name) not in listed
        ]
    return Libraries([*core.values()], [eps[key] for key in sorted(eps)], others)


def _add_libraries(
    libraries: dict[str, Library],
    packages: Mapping[str, Package],
    user: str,
    extras: Collection[str],
    extra: str,
) -> None:
    """Add what a package requires with some of its extras, which an extra of epctx-core
    installs; also by way of other packages for epctx.
    """
    ahead: list[Requirement] = []
    for need in packages[user].select(extras):
        if need.name != CORE and need.name not in libraries:
            libraries[need.name] = Library(**_look_up(need, user, extra))
            ahead.append(need)
    for need in ahead:
        if need.name in packages:
            _add_libraries(libraries, packages, need.name, need.extras, extra)


def _find_libraries_of_eps(user: str, package: Package) -> Iterator[EpLibrary]:
    for entry in package.entries:
        if entry.group != EP_GROUP:
            continue
        # Not entry.extras, which takes a name with a dash apart before Python 3.12.
        extras = entry.value.partition("[")[2].rstrip("] ")
        for extra in map(str.strip, extras.split(",")):
            for need in package.select({extra}):
                facts = _look_up(need, user, extra)
                yield EpLibrary(**facts, ep=entry.name)


def _look_up(need: Requirement, user: str, extra: str = "") -> dict[str, Any]:
    """Return the fields of `Library`."""
    version: str | None = None
    with suppress(PackageNotFoundError):
        version = distribution(need.name).version
    return {
        "name": need.name,
        "user": user,
        "required": str(need.specifier),
        "extra": extra or None,
        "version": version,
        "fits": None if version is None else within(version, need.specifier),
    }


def within(version: str, bounds: SpecifierSet) -> bool:
    """Return whether an installed version, pre-releases included, is within bounds;
    False for an invalid one.
    """
    try:
        return bounds.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def is_importable(name: str) -> bool:
    """Return whether a package is there under a distribution's name; not what pip left
    of one, a folder without Python files.
    """
    # With a dot, Python would import the package around it.
    spec = find_spec(name.replace("-", "_").replace(".", "_"))
    return spec is not None and spec.origin is not None


def find_builds(name: str) -> dict[str, str]:
    """Return the versions of the installed distributions whose files have a package of
    this name, such as the builds of onnxruntime.

    Args:
        name: name of the package, with which their names begin.
    """
    builds = {}
    for found in distributions():
        with suppress(Exception):  # see `find_packages`
            build = found.metadata["Name"]
            if not build.startswith(name):
                continue
            files = f"\n{found.read_text('RECORD')}"
            if f"\n{name}/__init__.py," in files:
                builds[build] = found.version
    return builds
