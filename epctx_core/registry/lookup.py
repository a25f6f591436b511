"""Look-up of an EP by a host's name or a node's source, and errors and hints for one
that is not found or cannot be used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from epctx_core.errors import InvalidArgument, PluginError, suggestion
from epctx_core.frozen import dataclass
from epctx_core.options.choices import CPU_EP
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
        preferred: `<distribution>:<EP name>`, long or short, of each EP whose
            distribution is chosen.
    """

    only: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Selection:
        """Read EPCTX_PLUGINS, EPCTX_DISABLE_PLUGINS and EPCTX_PREFER.

        Raises:
            InvalidArgument: EPCTX_PREFER is not of the form `EP=distribution,...`.
        """
        only = environment.get(ONLY_VARIABLE)
        preferred = split_names(environment.get(PREFER_VARIABLE, ""))
        return cls(
            only=None if only is None else split_names(only),
            disabled=split_names(environment.get(DISABLE_VARIABLE, "")),
            preferred=tuple(map(_parse_preference, preferred)),
        )

    def apply(
        self,
        records: Iterable[PluginRecord],
        *,
        chosen: Iterable[str],
        registered: Collection[str],
    ) -> list[PluginRecord]:
        """Return the records, with the states DISABLED and DUPLICATE where they apply.

        Args:
            records: as discovered and loaded so far.
            chosen: `<distribution>:<EP name>` as chosen by the host; before those of
                the environment.
            registered: names of EPs of which the host registered a class.
        """
        allowed = [self._disable(record) for record in records]
        names = [*chosen, *self.preferred]
        return [
            _pass_over(record, allowed, names, registered) if record.usable else record
            for record in allowed
        ]

    def list_misspelt(self, records: Sequence[PluginRecord]) -> list[str]:
        """Return a sentence for each name that matches no record: most likely
        misspelt.
        """
        named = {
            ONLY_VARIABLE: self.only or (),
            DISABLE_VARIABLE: self.disabled,
            PREFER_VARIABLE: self.preferred,
        }
        return [
            f"{variable} names {name!r}, which is neither an installed EP nor its "
            "distribution"
            for variable, names in named.items()
            for name in names
            if not any(_name_any([name], record) for record in records)
        ]

    def _disable(self, record: PluginRecord) -> PluginRecord:
        if _name_any(self.disabled, record):
            reason = f"{DISABLE_VARIABLE} names it"
        elif self.only is not None and not _name_any(self.only, record):
            reason = f"{ONLY_VARIABLE} does not name it"
        else:
            return record
        return replace(record, state=PluginState.DISABLED, reason=reason)


_OUT = (PluginState.DISABLED, PluginState.REMOVED)


def _pass_over(
    record: PluginRecord,
    records: Sequence[PluginRecord],
    preferred: Iterable[str],
    registered: Collection[str],
) -> PluginRecord:
    """Return a usable record, as a DUPLICATE if it does not provide its EP.

    Args:
        record: the record.
        records: all.
        preferred: `<distribution>:<EP name>` as the host and the environment chose.
        registered: names of EPs of which the host registered a class.
    """
    rivals = [
        r
        for r in records
        if r.name == record.name and r.entry_point and r.state not in _OUT
    ]
    real = [r for r in rivals if not r.simulated]
    chosen = [r for name in preferred for r in find_by_name(name, rivals)]
    if record.name in registered:
        reason = "the host registered a class of this EP name"
    elif record in chosen[:1] or rivals == [record]:
        return record
    elif chosen:
        reason = f"{chosen[0].origin} was preferred"
    elif len(real) == 1 and real[0].simulated is not None:
        if record in real:
            return record
        reason = f"it is simulated, and {real[0].origin} is not"
    else:
        reason = f"{' and '.join(r.origin for r in rivals)} provide {record.name}"

    is_decided = bool(chosen) or record.name in registered
    return replace(
        record, state=PluginState.DUPLICATE, reason=reason, passed_over=is_decided
    )


def _name_any(names: Iterable[str], record: PluginRecord) -> bool:
    """Return whether a name in the environment is that of an EP or of its
    distribution.
    """
    return any(
        find_by_name(name, [record]) or is_same_distribution(name, record.distribution)
        for name in names
    )


def _parse_preference(item: str) -> str:
    ep, equals, distribution = (part.strip() for part in item.partition("="))
    if not (ep and equals and distribution):
        raise InvalidArgument(
            f"the environment variable {PREFER_VARIABLE} has {item!r}, not of the "
            "form EP=distribution.",
            hint=f'Example: {PREFER_VARIABLE}="QNNExecutionProvider=epctx-sim-qnn"',
        )
    return qualify(ep, distribution)


def qualify(ep: str, distribution: str) -> str:
    """Return a host's name for an EP of a distribution; one that matches nothing if the
    name has another distribution.
    """
    named, _, short = ep.rpartition(":")
    return (
        f"{distribution}:{short if is_same_distribution(named, distribution) else ep}"
    )


