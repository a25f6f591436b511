"""Errors and hints for EPs that are not found or cannot be used, with the reason and
the remedy.

Imported when an error is to be explained.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from epctx_core.errors import EpctxError, InvalidArgument, PluginError, suggestion
from epctx_core.installing import (
    EPS,
    OVER_ONNXRUNTIME,
    PACKAGES,
    KnownEp,
    install_command,
)
from epctx_core.options.choices import CPU_EP
from epctx_core.registry.guard import plugin_error
from epctx_core.registry.records import PluginRecord, PluginState, is_name_of


def known_ep(name: str) -> KnownEp | None:
    """Return an EP of onnxruntime by `X` or `XExecutionProvider`, without case."""
    return next((known for known in EPS if is_name_of(name, known.name)), None)


def describe_installation(name: str) -> str:
    """Return how to install a vendor's EP of onnxruntime, and what simulates it; empty
    for an EP that is not known.
    """
    known = known_ep(name)
    if known is None:
        return ""
    package = known.package or known.build
    needed = () if package in PACKAGES else (OVER_ONNXRUNTIME,)
    text = f"{install_command(package, *needed)} provides {known.name}"
    if not package:
        text = (
            f"epctx has no package for {known.name} ({known.vendor}): "
            f"{known.reserved} is reserved for it"
        )
    elif package == known.build:
        where = f" on {known.system}" if known.system else ""
        text += f"{where}, in place of another onnxruntime"

    simulated = known.reserved.replace("epctx-", "epctx-sim-", 1)
    if simulated in PACKAGES:
        text += (
            f"; {install_command(simulated)} provides a simulated one, which does not "
            "read payloads made for hardware"
        )
    return f"{text}."


_MISSING_LIBRARY = re.compile(
    r"\S+(?=: cannot open shared object file)|(?<=Library not loaded: )\S+"
)
"""Words of the loaders of Linux and macOS for a library that is not found."""
_SUFFIX = re.compile("ExecutionProvider$", re.IGNORECASE)
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
        'To use this one, name it "{package}:{ep}", set EPCTX_PREFER="{ep}={package}", '
        "or uninstall the other."
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
    _, colon, short = name.rpartition(":")
    eps = list(dict.fromkeys(r.name for r in named))
    if len(eps) > 1:
        return InvalidArgument(
            f"{name!r} can mean {' or '.join(eps)}.",
            hint="Give the exact EP name; its case is significant here.",
        )

    if eps:
        return unusable_error(named)
    if is_name_of(short, CPU_EP):
        return InvalidArgument(
            f"{CPU_EP} is built in: no plugin provides it.", ep=CPU_EP
        )
    installed = sorted(
        {
            r.qualified_name if colon else r.name
            for r in records
            if r.entry_point and r.state is not PluginState.REMOVED
        }
    )
    return InvalidArgument(
        "no installed plugin provides the Execution Provider "
        f"{name!r}.{_suggest_closest(name, [CPU_EP, *installed])} Installed: "
        f"{', '.join(installed) or 'none'}.",
        hint=describe_installation(short)
        or "`epctx plugins list` shows every plugin, `epctx doctor` checks why one is "
        "not found, `epctx plugins new` creates one.",
    )


def _suggest_closest(name: str, names: Sequence[str]) -> str:
    """Suggest a name; the suffix that all EP names have in common must not make them
    look similar.
    """
    stems = [_SUFFIX.sub("", known) for known in names]
    return suggestion(_SUFFIX.sub("", name), [*names, *stems])


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
    library = _MISSING_LIBRARY.search(record.reason)
    if library is not None:
        hint = (
            f"Install {library[0]}, which {record.distribution} needs, or add its "
            "folder to the search path of libraries, such as LD_LIBRARY_PATH."
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
    closest = [r for r in near if source in r.sources] or near
    usable = [r for r in closest if r.usable]
    if usable:
        listed = f" ({', '.join(among)})" if among else ""
        return (
            (
                f"No EP of this session{listed} accepts the source {source!r}; "
                f"{usable[0].label} accepts "
                f"{', '.join(repr(s) for s in usable[0].sources)}."
            ),
            (
                f"Add {usable[0].name!r} to the providers if it is not there; the case "
                "of a source is significant."
            ),
        )

    if closest:
        error = unusable_error(closest)
        why = f"No EP accepts the source {source!r}: {error.message}"
        return why, error.hint or ""
    sources = sorted({s for r in records if r.usable for s in r.sources})
    why = (
        "No installed plugin accepts the source "
        f"{source!r}.{_suggest_closest(source, sources)} Sources installed: "
        f"{', '.join(sources) or 'none'}."
    )
    hint = (
        "Install the EP package that made this model; `epctx plugins list` shows the "
        "installed ones."
    )
    return why, describe_installation(source) or hint
