"""The plugins: which are found and what keeps one from being used, and packages that should bring one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from epctx_cli.doctor.findings import Remark, note, problem
from epctx_cli.doctor.libraries import CORE
from epctx_core.registry.discovery import EP_GROUP

if TYPE_CHECKING:
    from epctx_cli.plugins.trial import Trial
    from epctx_core.registry.uninstalled import InstalledDistribution

_NEEDED = re.compile(r"^Requires-Dist:\s*([\w.-]+)", re.MULTILINE)
CHECKS = "epctx-conformance"
"""The package that `epctx plugins check` needs."""
_CHOSEN = frozenset({"disabled", "removed"})


def examine(trials: Sequence[Trial]) -> Iterator[Remark]:
    """Say which plugins cannot be used, why, and what to do."""
    from epctx_core.registry.explaining import why_unusable

    if not trials:
        yield note(
            "no plugin is installed: models run on the CPU EP, and nothing can be compiled.",
            "Install one, or begin one with `epctx plugins new`.",
        )
    for trial in trials:
        record = trial.record
        state = record.state.value
        if record.usable and record.reason:
            hints = dict.fromkeys(a["hint"] for a in trial.availability.values() if a["hint"])
            yield note(f"{record.label}: {record.reason}.", " ".join(hints))
        elif not record.usable:
            why, hint = why_unusable(record)
            harmless = state in _CHOSEN or record.passed_over
            yield (note if harmless else problem)(f"{why}.", hint)


def examine_packages(trials: Sequence[Trial]) -> Iterator[Remark]:
    """Say which installed packages need epctx-core and yet bring no EP that was found.

    A library that another of them needs, an extra of epctx-core brings or a command is in, is right so.
    """
    from epctx_core.registry.discovery import distributions
    from epctx_core.registry.records import normalised

    needs: dict[str, frozenset[str]] = {}
    for distribution in distributions():
        name = _name(distribution)
        if name is not None:
            needs.setdefault(normalised(name), _needs(distribution))
    ours = {name for name, needed in needs.items() if CORE in needed}
    bringing = {normalised(t.record.distribution) for t in trials if t.record.distribution}
    libraries = {needed for name in (*ours, CORE) for needed in needs.get(name, ())} | {CHECKS}
    for name in sorted(ours - bringing - libraries):
        yield note(
            f"{name} needs epctx-core, but has no entry point of the group {EP_GROUP}.",
            "Right for a library. If it should bring an EP, add the entry point and install it again.",
        )


def _name(distribution: InstalledDistribution) -> str | None:
    try:
        return distribution.name or None
    except Exception:  # noqa: BLE001 - metadata of packages that are none of ours fails in many ways
        return None


def _needs(distribution: InstalledDistribution) -> frozenset[str]:
    """Return the distributions that one needs, with or without an extra."""
    from epctx_core.registry.records import normalised

    try:
        metadata = distribution.read_text("METADATA") or ""
    except (OSError, UnicodeDecodeError):
        return frozenset()
    return frozenset(normalised(name) for name in _NEEDED.findall(metadata))
