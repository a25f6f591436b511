"""Look-up of an EP by a host's name or a node's source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from epctx_core.errors import InvalidArgument
from epctx_core.options.table import split_names
from epctx_core.registry.guard import plugin_error
from epctx_core.registry.records import (
    PluginRecord,
    PluginState,
    is_name_of,
    is_same_distribution,
)

ONLY_VARIABLE = "EPCTX_PLUGINS"
DISABLE_VARIABLE = "EPCTX_DISABLE_PLUGINS"
PREFER_VARIABLE = "EPCTX_PREFER"

NAMES_VARIABLE = "EPCTX_HOST_PLUGINS"
"""Names of host plugins of installed packages, separated by commas, for all sessions of
a process.
"""
TRACE_VARIABLE = "EPCTX_TRACE"
"""Any value but 0: the plugin `trace` of epctx-conformance is one of them."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Selection of plugins by environment variables.

    Attributes:
        only: names of the only plugins allowed, or None for all.
        disabled: names of disabled plugins.
        preferred: EP name (long or short) to the distribution that is to provide it.
    """

    only: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()
    preferred: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Selection:
        """Read EPCTX_PLUGINS, EPCTX_DISABLE_PLUGINS and EPCTX_PREFER.

        Raises:
            InvalidArgument: EPCTX_PREFER is not of the form `EP=distribution,...`.
        """
        only = environment.get(ONLY_VARIABLE)
        return cls(
            only=None if only is None else split_names(only),
            disabled=split_names(environment.get(DISABLE_VARIABLE, "")),
            preferred=dict(
                _parse_preference(item)
                for item in split_names(environment.get(PREFER_VARIABLE, ""))
            ),
        )

    def apply(
        self,
        records: Iterable[PluginRecord],
        *,
        chosen: Mapping[str, str],
        registered: Collection[str],
    ) -> list[PluginRecord]:
        """Return the records, with the states DISABLED and DUPLICATE where they apply.

        Args:
            records: as discovered and loaded so far.
            chosen: EP name to distribution, as chosen by the host; has precedence over
                the environment.
            registered: names of EPs of which the host registered a class.
        """
        allowed = [self._disable(record) for record in records]
        return [self._settle(record, allowed, chosen, registered) for record in allowed]

    def list_misspelt(self, records: Sequence[PluginRecord]) -> list[str]:
        """Return a sentence for each name that matches no record: most likely
        misspelt.
        """
        named = [(ONLY_VARIABLE, name) for name in self.only or ()]
        named += [(DISABLE_VARIABLE, name) for name in self.disabled]
        problems = [
            f"{variable} names {name!r}, which is neither an installed EP nor its "
            "distribution"
            for variable, name in named
            if not any(matches_record(name, record) for record in records)
        ]
        return problems + [
            f"{PREFER_VARIABLE} prefers {distribution!r} for {ep!r}, which it does not "
            "provide"
            for ep, distribution in self.preferred.items()
            if not any(
                is_same_distribution(distribution, r.distribution)
                for r in find_by_name(ep, records)
            )
        ]

    def _disable(self, record: PluginRecord) -> PluginRecord:
        reason = ""
        if any(matches_record(name, record) for name in self.disabled):
            reason = f"{DISABLE_VARIABLE} names it"
        elif self.only is not None and not any(
            matches_record(name, record) for name in self.only
        ):
            reason = f"{ONLY_VARIABLE} does not name it"
        return (
            replace(record, state=PluginState.DISABLED, reason=reason)
            if reason
            else record
        )

    def _settle(
        self,
        record: PluginRecord,
        records: Sequence[PluginRecord],
        chosen: Mapping[str, str],
        registered: Collection[str],
    ) -> PluginRecord:
        """Mark a record as duplicate if another one has, or could have, its EP name."""
        if not record.usable:
            return record
        why = "the host registered a class of this EP name"
        is_chosen = True
        if record.name not in registered:
            rivals = [
                r
                for r in records
                if r.name == record.name and r.entry_point and r.state not in _OUT
            ]
            if len(rivals) == 1:
                return record
            preferred = self.preferred
            if record.name in chosen:
                preferred = {record.name: chosen[record.name]}
            winner = next(
                (
                    r
                    for ep, distribution in preferred.items()
                    for r in find_by_name(ep, rivals)
                    if is_same_distribution(r.distribution, distribution)
                ),
                None,
            )
            is_chosen = winner is not None
            real = [r for r in rivals if not r.simulated]
            if winner is not None:
                why = f"{winner.origin} was preferred"
            elif len(real) == 1 and real[0].simulated is not None:
                winner = real[0]
                why = f"it is simulated, and {winner.origin} is not"
            else:
                origins = " and ".join(r.origin for r in rivals)
                why = f"{origins} provide {record.name}"
            if record is winner:
                return record

        return replace(
            record, state=PluginState.DUPLICATE, reason=why, passed_over=is_chosen
        )


_OUT = (PluginState.DISABLED, PluginState.REMOVED)


def matches_record(name: str, record: PluginRecord) -> bool:
    """Return whether a name in the environment is that of an EP or of its
    distribution.
    """
    return bool(find_by_name(name, [record])) or is_same_distribution(
        name, record.distribution
    )


def _parse_preference(item: str) -> tuple[str, str]:
    ep, equals, distribution = (part.strip() for part in item.partition("="))
    if not (ep and equals and distribution):
        raise InvalidArgument(
            f"the environment variable {PREFER_VARIABLE} has {item!r}, not of the "
            "form EP=distribution.",
            hint=f'Example: {PREFER_VARIABLE}="QNNExecutionProvider=epctx-sim-qnn"',
        )
    return ep, distribution


def route_source(
    source: str,
    records: Sequence[PluginRecord],
    *,
    ordered: bool,
    accepts: Callable[[PluginRecord], bool],
) -> PluginRecord | None:
    """Return the record whose EP accepts a source, or None.

    Args:
        source: the node's attribute.
        records: the candidates; unusable ones are skipped.
        ordered: whether their order is the host's priority, so that the first one wins
            a tie.
        accepts: imports a record's class and calls it; only for names that differ by
            case.

    Raises:
        PluginError: several distributions could accept it, and none was chosen.
    """
    if not source:
        return None
    for tier in (
        [r for r in records if r.name == source],
        [r for r in records if source in r.sources],
    ):
        record = _pick_single(source, tier, ordered=ordered)
        if record is not None:
            return record

    near = [
        r
        for r in records
        if r.resembles(source) and (r.undecided or (r.usable and accepts(r)))
    ]
    return _pick_single(source, near, ordered=ordered)


def _pick_single(
    source: str, tier: Sequence[PluginRecord], *, ordered: bool
) -> PluginRecord | None:
    usable = [r for r in tier if r.usable]
    if len(usable) > 1 and not ordered:
        raise plugin_error(
            f"the source {source!r} is ambiguous: "
            f"{' and '.join(r.label for r in usable)} accept it.",
            usable[0],
            hint="List the one to use first among the session's providers.",
        )
    if not usable and any(r.undecided for r in tier):
        from epctx_core.registry.explaining import unusable_error

        raise unusable_error(tier)
    return usable[0] if usable else None


def find_by_name(name: str, records: Iterable[PluginRecord]) -> list[PluginRecord]:
    """Return the records that match a host's name, usable or not."""
    distribution, colon, short = name.rpartition(":")
    near = [r for r in records if is_name_of(short, r.name)]
    return (
        [r for r in near if is_same_distribution(distribution, r.distribution)]
        if colon
        else near
    )


def pick_by_name(name: str, records: Sequence[PluginRecord]) -> PluginRecord:
    """Return the record that matches a host's name: `X`, `XExecutionProvider` or
    `<distribution>:X`.

    A record named with its distribution may be in state DUPLICATE: naming it chooses
    it.

    Raises:
        InvalidArgument: no such EP, or the name matches several EPs.
        PluginError: the EP can't be used, or two distributions provide it.
    """
    near = find_by_name(name, records)
    _, colon, short = name.rpartition(":")
    # A record without an entry point is a complaint about metadata; it must not hide an
    # EP of a like name.
    named = [r for r in near if r.entry_point] or near
    named = [r for r in named if r.name == short] or named
    good = [
        r for r in named if r.usable or (colon and r.state is PluginState.DUPLICATE)
    ]
    if good and len({r.name for r in named}) == 1:
        return good[0]
    from epctx_core.registry.explaining import unresolved_error

    raise unresolved_error(name, named, records)