def route_source(
    source: str,
    records: Sequence[PluginRecord],
    *,
    ordered: bool,
    accepts: Callable[[PluginRecord], bool],
) -> PluginRecord | None:
    """Return the record of the EP that accepts a source, or None.

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
    for matching in (
        (r for r in records if r.name == source),
        (r for r in records if source in r.sources),
        # Nothing is imported before the others are tried.
        (
            r
            for r in records
            if r.resembles(source) and (r.undecided or (r.usable and accepts(r)))
        ),
    ):
        tier = list(matching)
        usable = [r for r in tier if r.usable]
        if len(usable) > 1 and not ordered:
            raise plugin_error(
                f"the source {source!r} is ambiguous: "
                f"{' and '.join(r.label for r in usable)} accept it.",
                usable[0],
                hint="List the one to use first among the session's providers.",
            )
        if usable:
            return usable[0]
        if any(r.undecided for r in tier):
            raise unusable_error(tier)
    return None


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
    candidates = [r for r in near if r.entry_point] or near
    candidates = [r for r in candidates if r.name == short] or candidates
    eps = list(dict.fromkeys(r.name for r in candidates))
    if len(eps) > 1:
        raise InvalidArgument(
            f"{name!r} can mean {' or '.join(eps)}.",
            hint="Give the exact EP name; its case is significant here.",
        )
    for record in candidates:
        if record.usable or (colon and record.state is PluginState.DUPLICATE):
            return record
    if candidates:
        raise unusable_error(candidates)
    if is_name_of(short, CPU_EP):
        raise InvalidArgument(
            f"{CPU_EP} is built in: no plugin provides it.", ep=CPU_EP
        )
    installed = {
        r.qualified_name if colon else r.name
        for r in records
        if r.state is not PluginState.REMOVED
    }
    known, hint = _describe_installed(name, installed | {CPU_EP})
    raise InvalidArgument(
        f"no installed plugin provides the Execution Provider {name!r}.{known}",
        hint=hint,
    )


_SUFFIX = "(?i)ExecutionProvider$"
_HINTS = {
    PluginState.BROKEN: (
        "Fix or reinstall {package}, install what it lacks, or keep it out with "
        "EPCTX_DISABLE_PLUGINS={package}."
    ),
    PluginState.DISABLED: (
        "Change that environment variable, then start again or call refresh_plugins()."
    ),
    PluginState.REMOVED: "Install {package} again, in a version that provides {ep}.",
    PluginState.RESTART_NEEDED: (
        "Restart the process to use the version that is installed now."
    ),
    PluginState.DUPLICATE: (
        'To use this one, name it "{package}:{ep}", set EPCTX_PREFER="{ep}={package}", '
        "or uninstall the other."
    ),
}


def _describe_installed(name: str, installed: Collection[str]) -> tuple[str, str]:
    """Return sentences about the names that are installed, for an error about another,
    and a hint.
    """
    from epctx_core.installing import describe_installation

    # The suffix that all EP names have in common must not make them look similar.
    stem, *stems = [re.sub(_SUFFIX, "", each) for each in (name, *installed)]
    known = ", ".join(sorted({*installed} - {CPU_EP})) or "none"
    hint = describe_installation(name.rpartition(":")[2]) or (
        "`epctx plugins list` shows every plugin, `epctx doctor` checks why one is not "
        "found, `epctx plugins new` creates one."
    )
    return f"{suggestion(stem, [*installed, *stems])} Installed: {known}.", hint


def unusable_error(records: Sequence[PluginRecord]) -> PluginError:
    """Return the error for records of one EP, none of which can be used: about one to
    repair, else about those to choose from.
    """
    record = min(
        records, key=lambda r: (r.state is not PluginState.BROKEN, not r.undecided)
    )
    why, hint = explain_unusable(record)
    return plugin_error(f"{why}.", record, hint=hint)


def explain_unusable(record: PluginRecord) -> tuple[str, str]:
    """Return the reason why a record can't be used, without a full stop, and a hint."""
    hint = _HINTS.get(record.state, "").format(
        package=record.distribution, ep=record.name
    )
    if record.undecided:
        return f"{record.name} is ambiguous: {record.reason}", hint
    return f"{record.label} can't be used ({record.state.value}): {record.reason}", hint


def explain_missing(
    source: str, records: Sequence[PluginRecord], among: Sequence[str] | None = None
) -> tuple[str, str]:
    """Return the reason why no EP accepted a node's source, and a hint.

    Args:
        source: the node's attribute; empty if it has none.
        records: all records, in any state.
        among: names of the session's EPs, if the host listed them.
    """
    if not source:
        return (
            "The node has no source, and epctx never guesses which EP made it.",
            (
                "Compile the context model again; its EPContext nodes need the "
                "attribute 'source'."
            ),
        )

    near = [r for r in records if r.resembles(source)]
    for record in near:
        if record.usable:
            listed = f" ({', '.join(among)})" if among else ""
            why = (
                f"No EP of this session{listed} accepts the source {source!r}; "
                f"{record.label} accepts {', '.join(map(repr, record.sources))}."
            )
            hint = (
                f"Add {record.name!r} to the providers if it is not there; the case of "
                "a source is significant."
            )
            return why, hint

    if near:
        error = unusable_error(near)
        why = f"No EP accepts the source {source!r}: {error.message}"
        return why, error.hint or ""
    sources = {s for r in records if r.usable for s in r.sources}
    known, hint = _describe_installed(source, sources)
    return f"No installed plugin accepts the source {source!r}.{known}", hint
