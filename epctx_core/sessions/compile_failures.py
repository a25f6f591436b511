"""Partitions that fail to compile and go on to the next EP, as the session option
`ep.on_compile_failure` asks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from epctx_core.errors import EPFail, describe, one_line
from epctx_core.sessions.assignment import RefusalRecord
from epctx_core.sessions.claims import compile_partitions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.graph.index import GraphIndex
    from epctx_core.plugin import Purpose
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.providers import ProviderSession

_log = logging.getLogger("epctx.session")


def compile_or_release(
    assignment: Assignment,
    partitions: Sequence[GraphPartition],
    providers: ProviderSession,
    purpose: Purpose,
) -> Sequence[str] | None:
    """Have an EP compile its partitions; release those that fail, and all that the EPs
    after it took.

    Each is compiled by a call of its own, so that the failing one is known and no EP
    gets a partition twice: EPs may keep what they are given.

    Returns:
        The EPs after it, which are to be asked again: they claim as if it had refused
        those nodes. None if nothing failed.

    Raises:
        PluginError: the EP broke the contract of `compile`.
        ModelLoadCanceled: the host asked to stop.
    """
    ep = partitions[0].ep
    failures: dict[GraphPartition, str] = {}
    for partition in partitions:
        try:
            compile_partitions(assignment, [partition], providers, purpose)
        except EPFail as error:
            if error.ep != ep:
                raise
            # An EP that is told to stop may fail by it.
            providers.cancel.raise_if_requested()
            _log.debug("%s", error.message, exc_info=error)
            cause = error.__cause__
            # The message begins with the plugin, which a refusal names anyway.
            failures[partition] = one_line(describe(cause)) if cause else error.message
    if not failures:
        return None
    _log.warning(
        "%s failed to compile %d of its %d partitions (nodes: %d), which go on to the "
        "next EP: %s",
        ep,
        len(failures),
        len(partitions),
        sum(len(partition.node_indices) for partition in failures),
        next(iter(failures.values())),
    )
    names = providers.instances.names
    later = names[names.index(ep) + 1 :]
    _release(assignment, failures, later)
    return later


def _release(
    assignment: Assignment, failures: Mapping[GraphPartition, str], later: Sequence[str]
) -> None:
    """Release partitions that failed, which become refusals by the vendor's texts, and
    what some EPs took and refused.
    """
    assignment.release(
        {
            *failures,
            *(p for p in assignment.claimed if p.ep in later),
        }
    )
    groups: dict[tuple[GraphIndex, str], list[int]] = {}
    for partition, text in failures.items():
        nodes = groups.setdefault((partition.graph, text), [])
        nodes += partition.node_indices

    ep = next(iter(failures)).ep
    assignment.refusals = [
        *(
            RefusalRecord(
                ep=ep,
                reason=f"it failed to compile: {text}",
                graph=graph,
                nodes=tuple(nodes),
            )
            for (graph, text), nodes in groups.items()
        ),
        *(r for r in assignment.refusals if r.ep not in later),
    ]
