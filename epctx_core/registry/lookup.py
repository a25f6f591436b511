"""Answers from records alone which EP a host's name means, and why a node's source found none.

Imports no plugin and changes no state.
"""

from __future__ import annotations

from collections.abc import Sequence

from epctx_core.errors import InvalidArgument, PluginError, suggestion
from epctx_core.registry.discovery import CPU_PROVIDER
from epctx_core.registry.guard import plugin_error
from epctx_core.registry.known_sources import known_name, known_source
from epctx_core.registry.records import PluginRecord, PluginState, means, same_distribution

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
