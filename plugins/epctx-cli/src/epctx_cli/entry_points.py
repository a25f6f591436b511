"""Entry points of installed packages: EPs, and plugins of the other kinds.

Reads metadata only, and imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple
from fnmatch import fnmatch
from typing import TYPE_CHECKING, NamedTuple

from epctx_cli.plugin_results import EntryFacts

if TYPE_CHECKING:
    from importlib_metadata import EntryPoint, IDistribution

    from epctx_core import PluginRecord

EP_GROUP = "epctx.execution_providers"
ENGINE_GROUP = "epctx.engines"
COMMAND_GROUP = "epctx.commands"
"""Other packages' commands; see `epctx_cli.command`."""


class Kind(NamedTuple):
    """Kind of plugins beside EPs.

    Attributes:
        label: its name for people.
        key: its key in JSON.
        group: the entry-point group.
    """

    label: str
    key: str
    group: str


KINDS = (
    Kind("engine", "engines", ENGINE_GROUP),
    Kind("command", "commands", COMMAND_GROUP),
    Kind("host plugin", "host_plugins", "epctx.host_plugins"),
    Kind("model format", "model_formats", "epctx.model_formats"),
    Kind("isolation", "isolations", "epctx.isolation"),
    Kind("native format", "native_formats", "epctx.native_formats"),
)
"""The kinds beside EPs, in the order of `epctx plugins list`."""


def find_entries(*groups: str) -> Iterator[tuple[IDistribution, EntryPoint]]:
    """Yield the entry points of groups, each with its distribution; those of unreadable
    metadata are left out.
    """
    from importlib_metadata import distributions

    for package in distributions():
        with suppress(Exception):  # metadata of other packages fails in many ways
            text = package.read_text("entry_points.txt") or ""
            if any(group in text for group in groups):
                yield from [
                    (package, entry)
                    for entry in package.entry_points
                    if entry.group in groups
                ]


def describe(
    entries: Iterable[tuple[IDistribution, EntryPoint]], group: str
) -> list[EntryFacts]:
    """Return a description of each entry of a group, sorted."""
    described = {
        EntryFacts(
            name=entry.name,
            distribution=package.metadata["Name"],
            version=package.version,
            entry_point=entry.value,
        )
        for package, entry in entries
        if entry.group == group
    }
    return sorted(described, key=astuple)


def explain_finder(record: PluginRecord) -> str:
    """Return a sentence on an EP that a finder found in a package without entry points
    of epctx; empty for other EPs.
    """
    if record.finder is None:
        return ""
    # Few plugins are found by a convention.
    from packaging.utils import canonicalize_name

    package, _, convention = record.finder.partition(":")
    if not fnmatch(canonicalize_name(record.distribution or ""), convention):
        return (
            f"{record.name} is inside {record.origin}, which knows nothing of epctx: "
            f"{package} finds it there, and runs it."
        )
    return (
        f"{record.label} comes from a package that knows nothing of epctx: {package} "
        f"finds it by the packaging convention {convention}, and runs it."
    )


def is_duplicate(record: PluginRecord) -> bool:
    """Return whether another distribution provides the EP, too."""
    return record.state.value == "duplicate"


def group_by_reason(
    records: Iterable[PluginRecord],
) -> list[tuple[str, list[PluginRecord]]]:
    """Return the records with a reason, those of one EP and one reason together, with a
    label for all of them: what is said of duplicates is said once.
    """
    groups: dict[tuple[str, str], list[PluginRecord]] = {}
    for record in records:
        if record.reason:
            groups.setdefault((record.name, record.reason), []).append(record)
    return [
        (f"{name} ({' and '.join(record.origin for record in group)})", group)
        for (name, _), group in groups.items()
    ]
