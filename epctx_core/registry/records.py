"""What the registry knows about one EP, the state it is in, and when two names mean the same.

Knows nothing about how any of it was found out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from epctx_core.plugin import Availability, ExecutionProvider, Purpose


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
    """Another distribution brings the same EP type, or the host registered a class of it."""
    API_TOO_NEW = "api-too-new"
    """Written for a later plugin API than this epctx-core has."""
    UNAVAILABLE = "unavailable"
    """Loaded, but this machine lacks what each purpose needs that was asked about."""
    REMOVED = "removed"
    """Found earlier; its distribution is not installed any more."""
    RESTART_NEEDED = "restart-needed"
    """Loaded, and another version of its distribution is installed now; what was loaded goes on."""


USABLE_STATES = frozenset(
    {PluginState.DISCOVERED, PluginState.LOADED, PluginState.UNAVAILABLE, PluginState.RESTART_NEEDED}
)


RecordKey: TypeAlias = "tuple[str, str | None]"
"""EP name and distribution, which identify a record while its state changes; None for a class of the host."""


@dataclass(frozen=True, kw_only=True)
class PluginRecord:
    """One EP as the registry sees it; a snapshot that later changes of state do not touch.

    Attributes:
        name: the EP type; where that cannot be told, the distribution's name or `module:Class`.
        sources: every source key it is found by, its name first.
        distribution: the pip package that brings it, or None for a class that the host registered.
        version: the distribution's version, or None. Of what this process has loaded, if it has.
        vendor: who is responsible for it, known once it is loaded; None before.
        availability: what its class answered about each purpose that was asked about.
        state: where it stands.
        reason: why it stands there, for a user to read; empty while all is well. A loaded one has a reason
            where it is not available for some purposes.
        entry_point: where the class is, as `module:Class`; empty if the metadata does not tell.
        traceback: of what the plugin raised, or None.
        simulated: whether it computes on this CPU in place of hardware; None where that is not known before it is
            loaded.
        passed_over: a duplicate because the host chose another distribution, so nothing is undecided.
    """

    name: str
    sources: tuple[str, ...]
    distribution: str | None
    version: str | None
    vendor: str | None = None
    availability: Mapping[Purpose, Availability] = field(default_factory=dict, hash=False)
    state: PluginState
    reason: str = ""
    entry_point: str
    traceback: str | None = None
    simulated: bool | None = None
    passed_over: bool = False

    @property
    def key(self) -> RecordKey:
        """What stays the same when the state changes."""
        return self.name, self.distribution

    @property
    def usable(self) -> bool:
        """Whether a session may use it, as far as is known without importing it."""
        return self.state in USABLE_STATES

    @property
    def undecided(self) -> bool:
        """Whether it can't be used only because the host did not choose it among several distributions."""
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
        names = ("name", "sources", "distribution", "version", "vendor", "simulated", "state", "reason")
        answers = {purpose.value: asdict(answer) for purpose, answer in self.availability.items()}
        shown = {name: getattr(self, name) for name in names}
        return shown | {"sources": list(self.sources), "state": self.state.value, "availability": answers}


def make_record(cls: type[ExecutionProvider], sources: Sequence[str]) -> PluginRecord:
    """Return the record of a class without a package."""
    return PluginRecord(
        name=cls.name,
        sources=tuple(dict.fromkeys((cls.name, *sources))),
        distribution=None,
        version=None,
        vendor=cls.vendor or None,
        simulated=cls.simulated,
        state=PluginState.LOADED,
        entry_point=f"{cls.__module__}:{cls.__qualname__}",
    )


def add_availability(
    record: PluginRecord, purpose: Purpose, answer: Availability, traceback: str | None = None
) -> PluginRecord:
    """Return a loaded record with one more answer about what this machine has.

    It is UNAVAILABLE only if no purpose that was asked about has what it needs.

    Args:
        record: of the EP that was asked.
        purpose: what it was asked about.
        answer: what it said.
        traceback: of what it raised instead.
    """
    answers = {**record.availability, purpose: answer}
    if record.state is PluginState.RESTART_NEEDED:
        return replace(record, availability=answers, traceback=traceback)
    lacking: dict[str, list[str]] = {}
    for asked, said in answers.items():
        if not said.available:
            lacking.setdefault(said.reason or "no reason given", []).append(asked.value)
    available = any(said.available for said in answers.values())
    return replace(
        record,
        state=PluginState.LOADED if available else PluginState.UNAVAILABLE,
        reason="; ".join(f"not available for {' and '.join(p)}: {why}" for why, p in lacking.items()),
        availability=answers,
        traceback=traceback,
    )


def sort_key(record: PluginRecord) -> tuple[str, str]:
    """Order records by EP type, then distribution: never by what the file system happens to give."""
    return (record.name, record.distribution or "")


def is_same_distribution(one: str | None, other: str | None) -> bool:
    """Whether two spellings mean one distribution: case, dots, dashes and underscores don't count."""
    return one is not None and other is not None and normalise_name(one) == normalise_name(other)


def normalise_name(distribution: str) -> str:
    """Return a distribution's name in the form that package indexes compare."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def is_name_of(given: str, ep_type: str) -> bool:
    """Whether a host's name means an EP type: `X` or `XExecutionProvider`, without case."""
    wanted = given.casefold()
    return ep_type.casefold() in (wanted, f"{wanted}executionprovider")
