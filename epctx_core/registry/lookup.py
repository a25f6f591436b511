"""Look-up of an EP by the name that a host gives or the source that a node names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from epctx_core.errors import InvalidArgument, PluginError, suggestion
from epctx_core.registry.discovery import CPU_PROVIDER, known_name, known_source
from epctx_core.registry.guard import plugin_error
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


def route_source(
    source: str, records: Sequence[PluginRecord], *, ordered: bool, accepts: Callable[[PluginRecord], bool]
) -> PluginRecord | None:
    """Return the record that takes a source, or None.

    Args:
        source: as the node says it.
        records: those that may take it; unusable ones are passed by.
        ordered: whether their order is the host's priority, so that the first one wins a tie.
        accepts: imports a record's class and asks it; called only for names that differ by case.

    Raises:
        PluginError: it is undecided which of several distributions takes it.
    """
    if not source:
        return None
    for tier in (
        [r for r in records if r.name == source],
        [r for r in records if source in r.sources],
    ):
        found = _one(source, tier, ordered=ordered)
        if found is not None:
            return found
    near = [r for r in records if any(s.casefold() == source.casefold() for s in r.sources)]
    takers = (r for r in near if r.usable and accepts(r))
    found = next(takers, None) if ordered else _one(source, list(takers), ordered=False)
    return found if found is not None else _one(source, [r for r in near if r.undecided], ordered=ordered)


def _one(source: str, tier: Sequence[PluginRecord], *, ordered: bool) -> PluginRecord | None:
    usable = [r for r in tier if r.usable]
    undecided = [r for r in tier if r.undecided]
    if usable and (ordered or len(usable) == 1):
        return usable[0]
    if usable:
        raise _contested(source, usable)
    if undecided:
        raise unusable(undecided)
    return None


def _contested(source: str, records: Sequence[PluginRecord]) -> PluginError:
    labels = " and ".join(record.label for record in records)
    return plugin_error(
        f"the source {source!r} is ambiguous: {labels} take it.",
        records[0],
        hint="Name the one to use among the session's providers; there the first that takes a source has it.",
    )


_SUFFIX = "ExecutionProvider"
_HINTS = {
    PluginState.BROKEN: "Fix or reinstall {package}, or keep it out with EPCTX_DISABLE_PLUGINS={package}; "
    "`epctx plugins info {ep} -v` shows all that is known.",
    PluginState.DISABLED: "Change that environment variable, then start again or call refresh_plugins().",
    PluginState.API_TOO_NEW: "Upgrade epctx-core, or install an older version of {package}.",
    PluginState.REMOVED: "Install {package} again, in a version that brings {ep}.",
    PluginState.RESTART_NEEDED: "Restart the process to use the version that is installed now.",
    PluginState.DUPLICATE: 'Uninstall one, or choose: name it "{package}:{ep}", '
    'set EPCTX_PREFER="{ep}={package}", or call registry.prefer({ep!r}, distribution={package!r}).',
}


def pick_by_name(name: str, records: Sequence[PluginRecord]) -> PluginRecord:
    """Return the record that a host's name means: `X`, `XExecutionProvider` or `<distribution>:X`.

    A record asked for with its distribution may be in state DUPLICATE: naming it is choosing it.

    Raises:
        InvalidArgument: no such EP, or the name fits several EP types.
        PluginError: it is there but can't be used, or two distributions bring it.
    """
    distribution, colon, short = name.rpartition(":")
    within = [r for r in records if same_distribution(r.distribution, distribution)] if colon else records
    if colon and not within:
        raise _unknown_distribution(name, distribution, records)
    # A record without an entry point is a complaint about metadata; it must not hide an EP of a like name.
    named = _named(short, [r for r in within if r.entry_point]) or _named(short, within)
    types = list(dict.fromkeys(r.name for r in named))
    if not types:
        raise unknown_name(name, short, records)
    if len(types) > 1:
        raise InvalidArgument(
            f"{name!r} can mean {' or '.join(types)}.", hint="Give the EP type exactly; here case counts."
        )
    good = [r for r in named if r.usable or (colon and r.state is PluginState.DUPLICATE)]
    if good:
        return good[0]
    raise unusable(named)


def _named(short: str, records: Sequence[PluginRecord]) -> list[PluginRecord]:
    return [r for r in records if r.name == short] or [r for r in records if means(short, r.name)]


def pick_by_distribution(ep: str, distribution: str, records: Sequence[PluginRecord]) -> list[PluginRecord]:
    """Return a distribution's records of the EPs that a host's name means.

    Raises:
        InvalidArgument: there are none.
    """
    bringing = [r for r in records if means(ep, r.name)]
    chosen = [r for r in bringing if same_distribution(r.distribution, distribution)]
    if not chosen:
        raise InvalidArgument(
            f"the distribution {distribution!r} does not bring {ep}.",
            ep=ep,
            hint=f"Who brings it: {listed([r.origin for r in bringing])}.",
        )
    return chosen


def others_of(record: PluginRecord, records: Sequence[PluginRecord], maker: object = None) -> str:
    """Return a sentence that names the other distributions of an EP type; empty where there is none.

    Args:
        record: of the one that is used.
        records: all there are.
        maker: who made what it is used for, as far as that is known.
    """
    if isinstance(maker, str) and same_distribution(record.distribution, maker):
        return ""
    names = [
        r
        for r in records
        if r.name == record.name
        and r.key != record.key
        and r.distribution
        and r.state is not PluginState.REMOVED
    ]
    made = [r for r in names if isinstance(maker, str) and same_distribution(r.distribution, maker)]
    return "".join(
        f" {r.origin} brings {r.name}, too{', and made this' if made else ''}: name it "
        f'"{r.distribution}:{r.name}" among the providers.'
        for r in made or names
    )


def unknown_name(name: str, short: str, records: Sequence[PluginRecord]) -> InvalidArgument:
    """Return the error for a name that no record has: what is installed, which package would bring it."""
    if means(short, CPU_PROVIDER):
        return InvalidArgument(f"{CPU_PROVIDER} is built in: no plugin brings it.", ep=CPU_PROVIDER)
    there = [r for r in records if r.entry_point and r.state is not PluginState.REMOVED]
    types = sorted({r.name for r in there if not _is_nameless(r)})
    close = _closest(short, types)
    known = known_name(short)
    return InvalidArgument(
        f"no installed plugin brings the Execution Provider {name!r}.{close} Installed: {listed(types)}."
        f"{_nameless(records)}",
        hint=known.hint(known.ep)
        if known
        else "`epctx plugins list` shows every plugin, "
        "`epctx doctor` what keeps one from being found, `epctx plugins new` begins one.",
    )


def _is_nameless(record: PluginRecord) -> bool:
    """Whether something was given that is too broken to tell its EP type."""
    return record.state is PluginState.BROKEN and bool(record.place) and record.distribution is None


def _nameless(records: Sequence[PluginRecord]) -> str:
    """Say what may be the EP that was asked for and cannot be told."""
    broken = [record for record in records if _is_nameless(record)]
    return "".join(f" What {r.place} gives is broken: {r.reason}." for r in broken)


def _closest(name: str, known: Sequence[str]) -> str:
    """Suggest a name; the suffix that all EP types have in common must not make them look alike."""
    stem = name.removesuffix(_SUFFIX)
    stems = sorted({k.removesuffix(_SUFFIX) for k in known})
    if stem == name:
        return suggestion(name, [*known, *stems])
    return suggestion(stem, stems)


def _unknown_distribution(name: str, distribution: str, records: Sequence[PluginRecord]) -> InvalidArgument:
    packages = sorted({r.distribution for r in records if r.distribution})
    return InvalidArgument(
        f"{name!r}: no distribution {distribution!r} with an Execution Provider is installed."
        f"{suggestion(distribution, packages)} Installed: {listed(packages)}.",
        hint="Write <distribution>:<EP type>, or the EP type alone.",
    )


def listed(names: Sequence[str]) -> str:
    """Return names as a user reads them, also when there are none."""
    return ", ".join(names) or "none"


def unusable(records: Sequence[PluginRecord]) -> PluginError:
    """Return the error for records of one EP type none of which can be used."""
    record = _most_telling(records)
    why, hint = why_unusable(record)
    return plugin_error(f"{why}.", record, hint=hint)


def _most_telling(records: Sequence[PluginRecord]) -> PluginRecord:
    """Prefer the record with which a user can do something: choose first, then repair."""
    return min(records, key=lambda r: (not r.undecided, r.passed_over, r.state is not PluginState.BROKEN))


def how_to_free(record: PluginRecord) -> str:
    """Return what a host does to register a class of its own under the EP type of a record."""
    if record.distribution is not None:
        return f"Set EPCTX_DISABLE_PLUGINS={record.distribution} to use the class of your own."
    if record.place:
        return f"Take {record.entry_point} out of {record.place}."
    return f"Call unregister({record.name!r}) first."


def why_unusable(record: PluginRecord) -> tuple[str, str]:
    """Return why a record can't be used, as a sentence without its full stop, and what to do about it."""
    if record.distribution is None:
        hint = f"Fix it, or take it out of {record.place or 'this program'}, and call refresh_plugins()."
    elif record.passed_over:
        hint = f'Name it "{record.distribution}:{record.name}" among the providers to have it all the same.'
    else:
        hint = _HINTS.get(record.state, "").format(package=record.distribution, ep=record.name)
    if record.undecided:
        return f"{record.name} is ambiguous: {record.reason}", hint
    return f"{record.label} can't be used ({record.state.value}): {record.reason}", hint


