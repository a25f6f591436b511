"""Which plugins a user means by a name. Imports none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidArgument, NotImplementedByProvider, PluginError

if TYPE_CHECKING:
    from epctx_core.registry.records import PluginRecord


def named(name: str, records: Sequence[PluginRecord]) -> list[PluginRecord]:
    """Return the records that a name means, usable or not.

    Args:
        name: an EP, long or short, `<distribution>:<EP>`, or a distribution, which may bring several.
        records: all there are.

    Raises:
        NotImplementedByProvider: nothing of that name is installed.
        InvalidArgument: the name fits several EP types, or is the built-in CPU EP's.
    """
    from epctx_core.registry.lookup import pick_by_name
    from epctx_core.registry.records import means, same_distribution

    distribution, _, short = name.rpartition(":")
    found = [
        record
        for record in records
        if means(short, record.name)
        and (not distribution or same_distribution(distribution, record.distribution))
    ] or [record for record in records if same_distribution(name, record.distribution)]
    if found:
        return found
    try:
        return [pick_by_name(name, records)]
    except PluginError:
        raise
    except InvalidArgument as error:
        if "built in" in error.message:
            raise
        raise NotImplementedByProvider(error.message, ep=name, hint=error.hint) from error
