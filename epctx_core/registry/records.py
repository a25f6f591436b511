"""What the registry knows about one EP, the state it is in, and when two names mean the same.

Knows nothing about how any of it was found out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple


class PluginState(Enum):
    """Where an EP stands; the values are what users read."""

    DISCOVERED = "discovered"
    """Found by its entry point; not imported yet."""
    LOADED = "loaded"
    """Imported and checked, or registered by the host."""
    DISABLED = "disabled"
    """Kept out by EPCTX_PLUGINS or EPCTX_DISABLE_PLUGINS."""
    BROKEN = "broken"
    """Its metadata is wrong, it failed to import, or its class breaks the contract."""
    DUPLICATE = "duplicate"
    """Another distribution brings the same EP type, or the host registered it itself."""
    API_TOO_NEW = "api-too-new"
    """Written for a later plugin API than this epctx-core has."""
    UNAVAILABLE = "unavailable"
    """Loaded, but this machine lacks what the purpose last asked for needs."""
    REMOVED = "removed"
    """Imported earlier; its distribution is not installed any more."""
    RESTART_NEEDED = "restart-needed"
    """Imported earlier; another version of its distribution is installed now."""


USABLE_STATES = frozenset({PluginState.DISCOVERED, PluginState.LOADED, PluginState.UNAVAILABLE})


class RecordKey(NamedTuple):
    """What identifies a record while its state changes; no distribution for a class of the host."""

    name: str
    distribution: str | None


@dataclass(frozen=True, kw_only=True)
class PluginRecord:
    """One EP as the registry sees it; a snapshot that later changes of state do not touch.

    Attributes:
        name: the EP type; for metadata that cannot be read, the distribution's name.
        sources: every source key it is found by, its name first.
        distribution: the pip package that brings it, or None for a class that the host registered.
        version: the distribution's version, or None.
        state: where it stands.
        reason: why it stands there, for a user to read; empty while all is well.
        entry_point: where the class is, as `module:Class`; empty if the metadata does not tell.
        traceback: of the failed import, or None.
        passed_over: a duplicate because the host chose another distribution, so nothing is undecided.
    """

    name: str
    sources: tuple[str, ...]
    distribution: str | None
    version: str | None
    state: PluginState
    reason: str = ""
    entry_point: str
    traceback: str | None = None
    passed_over: bool = False

    @property
    def key(self) -> RecordKey:
        """What stays the same when the state changes."""
        return RecordKey(self.name, self.distribution)

    @property
    def usable(self) -> bool:
        """Whether a session may use it, as far as is known without importing it."""
        return self.state in USABLE_STATES

    @property
    def undecided(self) -> bool:
        """Whether it can't be used only because the host has to choose a distribution."""
        return self.state is PluginState.DUPLICATE and not self.passed_over

    @property
    def origin(self) -> str:
        """Distribution and version for messages, such as `epctx-sim-qnn 0.1.0`."""
        if self.distribution is None:
            return "registered by the host"
        return f"{self.distribution} {self.version}" if self.version else self.distribution

    @property
    def label(self) -> str:
        """EP type and origin for messages."""
        return f"{self.name} ({self.origin})"

    def as_dict(self) -> dict[str, Any]:
        """Return what `epctx plugins list --json` prints of it."""
        return {
            "name": self.name,
            "sources": list(self.sources),
            "distribution": self.distribution,
            "version": self.version,
            "state": self.state.value,
            "reason": self.reason,
        }


def sort_key(record: PluginRecord) -> tuple[str, str]:
    """Order records by EP type, then distribution: never by what the file system happens to give."""
    return (record.name, record.distribution or "")


def same_distribution(one: str | None, other: str | None) -> bool:
    """Whether two spellings mean one distribution: case, dots, dashes and underscores don't count."""
    return one is not None and other is not None and normalised(one) == normalised(other)


def normalised(distribution: str) -> str:
    """Return a distribution's name in the form that package indexes compare."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def means(given: str, ep_type: str) -> bool:
    """Whether a host's name means an EP type: `X` or `XExecutionProvider`, without case."""
    wanted = given.casefold()
    return ep_type.casefold() in (wanted, f"{wanted}executionprovider")
