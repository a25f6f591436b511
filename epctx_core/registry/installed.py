"""Installed distributions and their entry points, read from the folders and archives of
`sys.path`.

To import a library for metadata takes longer than to read the folders, and it keeps
archives open.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

from epctx_core.frozen import dataclass
from epctx_core.registry.records import normalise_name

_INFO = (".dist-info", ".egg-info")
_ENTRY_POINTS = "entry_points.txt"
_GROUPS = b"epctx."
"""Beginning of all groups of epctx's entry points."""


class EntryPoint(NamedTuple):
    """Entry point of a distribution, as Python's packaging has them."""

    name: str
    value: str
    group: str
    package: Distribution

    @property
    def place(self) -> str:
        """Its value without spaces and extras: `module:Class`, or a module."""
        return parse_place(self.value)

    @property
    def module(self) -> str:
        """The module that has the object, or is it."""
        return self.place.partition(":")[0]

    def load(self) -> Any:
        """Import and return the object, or the module that is one; raise whatever the
        module raises.
        """
        return load_object(self.place)


def parse_place(value: str) -> str:
    """Return the value of an entry point without spaces and extras."""
    return re.sub(r"\[.*|\s", "", value)


def load_object(place: str) -> Any:
    """Import and return the object in a place, as `parse_place` returns it."""
    module, _, attribute = place.partition(":")
    imported = import_module(module)
    return attrgetter(attribute)(imported) if attribute else imported


@dataclass(frozen=True)
class Distribution:
    """Installed distribution.

    Attributes:
        key: its name in the form that package indexes compare, as its files spell it.
        read: returns the content of a file of its metadata, empty if there is none.
    """

    key: str
    read: Callable[[str], bytes]

    @property
    def is_ours(self) -> bool:
        """True if it has entry points of epctx."""
        return _GROUPS in self.read(_ENTRY_POINTS)

    @property
    def name(self) -> str:
        """Name by its metadata; its key if that has none."""
        return self.find_field("Name") or self.key

    @property
    def version(self) -> str | None:
        """Version by its metadata, None without one."""
        return self.find_field("Version") or None

    @cached_property
    def _metadata(self) -> str:
        data = self.read("METADATA") or self.read("PKG-INFO")
        return data.decode(errors="replace")

    def find_field(self, field: str) -> str:
        """Return a field of its metadata; empty if there is none."""
        match = re.search(rf"(?im)^{field}:(.*)$", self._metadata)
        return match[1].strip() if match else ""

    def read_entry_points(self) -> Iterator[EntryPoint]:
        """Yield all entry points of epctx's groups and others, in their order.

        What is not of the form `name = value`, or no UTF-8, gives names and values that
        can't be used.
        """
        group = ""
        for line in self.read(_ENTRY_POINTS).decode(errors="replace").splitlines():
            text = line.strip()
            if text.startswith("["):
                group = text.strip("[] ")
            elif text and not text.startswith("#"):
                name, _, value = map(str.strip, text.partition("="))
                yield EntryPoint(name, value, group, self)


def list_distributions(paths: Sequence[str] | None = None) -> Iterator[Distribution]:
    """Yield the distributions of some folders and archives, None for those of
    `sys.path`, in its order; of several with one name the first alone that has
    metadata, as Python does.
    """
    found: dict[str, list[Distribution]] = {}
    for dist in _walk(paths):
        found.setdefault(dist.key, []).append(dist)
    for same in found.values():
        # An upgrade that was interrupted leaves folders without metadata. Of all
        # others, METADATA need not be read.
        yield next((d for d in same if len(same) > 1 and d.find_field("Name")), same[0])


def list_entries(group: str) -> list[EntryPoint]:
    """Return the entries of a group of all distributions."""
    return [
        entry
        for dist in list_distributions()
        if dist.is_ours
        for entry in dist.read_entry_points()
        if entry.group == group
    ]


def _walk(paths: Sequence[str] | None) -> Iterator[Distribution]:
    for path in dict.fromkeys(sys.path if paths is None else paths):
        place = path or "."
        if os.path.isfile(place):  # noqa: PTH113 - there may be very many
            yield from _read_archive(place)
            continue
        for name in sorted(_list_folder(place)):
            # pip renames what it removes, and leaves that if it is interrupted.
            if name.endswith(_INFO) and name[0] != "~":
                reader = partial(_read_file, f"{place}{os.sep}{name}")
                yield Distribution(_get_key(name), reader)


def _get_key(folder: str) -> str:
    """Return the distribution whose metadata a folder has, by the folder's name."""
    return normalise_name(folder.rpartition(".")[0].partition("-")[0])


def _list_folder(place: str) -> list[str]:
    try:
        return os.listdir(place)  # noqa: PTH208 - names are enough
    except (OSError, ValueError):  # a text that is not a path, too
        return []


def _read_file(folder: str, name: str) -> bytes:
    try:
        with open(f"{folder}{os.sep}{name}", "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def _read_archive(place: str) -> Iterator[Distribution]:
    """Yield the distributions of a wheel or another archive."""
    from zipfile import ZipFile

    try:
        with ZipFile(place) as archive:
            metadata = {
                name: archive.read(name)
                for name in sorted(archive.namelist())
                if re.fullmatch(r"[^/]+\.(dist|egg)-info/[^/]+", name)
            }
    except Exception:  # noqa: BLE001 - a file on sys.path may be anything
        return
    for folder in dict.fromkeys(name.partition("/")[0] for name in metadata):
        reader = partial(_find_member, metadata, folder)
        yield Distribution(_get_key(folder), reader)


def _find_member(metadata: Mapping[str, bytes], folder: str, name: str) -> bytes:
    return metadata.get(f"{folder}/{name}", b"")
