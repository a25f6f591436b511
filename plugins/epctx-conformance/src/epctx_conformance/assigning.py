"""Assignment of a model's nodes to EPs; nothing is compiled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from epctx_core import GraphOptimizationLevel
from epctx_core.ext import CpuEngine, Work, read_request
from epctx_core.plugin import EnginePolicy

if TYPE_CHECKING:
    from epctx_core import Registry, SessionOptions
    from epctx_core.plugin import Purpose


class AssignedNode(NamedTuple):
    """Node of a model, and what runs it.

    Attributes:
        name: the node's, or operator and index for one without.
        partition: number of its partition; None for a node in none.
        kernel: whether a kernel of an EP runs it, on its own.
        refusals: reasons for which EPs did not get it.
    """

    name: str
    partition: int | None
    kernel: bool
    refusals: tuple[str, ...]


def assign_nodes(
    model: bytes, options: SessionOptions, registry: Registry, purpose: Purpose
) -> list[AssignedNode]:
    """Return the nodes of the main graph, then of each subgraph that a session runs
    itself.

    Args:
        model: the serialised model.
        options: EPs and their options.
        registry: the registry of EPs.
        purpose: that of the EPs' instances.

    Raises:
        EpctxError: an EP cannot be used, or breaks the contract.
    """
    session, requested = read_request(options, None, None)
    work = Work(model, session, registry, requested)
    work.choose(purpose)
    with closing(work):
        work.open()
        work.start(CpuEngine(EnginePolicy(**work.config.engine_settings)))
        work.optimise(GraphOptimizationLevel.ORT_DISABLE_ALL)
        work.assign()
        return list(_list_nodes(work))


def _list_nodes(work: Work) -> Iterator[AssignedNode]:
    reasons: dict[tuple[int, int], list[str]] = defaultdict(list)
    for refusal in work.assignment.refusals:
        for index in refusal.nodes:
            reasons[id(refusal.graph), index].append(refusal.reason)

    for part in work.assignment.graphs:
        partitions = {
            index: partition.number
            for partition in part.partitions
            for index in partition.node_indices
        }
        for index in range(len(part.graph.nodes)):
            if index in part.executed:
                continue
            yield AssignedNode(
                name=part.graph.get_node_name(index),
                partition=partitions.get(index),
                kernel=index in part.kernel_nodes,
                refusals=tuple(dict.fromkeys(reasons[id(part.graph), index])),
            )
