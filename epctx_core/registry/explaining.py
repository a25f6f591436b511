"""Errors and hints for EPs that are not found or cannot be used, with the reason and
the remedy.

Imported when an error is to be explained.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from epctx_core.errors import EpctxError, InvalidArgument, PluginError, suggestion
from epctx_core.installing import (
    OVER_ONNXRUNTIME,
    PACKAGES,
    VENDORS,
    install_command,
)
from epctx_core.options.choices import CPU_EP
from epctx_core.registry.guard import plugin_error
from epctx_core.registry.records import (
    PluginRecord,
    PluginState,
    is_name_of,
    is_same_distribution,
)


def known_ep(name: str) -> tuple[str, str, str] | None:
    """Return EP name, vendor and reserved distribution of an EP of onnxruntime; `X` or
    `XExecutionProvider`, without case.
    """
    return next(
        (
            (ep, vendor, reserved)
            for ep, (vendor, reserved, *_) in VENDORS.items()
            if is_name_of(name, ep)
        ),
        None,
    )


def describe_installation(name: str) -> str:
    """Return how to install a vendor's own EP of onnxruntime; empty for an EP that is
    not known.
    """
    known = known_ep(name)
    if known is None:
        return ""
    ep, vendor, reserved = known
    package = VENDORS[ep].package
    if package:
        return f"{install_command(package)} provides it, over {vendor}'s own libraries."
    return _describe_wheels(ep) or (
        f"epctx has no package for {ep} ({vendor}): install the vendor's plugin for "
        f"epctx if there is one ({reserved} is reserved for it)."
    )


def _get_install_hint(name: str, other: str) -> str:
    """Return a hint how to get an EP of onnxruntime, with a warning that a simulated
    one is not the vendor's; else `other`.
    """
    known = known_ep(name)
    if known is None:
        return other
    ep, vendor, reserved = known
    real = describe_installation(ep)
    package = reserved.replace("epctx-", "epctx-sim-", 1)
    if package not in PACKAGES:
        return real
    return (
        f"{real} {package} provides a simulated one ({install_command(package)}) for "
        f"the source {ep!r}, which does not read payloads made for {vendor} hardware."
    )


def _describe_wheels(ep: str) -> str:
    """Return how to install the wheels of onnxruntime with an EP; empty if there are
    none.
    """
    known = VENDORS[ep]
    sentences = []
    if known.wheel:
        command = install_command(known.wheel, OVER_ONNXRUNTIME)
        sentences.append(f"{command} provides {ep}, beside an onnxruntime.")
    if known.build:
        command = install_command(known.build, OVER_ONNXRUNTIME)
        where = f" on {known.system}" if known.system else ""
        sentences.append(
            f"{ep} is inside {known.build}{where}: {command}, in place of another "
            "onnxruntime."
        )
    return " ".join(sentences)


def ambiguous_source_error(source: str, records: Sequence[PluginRecord]) -> PluginError:
    """Return the error for a source that several EPs accept, none of which the host
    prefers.
    """
    return plugin_error(
        f"the source {source!r} is ambiguous: "
        f"{' and '.join(r.label for r in records)} accept it.",
        records[0],
        hint=(
            "List the one to use among the session's providers; the first one there "
            "that accepts a source gets it."
        ),
    )


_MISSING_LIBRARY = re.compile(
    r"\S+(?=: cannot open shared object file)|(?<=Library not loaded: )\S+"
)
"""Words of the loaders of Linux and macOS for a library that is not found."""
_SUFFIX = "ExecutionProvider"
_HINTS = {
    PluginState.BROKEN: (
        "Fix or reinstall {package}, or keep it out with "
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
        'Uninstall one, or choose: name it "{package}:{ep}", set '
        'EPCTX_PREFER="{ep}={package}", or call registry.prefer({ep!r}, '
        "distribution={package!r})."
    ),
}


def unresolved_error(
    name: str, named: Sequence[PluginRecord], records: Sequence[PluginRecord]
) -> EpctxError:
    """Return the error for a name from a host that matches no usable EP.

    Args:
        name: as the host gave it.
        named: the records that it matches.
        records: all records.
    """
    distribution, colon, short = name.rpartition(":")
    types = list(dict.fromkeys(r.name for r in named))
    if colon and not any(
        is_same_distribution(r.distribution, distribution) for r in records
    ):
        packages = sorted({r.distribution for r in records if r.distribution})
        return InvalidArgument(
            f"{name!r}: no distribution {distribution!r} with an Execution Provider "
            f"is installed.{suggestion(distribution, packages)} Installed: "
            f"{_join_names(packages)}.",
            hint="Write <distribution>:<EP name>, or the EP name alone.",
        )

    if len(types) > 1:
        return InvalidArgument(
            f"{name!r} can mean {' or '.join(types)}.",
            hint="Give the exact EP name; its case is significant here.",
        )

    if types:
        return unusable_error(named)
    if is_name_of(short, CPU_EP):
        return InvalidArgument(
            f"{CPU_EP} is built in: no plugin provides it.", ep=CPU_EP
        )
    installed = sorted(
        {
            r.name
            for r in records
            if r.entry_point and r.state is not PluginState.REMOVED
        }
    )
    return InvalidArgument(
        "no installed plugin provides the Execution Provider "
        f"{name!r}.{_suggest_closest(short, [CPU_EP, *installed])} Installed: "
        f"{_join_names(installed)}.",
        hint=_get_install_hint(
            short,
            (
                "`epctx plugins list` shows every plugin, `epctx doctor` checks why "
                "one is not found, `epctx plugins new` creates one."
            ),
        ),
    )


def _suggest_closest(name: str, names: Sequence[str]) -> str:
    """Suggest a name; the suffix that all EP names have in common must not make them
    look similar.
    """
    is_long = name.casefold().endswith(_SUFFIX.casefold())
    stem = name[: -len(_SUFFIX)] if is_long else name
    stems = sorted({k.removesuffix(_SUFFIX) for k in names})
    return (
        suggestion(name, [*names, *stems]) if stem == name else suggestion(stem, stems)
    )


def _join_names(names: Sequence[str]) -> str:
    """Return names separated by commas, or "none"."""
    return ", ".join(names) or "none"


def unusable_error(records: Sequence[PluginRecord]) -> PluginError:
    """Return the error for records of one EP, none of which can be used."""
    record = _pick_most_useful(records)
    why, hint = explain_unusable(record)
    if record.state is PluginState.BROKEN:
        hint += f" `epctx plugins info {record.name} -v` shows all that is known."
    return plugin_error(f"{why}.", record, hint=hint)


def _pick_most_useful(records: Sequence[PluginRecord]) -> PluginRecord:
    """Return the record that a user can act on: one to choose first, then one to
    repair.
    """
    return min(
        records,
        key=lambda r: (
            not r.undecided,
            r.passed_over,
            r.state is not PluginState.BROKEN,
        ),
    )


def explain_unusable(record: PluginRecord) -> tuple[str, str]:
    """Return the reason why a record can't be used, without a full stop, and a hint."""
    hint = _HINTS.get(record.state, "").format(
        package=record.distribution, ep=record.name
    )
    library = _MISSING_LIBRARY.search(record.reason)
    if library is not None:
        hint = (
            f"Install {library[0]}, which {record.distribution} needs "
            "(of a vendor's SDK or driver), or add its folder to the search path of "
            f"libraries, such as LD_LIBRARY_PATH. {hint}"
        )
    if record.passed_over:
        hint = (
            f'Name it "{record.qualified_name}" among the providers to use it anyway.'
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
    exact = [r for r in near if source in r.sources]
    usable = [r for r in exact or near if r.usable]
    if near and not usable:
        records = exact or near
        why, hint = explain_unusable(_pick_most_useful(records))
        removed = all(record.state is PluginState.REMOVED for record in records)
        verb = "was" if removed else "is"
        return (
            f"The plugin for the source {source!r} {verb} installed, but {why}.",
            hint,
        )
    if exact:
        others = ", ".join(among or ["the CPU EP alone"])
        return (
            (
                f"{usable[0].label} accepts the source {source!r}, but is not among "
                f"this session's providers: {others}."
            ),
            (
                f"Add {usable[0].name!r} to the providers, or pass no list to use "
                "every installed plugin."
            ),
        )

    if near:
        names = _join_names(sorted({repr(s) for r in usable for s in r.sources}))
        return (
            (
                f"No EP of this session accepts the source {source!r}; "
                f"{usable[0].label} accepts {names}."
            ),
            (
                "Case is significant unless the EP says otherwise. Is "
                f"{usable[0].name!r} among the session's providers?"
            ),
        )

    sources = sorted({s for r in records if r.usable for s in r.sources})
    why = (
        "No installed plugin accepts the source "
        f"{source!r}.{_suggest_closest(source, sources)}"
    )
    why += f" Sources installed: {_join_names(sources)}."
    hint = (
        "Install the EP package that made this model; `epctx plugins list` shows the "
        "installed ones."
    )
    return why, _get_install_hint(source, hint)