def explain(source: str, records: Sequence[PluginRecord]) -> tuple[str, str]:
    """Return why no EP took a node's source, and what to do: a sentence each.

    Args:
        source: as the node says it; empty for a node that says none.
        records: all there are, whatever their state.
    """
    if not source:
        return (
            "The node says no source, and which EP made it is never guessed.",
            "Have the context model compiled again; its EPContext nodes need the attribute 'source'.",
        )
    exact = [r for r in records if source in r.sources]
    near = [
        r for r in records if r not in exact and any(s.casefold() == source.casefold() for s in r.sources)
    ]
    for group in (exact, near):
        unusable_ones = [r for r in group if not r.usable]
        if unusable_ones and len(unusable_ones) == len(group):
            why, hint = why_unusable(_most_telling(unusable_ones))
            gone = all(r.state is PluginState.REMOVED for r in unusable_ones)
            return (
                f"The plugin for the source {source!r} {'was' if gone else 'is'} installed, but {why}.",
                hint,
            )
    if exact:
        usable = next(r for r in exact if r.usable)
        return (
            f"{usable.label} takes the source {source!r}, but is not among this session's providers.",
            f"Add {usable.name!r} to the providers, or give no list to use every installed plugin.",
        )
    return _nobody(source, near, records)


def _nobody(source: str, near: Sequence[PluginRecord], records: Sequence[PluginRecord]) -> tuple[str, str]:
    usable = [r for r in near if r.usable]
    if usable:
        names = listed(sorted({f"{s!r}" for r in usable for s in r.sources}))
        return (
            f"No EP of this session takes the source {source!r}; {usable[0].label} goes by {names}.",
            f"Case counts unless the EP says otherwise. Is {usable[0].name!r} among the session's providers?",
        )
    sources = sorted({s for r in records if r.usable for s in r.sources})
    close = _closest(source, sources)
    why = f"No installed plugin takes the source {source!r}.{close} Sources installed: {listed(sources)}."
    known = known_source(source)
    if known is not None:
        return why, known.hint(source)
    return (
        why,
        "Install the EP package that made this context model; `epctx plugins list` shows what is there.",
    )
