"""Libraries that epctx-core and EPs require, with their installed versions.

Reads metadata only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from importlib_metadata import PackageNotFoundError, distribution, distributions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from epctx_cli.entry_points import EP_GROUP, find_entries
from epctx_core.ext import install_command

if TYPE_CHECKING:
    from importlib_metadata import EntryPoint, IDistribution
    from packaging.specifiers import SpecifierSet

CORE = "epctx-core"
_OURS = "epctx-"
_NOT_LISTED = frozenset({"all", "test"})
"""Extras that are not listed: the others have the libraries of `all`, and `test` is for
developers.
"""


@dataclass(frozen=True, kw_only=True)
class Library:
    """Requirement of epctx-core, or of a package that one of its extras installs.

    Attributes:
        name: name of the required distribution.
        user: the distribution that requires it.
        required: the version specifier.
        extra: the extra that installs it, of epctx-core, or of an EP's package; None
            for a library that is always needed.
        version: the installed version, or None.
        fits: whether the installed version is within the specifier, or None.
    """

    name: str
    user: str
    required: str
    extra: str | None
    version: str | None
    fits: bool | None


def libraries() -> list[Library] | None:
    """Return the libraries that epctx-core requires or can use; None if it is
    importable, but not installed.
    """
    requirements: dict[str, Library] = {}
    try:
        core = distribution(CORE)
    except PackageNotFoundError:
        return None
    extras = [
        extra
        for extra in core.metadata.get_all("Provides-Extra") or ()
        if extra not in _NOT_LISTED
    ]
    for extra in ("", *extras):
        ahead = [(core, {extra})]
        while ahead:
            package, chosen = ahead.pop()
            for need, library in _read_requirements(package, extra, chosen):
                if library.name == CORE or library.name in requirements:
                    continue
                requirements[library.name] = library
                if library.name.startswith(_OURS) and library.version is not None:
                    ahead.append((distribution(library.name), need.extras))
    return list(requirements.values())


def unmet_requirements(listed: Iterable[Library]) -> list[Library]:
    """Return what packages for epctx require and do not have in a version that fits.

    Those are the packages that require epctx-core or have entry points for it. What an
    extra installs is left out.

    Args:
        listed: requirements that are left out, too: those of `libraries` and
            `libraries_of_eps`.
    """
    others = {
        (canonicalize_name(library.user), canonicalize_name(library.name))
        for library in listed
    }
    unmet: dict[tuple[str, str], Library] = {}
    packages: dict[str, IDistribution] = {}
    for package in distributions():
        with suppress(Exception):  # metadata of other packages fails in many ways
            packages.setdefault(canonicalize_name(package.metadata["Name"]), package)
    for user, package in packages.items():
        with suppress(Exception):
            needs = _read_requirements(package, "", ()) if _is_ours(package) else ()
            for _, library in needs:
                key = user, canonicalize_name(library.name)
                if key not in others and not _is_met(library):
                    unmet.setdefault(key, library)
    return [unmet[key] for key in sorted(unmet)]


def _is_ours(package: IDistribution) -> bool:
    """Return whether a package requires epctx-core, or has entry points for it."""
    return "[epctx." in (package.read_text("entry_points.txt") or "") or any(
        canonicalize_name(Requirement(need).name) == CORE
        for need in package.requires or ()
    )


def _is_met(library: Library) -> bool:
    # What another distribution provides has a version that says nothing.
    if library.version is None:
        return is_importable(library.name)
    return library.fits is not False


def is_importable(name: str) -> bool:
    """Return whether a package is there under a distribution's name; not what pip left
    of one, a folder without Python files.
    """
    spec = find_spec(name.replace("-", "_"))
    return spec is not None and spec.origin is not None


def _read_requirements(
    package: IDistribution, extra: str, chosen: Iterable[str]
) -> Iterator[tuple[Requirement, Library]]:
    """Yield the requirements of a package with some of its extras, which an extra of
    epctx-core installs.
    """
    # Each access parses the metadata again.
    user = package.metadata["Name"]
    for need in map(Requirement, package.requires or ()):
        if need.marker is None or any(
            need.marker.evaluate({"extra": each}) for each in chosen or {""}
        ):
            version = installed_version(need.name)
            library = Library(
                name=need.name,
                user=user,
                required=str(need.specifier),
                extra=extra or None,
                version=version,
                fits=None if version is None else within(version, need.specifier),
            )
            yield need, library


def find_builds(name: str) -> list[IDistribution]:
    """Return the installed distributions whose files have a package of this name, such
    as the builds of onnxruntime.

    Args:
        name: of the package, with which their names begin.
    """
    return [
        package
        for package in distributions()
        if (package.metadata["Name"] or "").startswith(name)
        and f"\n{name}/__init__.py," in f"\n{package.read_text('RECORD')}"
    ]


def installed_version(name: str) -> str | None:
    """Return a distribution's version, or None if it is not installed."""
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def within(version: str, bounds: SpecifierSet) -> bool:
    """Return whether an installed version, pre-releases included, is within bounds;
    False for an invalid one.
    """
    try:
        return bounds.contains(version, prereleases=True)
    except InvalidVersion:
        return False


@dataclass(frozen=True, kw_only=True)
class EpLibrary(Library):
    """Requirement of an EP that is no library of epctx: a vendor's package.

    Attributes:
        ep: the EP's name; it is not found where an extra's library is missing.
    """

    ep: str

    @property
    def label(self) -> str:
        """EP and distribution for messages."""
        return f"{self.ep} of {self.user}"

    @property
    def install(self) -> str:
        """Command that installs it."""
        return install_command(
            f"{self.user}[{self.extra}]"
            if self.extra
            else f"{self.name}{self.required}"
        )


def libraries_of_eps(of_epctx: Iterable[Library]) -> list[EpLibrary]:
    """Return what EPs require beside packages of epctx and the libraries of those,
    installed or not.

    Args:
        of_epctx: what `libraries` returns.
    """
    requirements: dict[tuple[str, str, str], EpLibrary] = {}
    shared = {library.name for library in of_epctx}
    for package, entry in find_entries(EP_GROUP):
        with suppress(Exception):  # requirements of other packages fail in many ways
            for library in _libraries_of_entry(package, entry):
                if library.name not in shared and not library.name.startswith(_OURS):
                    requirements.setdefault(
                        (library.user, library.ep, library.name), library
                    )
    return [requirements[key] for key in sorted(requirements)]


def _libraries_of_entry(
    package: IDistribution, entry: EntryPoint
) -> Iterator[EpLibrary]:
    # Not entry.extras, which takes a name with a dash apart before Python 3.12.
    extras = entry.value.partition("[")[2].rstrip("] ").split(",")
    for extra in extras:
        name = extra.strip()
        for _, library in _read_requirements(package, name, {name}):
            fields = asdict(library) | {"user": canonicalize_name(library.user)}
            yield EpLibrary(**fields, ep=entry.name)
