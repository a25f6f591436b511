"""Which of the EPs found may be used: what the environment keeps out, and which distribution wins an EP type.

Pure: takes records and gives records with other states. Imports no plugin and reads no metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from epctx_core.errors import InvalidArgument
from epctx_core.registry.records import PluginRecord, PluginState, means, same_distribution

ONLY_VARIABLE = "EPCTX_PLUGINS"
DISABLE_VARIABLE = "EPCTX_DISABLE_PLUGINS"
PREFER_VARIABLE = "EPCTX_PREFER"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the environment says.

    Attributes:
        only: names of the only ones allowed, or None for all.
        disabled: names of those kept out.
        preferred: EP type (long or short) to the distribution that is to bring it.
    """

    only: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()
    preferred: Mapping[str, str]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Selection:
        """Read EPCTX_PLUGINS, EPCTX_DISABLE_PLUGINS and EPCTX_PREFER.

        Raises:
            InvalidArgument: EPCTX_PREFER is not of the form `EP=distribution,...`.
        """
        only = environment.get(ONLY_VARIABLE)
        return cls(
            only=None if only is None else names_in(only),
            disabled=names_in(environment.get(DISABLE_VARIABLE, "")),
            preferred=dict(_preference(item) for item in names_in(environment.get(PREFER_VARIABLE, ""))),
        )

    def unknown_names(self, records: Sequence[PluginRecord], given: Collection[str] = ()) -> list[str]:
        """Return a sentence for each name in the environment that fits no record: most likely misspelt.

        Args:
            records: as discovered.
            given: EP types that have a class without a package, which may be used in any case.
        """
        named = [
            (ONLY_VARIABLE, name) for name in self.only or () if not any(means(name, ep) for ep in given)
        ]
        named += [(DISABLE_VARIABLE, name) for name in self.disabled]
        found = [
            f"{variable} names {name!r}, which is neither an installed EP nor its distribution"
            for variable, name in named
            if not any(_names_record(name, record) for record in records)
        ]
        return found + [
            f"{PREFER_VARIABLE} prefers {distribution!r} for {ep!r}, which it does not bring"
            for ep, distribution in self.preferred.items()
            if not any(means(ep, r.name) and same_distribution(distribution, r.distribution) for r in records)
        ]

    def apply(
        self, records: Iterable[PluginRecord], *, chosen: Mapping[str, str], given: Mapping[str, str]
    ) -> list[PluginRecord]:
        """Return the records with the states DISABLED and DUPLICATE where they are due.

        Args:
            records: as discovered and loaded so far.
            chosen: EP type to distribution, as the host said in this process; wins over the environment.
            given: EP types that have a class without a package, and who gave it, as a sentence.
        """
        allowed = [self._disable(record) for record in records]
        return [self._settle(record, allowed, chosen, given) for record in allowed]

    def _disable(self, record: PluginRecord) -> PluginRecord:
        reason = ""
        if any(_names_record(name, record) for name in self.disabled):
            reason = f"{DISABLE_VARIABLE} names it"
        elif self.only is not None and not any(_names_record(name, record) for name in self.only):
            reason = f"{ONLY_VARIABLE} does not name it"
        return replace(record, state=PluginState.DISABLED, reason=reason) if reason else record

    def _settle(
        self,
        record: PluginRecord,
        records: Sequence[PluginRecord],
        chosen: Mapping[str, str],
        given: Mapping[str, str],
    ) -> PluginRecord:
        """Mark a record as duplicate if another one has, or could have, its EP type."""
        if not record.usable:
            return record
        if record.name in given:
            return _duplicate(record, given[record.name], passed_over=True)
        rivals = [r for r in records if r.name == record.name and r.entry_point and r.state not in _OUT]
        if len(rivals) == 1:
            return record
        wanted = self.wanted(record.name, chosen)
        winner = next((r for r in rivals if same_distribution(r.distribution, wanted)), None)
        real = _only_real(rivals) if winner is None else None
        if record in (winner, real):
            return record
        if winner is not None:
            return _duplicate(record, f"{winner.origin} was preferred", passed_over=True)
        reason = f"it is simulated, and {real.origin} is not" if real else _why_undecided(rivals)
        return _duplicate(record, reason, passed_over=False)

    def wanted(self, name: str, chosen: Mapping[str, str]) -> str | None:
        """Return the distribution that the host or the environment wants to bring an EP type."""
        preferred = (dist for ep, dist in self.preferred.items() if means(ep, name))
        return chosen.get(name) or next(preferred, None)


_OUT = (PluginState.DISABLED, PluginState.REMOVED)


def _only_real(rivals: Sequence[PluginRecord]) -> PluginRecord | None:
    """Return the one that is not simulated, if it is known of all and there is just one."""
    if any(r.simulated is None for r in rivals):
        return None
    real = [r for r in rivals if not r.simulated]
    return real[0] if len(real) == 1 else None


def _why_undecided(rivals: Sequence[PluginRecord]) -> str:
    reason = f"{' and '.join(r.origin for r in rivals)} bring {rivals[0].name}"
    broken = [r.origin for r in rivals if r.state is PluginState.BROKEN and r.simulated is None]
    return (
        f"{reason}; whether {' and '.join(broken)} is simulated is not known, as it is broken"
        if broken
        else reason
    )


def _duplicate(record: PluginRecord, reason: str, *, passed_over: bool) -> PluginRecord:
    return replace(record, state=PluginState.DUPLICATE, reason=reason, passed_over=passed_over)


def names_in(text: str) -> tuple[str, ...]:
    """Return the items of a comma-separated text."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _names_record(given: str, record: PluginRecord) -> bool:
    return means(given, record.name) or same_distribution(given, record.distribution)


def _preference(item: str) -> tuple[str, str]:
    ep, equals, distribution = (part.strip() for part in item.partition("="))
    if not (ep and equals and distribution):
        raise InvalidArgument(
            f"the environment variable {PREFER_VARIABLE} has {item!r}, not of the form EP=distribution.",
            hint=f'Example: {PREFER_VARIABLE}="QNNExecutionProvider=epctx-sim-qnn"',
        )
    return ep, distribution
