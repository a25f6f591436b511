"""Partitions that fail to compile and go on to the next EP, as the session option
`ep.on_compile_failure` asks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from epctx_core.errors import EPFail, describe, one_line
from epctx_core.sessions.assignment import RefusalRecord
from epctx_core.sessions.stages import CompileJob, Stages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.graph.index import GraphIndex
    from epctx_core.sessions.assignment import Assignment

_log = logging.getLogger("epctx.session")


class CompileFailures(Stages):
    """Stages that go on after an EP that fails to compile."""

    def compile(self, job: CompileJob) -> Sequence[str] | None:
        """Have an EP compile its partitions; release those that fail, and all that the
        EPs after it took.

        Each is compiled by a call of its own, so that the failing one is known and no
        EP gets a partition twice: EPs may keep what they are given.

        Returns:
            The EPs after it, which are asked again: they claim as if it had refused
            those nodes. None if nothing failed.

        Raises:
            PluginError: the EP broke the contract of `compile`.
            ModelLoadCanceled: the host asked to stop.
        """
        failures = self._find_failures(job)
        if not failures:
            return None
        ep = job.partitions[0].ep
        _log.warning(
            "%s failed to compile %d of its %d partitions (nodes: %d), which go on to "
            "the next EP: %s",
            ep,
            len(failures),
            len(job.partitions),
            sum(len(partition.node_indices) for partition in failures),
            next(iter(failures.values())),
        )
        later = job.eps[job.eps.index(ep) + 1 :]
        _release(job.assignment, failures, later)
        return later

    def _find_failures(self, job: CompileJob) -> dict[GraphPartition, str]:
        """Compile each partition; return those that failed, with the reasons."""
        failures: dict[GraphPartition, str] = {}
        for partition in job.partitions:
            try:
                super().compile(replace(job, partitions=[partition]))
            except EPFail as error:
                if error.ep != partition.ep:
                    raise
                # An EP that is told to stop may fail by it.
                job.cancel.raise_if_requested()
                _log.debug("%s", error.message, exc_info=error)
                cause = error.__cause__
                # The message begins with the plugin, which a refusal names anyway.
                failures[partition] = (
                    one_line(describe(cause)) if cause else error.message
                )
        return failures


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
