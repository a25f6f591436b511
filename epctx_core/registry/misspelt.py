"""Names in the environment that match no EP and no distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epctx_core.registry.lookup import (
    DISABLE_VARIABLE,
    ONLY_VARIABLE,
    PREFER_VARIABLE,
    find_by_name,
    matches_record,
)
from epctx_core.registry.records import is_same_distribution

if TYPE_CHECKING:
    from epctx_core.registry.lookup import Selection
    from epctx_core.registry.records import PluginRecord


def find_misspelt(selection: Selection, records: Sequence[PluginRecord]) -> list[str]:
    """Return a sentence for each name in the environment that matches no record: most
    likely misspelt.
    """
    named = [(ONLY_VARIABLE, name) for name in selection.only or ()]
    named += [(DISABLE_VARIABLE, name) for name in selection.disabled]
    found = [
        f"{variable} names {name!r}, which is neither an installed EP nor its "
        "distribution"
        for variable, name in named
        if not any(matches_record(name, record) for record in records)
    ]
    return found + [
        f"{PREFER_VARIABLE} prefers {distribution!r} for {ep!r}, which it does not "
        "provide"
        for ep, distribution in selection.preferred.items()
        if not any(
            is_same_distribution(distribution, r.distribution)
            for r in find_by_name(ep, records)
        )
    ]
