"""Records of EPs with their states, and comparison of names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_core.frozen import dataclass

if TYPE_CHECKING:
    from epctx_core.plugin import Availability, ExecutionProvider, Purpose


class PluginState(Enum):
    """State of an EP; users read the values."""

    DISCOVERED = "discovered"
    """Found by its entry point; not imported yet."""
    LOADED = "loaded"
    """Imported and checked, or registered by the host; not available on this machine
    for the purposes that its reason names.
    """
    DISABLED = "disabled"
    """Kept out by EPCTX_PLUGINS or EPCTX_DISABLE_PLUGINS."""
    BROKEN = "broken"
    """Its metadata is wrong, it failed to import, or its class breaks the contract."""
    DUPLICATE = "duplicate"
    """Another distribution provides the same EP, or the host registered a class of its
    name.
    """
    REMOVED = "removed"
    """Found earlier; its distribution is no longer installed."""
    RESTART_NEEDED = "restart-needed"
    """Loaded, and another version of its distribution is installed now; the loaded one
    stays in use.
    """


_USABLE_STATES = (
    PluginState.DISCOVERED,
    PluginState.LOADED,
    PluginState.RESTART_NEEDED,
)


RecordKey: TypeAlias = "tuple[str, str | None]"
"""EP name and distribution in the form that package indexes compare, which identify a
record while its state changes; None for a class of the host.
"""


@dataclass(frozen=True, kw_only=True)
class PluginRecord:
    """Snapshot of one EP in the registry; later changes of state do not affect it.

    Attributes:
        name: the EP name; the distribution's name if the metadata is unreadable.
        sources: all its source keys, its name first.
        distribution: the pip package that provides it, or None for a class that the
            host registered.
        version: the distribution's version, or None; that of the loaded code, if it is
            loaded.
        vendor: vendor that is responsible for it, known once it is loaded; None before.
        availability: result of its `availability` by purpose, `export`, `load` or
            `run`, for each that was checked.
        state: its state; `epctx docs plugins` explains each.
        reason: reason of the state for users; empty if there is no problem. A loaded EP
            has a reason if it is unavailable for some purposes.
        entry_point: its class as `module:Class`; empty if the metadata is wrong.
        traceback: traceback of the plugin's exception, or None.
        simulated: whether it computes on this CPU in place of hardware; None if that is
            not known before loading.
        finder: `<distribution>:<name>` of the entry point that found it in a package
            without one of its own, or None.
        passed_over: a duplicate because the host chose another distribution, so that
            nothing is undecided.
    """

    name: str
    sources: tuple[str, ...]
    distribution: str | None
    version: str | None
    vendor: str | None = None
    availability: Mapping[Purpose, Availability] = field(
        default_factory=dict, hash=False
    )
    state: PluginState
    reason: str = ""
    entry_point: str
    traceback: str | None = None
    simulated: bool | None = None
    finder: str | None = None
    passed_over: bool = False

    @property
    def key(self) -> RecordKey:
        """Identity of the record, which does not change with its state."""
        return self.name, self.distribution and normalise_name(self.distribution)

    @property
    def usable(self) -> bool:
        """True if a session may use it, as far as is known without importing it."""
        return self.state in _USABLE_STATES

    @property
    def undecided(self) -> bool:
        """True if it can't be used only because the host chose none of several
        distributions.
        """
        return self.state is PluginState.DUPLICATE and not self.passed_over

    @property
    def origin(self) -> str:
        """Distribution and version for messages, such as `epctx-sim-qnn 0.1.0`."""
        if self.distribution is None:
            return "registered by the host"
        return (
            f"{self.distribution} {self.version}" if self.version else self.distribution
        )

    @property
    def qualified_name(self) -> str:
        """The EP's name as a provider's, after its distribution if it has one."""
        return f"{self.distribution}:{self.name}" if self.distribution else self.name

    @property
    def label(self) -> str:
        """EP name and origin for messages."""
        return f"{self.name} ({self.origin})"

    def resembles(self, source: str) -> bool:
        """Return whether a source is one of its keys, ignoring case."""
        return source.casefold() in {key.casefold() for key in self.sources}

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `epctx plugins list --json` prints."""
        names = (
            "name",
            "sources",
            "distribution",
            "version",
            "vendor",
            "simulated",
            "finder",
            "state",
            "reason",
        )
        return get_facts(self, *names) | {
            "sources": list(self.sources),
            "state": self.state.value,
            "availability": {
                purpose.value: asdict(answer)
                for purpose, answer in self.availability.items()
            },
        }


def get_facts(record: PluginRecord, *names: str) -> dict[str, Any]:
    """Return some attributes of a record by name."""
    return {name: getattr(record, name) for name in names}


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
    record: PluginRecord,
    purpose: Purpose,
    answer: Availability,
    traceback: str | None = None,
) -> PluginRecord:
    """Return a loaded record with the availability for one more purpose.

    Args:
        record: the EP's record.
        purpose: the purpose that was checked.
        answer: the result.
        traceback: traceback of the exception that it raised instead.
    """
    answers = {**record.availability, purpose: answer}
    lacking: dict[str, list[str]] = {}
    for asked, each in answers.items():
        if not each.available:
            purposes = lacking.setdefault(each.reason or "no reason given", [])
            purposes.append(asked.value)
    reason = "; ".join(
        f"not available for {' and '.join(purposes)}: {why}"
        for why, purposes in lacking.items()
    )
    if record.state is PluginState.RESTART_NEEDED:
        reason = record.reason
    return replace(record, reason=reason, availability=answers, traceback=traceback)


def sort_key(record: PluginRecord) -> tuple[str, str]:
    """Return EP name and distribution: records are never in the order of the file
    system.
    """
    return (record.name, record.distribution or "")


def is_same_distribution(one: str | None, other: str | None) -> bool:
    """Return whether two spellings name one distribution: case, dots, dashes and
    underscores don't matter.
    """
    return normalise_name(one or "") == normalise_name(other or "")


def normalise_name(distribution: str) -> str:
    """Return a distribution's name in the form that package indexes compare."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def is_name_of(name: str, ep: str) -> bool:
    """Return whether a host's name is that of an EP: `X` or `XExecutionProvider`,
    ignoring case.
    """
    folded = name.casefold()
    return ep.casefold() in (folded, f"{folded}executionprovider")
