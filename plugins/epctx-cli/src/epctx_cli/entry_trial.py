"""Trial of a plugin that is no EP: its entry point is loaded and described in a process
of its own.

Knows no command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from epctx_cli.entry_points import (
    KINDS,
    Kind,
    describe,
    find_entries,
)
from epctx_cli.plugin_trial import ask_child


@dataclass(frozen=True, kw_only=True)
class EntryTrial:
    """Result of loading one entry point.

    Attributes:
        kind: of the plugin.
        entry: its name, distribution, version and entry point.
        facts: what it says of itself: `doc`, and `provides` of an engine or `summary`
            of a command; empty if it could not be imported.
        reason: why it could not be imported; or empty.
        traceback: of that.
    """

    kind: Kind
    entry: Mapping[str, str]
    facts: Mapping[str, str]
    reason: str = ""
    traceback: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return its form in JSON."""
        return {
            "kind": self.kind.label,
            **self.entry,
            "state": "broken" if self.reason else "loaded",
            "reason": self.reason,
            **self.facts,
            "traceback": self.traceback,
        }


def find_named(name: str) -> list[tuple[Kind, dict[str, str]]]:
    """Return the plugins beside EPs that have a name, which may be a distribution, or
    `<distribution>:<name>`.
    """
    from packaging.utils import canonicalize_name

    package, colon, word = name.rpartition(":")
    entries = list(find_entries(*(kind.group for kind in KINDS)))
    plugins = []
    for kind in KINDS:
        for entry in describe(entries, kind.group):
            distribution = canonicalize_name(entry["distribution"])
            is_named = entry["name"].lower() == word.lower()
            is_of_package = distribution == canonicalize_name(package or name)
            if is_named and is_of_package if colon else is_named or is_of_package:
                plugins.append((kind, entry))
    return plugins


def try_entry(
    kind: Kind, entry: Mapping[str, str], *, log: Callable[[str], None]
) -> EntryTrial:
    """Load an entry point in a process of its own, and have it described.

    Args:
        kind: of the plugin.
        entry: as `describe` gives it.
        log: called with what its import wrote to standard error.
    """
    request = {
        "group": kind.group,
        "name": entry["name"],
        "value": entry["entry_point"],
    }
    reply, written = ask_child(request)
    if written.strip():
        log(f"{entry['name']} wrote:\n{written.rstrip()}")
    return EntryTrial(
        kind=kind,
        entry=entry,
        facts=reply.get("facts", {}),
        reason=reply.get("reason", ""),
        traceback=reply.get("traceback", ""),
    )
