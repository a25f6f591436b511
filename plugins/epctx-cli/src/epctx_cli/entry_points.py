"""Entry points of installed packages: EPs, engines and graph transformers.

Reads metadata only, and imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctx_core import PluginRecord

EP_GROUP = "epctx.execution_providers"
ENGINE_GROUP = "epctx.engines"
TRANSFORMER_GROUP = "epctx.graph_transformers"


def find_entries(*groups: str) -> Iterator[tuple[Distribution, EntryPoint]]:
    """Yield the entry points of groups, each with its distribution; those of unreadable
    metadata are left out.
    """
    for package in distributions():
        with suppress(Exception):  # metadata of other packages fails in many ways
            text = package.read_text("entry_points.txt") or ""
            if any(group in text for group in groups):
                yield from [
                    (package, entry)
                    for entry in package.entry_points
                    if entry.group in groups
                ]


def describe(found: Iterable[tuple[Distribution, EntryPoint]]) -> list[dict[str, str]]:
    """Return name, distribution, version and entry point of each graph transformer
    among entry points, sorted.
    """
    keys = ("name", "distribution", "version", "entry_point")
    rows = {
        (e.name, p.metadata["Name"], p.version, e.value)
        for p, e in found
        if e.group == TRANSFORMER_GROUP
    }
    return [dict(zip(keys, row, strict=True)) for row in sorted(rows)]


def explain_finder(record: PluginRecord) -> str:
    """Return a sentence on an EP that a finder found in a package without entry points
    of epctx; empty for other EPs.
    """
    if record.finder is None:
        return ""
    package, _, convention = record.finder.partition(":")
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
    """Return records of one EP and one reason together, with a label for all of them:
    what is said of duplicates is said once.
    """
    groups: dict[tuple[str, str], list[PluginRecord]] = {}
    for record in records:
        groups.setdefault((record.name, record.reason), []).append(record)
    return [
        (f"{name} ({' and '.join(record.origin for record in group)})", group)
        for (name, _), group in groups.items()
    ]
