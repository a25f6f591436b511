"""Plugins that are used from where they lie, without being installed: a folder, a source tree, or a wheel.

Reads their metadata as discovery does, and has Python find their packages. Knows no registry.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidArgument, NoSuchFile
from epctx_core.registry.discovery import EP_GROUP, SOURCE_GROUP, mentions_group, read_distribution
from epctx_core.registry.records import sort_key

if TYPE_CHECKING:
    from types import ModuleType

    from epctx_core.registry._metadata import EntryPoint, InstalledDistribution
    from epctx_core.registry.records import PluginRecord

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
    from epctx_core.registry._metadata import distributions

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
        from epctx_core.registry._metadata import EntryPoint

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
