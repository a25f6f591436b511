"""Finds the EP for a node's `source`.

Decides by records alone, and has a class asked only where names differ by case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from epctx_core.registry.guard import plugin_error
from epctx_core.registry.lookup import unusable

if TYPE_CHECKING:
    from epctx_core.errors import PluginError
    from epctx_core.registry.records import PluginRecord


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
