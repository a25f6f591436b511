"""EPs that a context model needs and a session does not have: those of kernels, and those of nodes that nobody loads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from epctx_core.errors import EpctxError, NotImplementedByProvider
from epctx_core.sessions.providers import check_availability, stem

if TYPE_CHECKING:
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.plugin import Purpose
    from epctx_core.registry.records import PluginRecord
    from epctx_core.registry.registry import Registry
    from epctx_core.sessions.providers import SkippedProvider

_log = logging.getLogger("epctx.providers")


def find_kernel_provider(
    ep: str, registry: Registry, purpose: Purpose | None, *, is_isolated: bool
) -> PluginRecord | None:
    """Return an EP whose kernels ran nodes when a model was compiled, None for one that cannot be had: the log says why.

    Args:
        is_isolated: whether it would be in a process of its own, for its kernels alone: functions cannot leave that.
    """
    reason = "ep.isolate=all leaves kernels out"
    try:
        record = None if is_isolated else registry.route(ep)
        if record is not None:
            registry.load(record)
            if purpose is not None:
                check_availability(record, purpose, registry)
            return record
        if not is_isolated:
            reason = registry.explain_missing(ep)[0]
    except EpctxError as error:
        reason = error.message
    _log.warning(
        "kernels of %s ran nodes of this model when it was compiled; the session goes without: %s", ep, reason
    )
    return None


def nobody_loads(
    node: ContextNodeRecord,
    listed: Sequence[str] | None,
    skipped: Sequence[SkippedProvider],
    registry: Registry,
) -> NotImplementedByProvider:
    """Return the error for an EPContext node that no EP of a session takes.

    Args:
        node: the node.
        listed: the session's EPs if the host named them, else None.
        skipped: optional EPs that the session goes without.
        registry: where EPs are looked up.
    """
    skip = next((skip for skip in skipped if stem(skip.name) == stem(node.source)), None)
    # By names alone: the host named which EPs may be imported.
    known = {s.casefold() for record in registry.records() if record.usable for s in record.sources}
    hint: str | None
    if skip is not None:
        why, hint = f"the optional EP {skip.name} was skipped: {skip.reason}", skip.hint
    elif listed is not None and node.source.casefold() in known:
        why = f"the session's providers are {', '.join(listed) or 'none but the CPU EP'}"
        hint = "Add the EP that takes it to the providers, or give no providers to have it found."
    elif not node.source:
        why, hint = "the model does not say which EP made it", "It needs the attribute 'source'."
    else:
        why, hint = registry.explain_missing(node.source)
    source = repr(node.source) if node.source else "no source"
    return NotImplementedByProvider(
        f"EPContext node {node.name!r} (source {source}) has no EP to load it: {why.rstrip('.')}.",
        node=node.name,
        hint=hint,
    )
