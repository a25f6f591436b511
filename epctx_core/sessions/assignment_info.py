"""Who runs which node of a session, as `get_provider_graph_assignment_info` tells it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epctx_core.sessions.providers import CPU_EP

if TYPE_CHECKING:
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.graph.index import GraphIndex
    from epctx_core.sessions.assignment import Assignment


@dataclass(frozen=True, kw_only=True)
class OrtEpAssignedNode:
    """One node; attributes as `onnxruntime.OrtEpAssignedNode`."""

    name: str
    domain: str
    op_type: str


@dataclass(frozen=True, kw_only=True)
class OrtEpAssignedSubgraph:
    """Nodes that an EP runs as one; attributes as `onnxruntime.OrtEpAssignedSubgraph`.

    Attributes:
        ep_name: the EP type.
        nodes: the nodes, in the model's order.
    """

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """Return the nodes."""
        return list(self.nodes)


def assigned_subgraphs(
    assignment: Assignment, eps: Sequence[str], loaded: Mapping[str, Sequence[ContextNodeRecord]]
) -> list[OrtEpAssignedSubgraph]:
    """Return who runs what, bodies included: EPs in order of priority, the CPU EP last.

    A partition is one subgraph; so is each EPContext node, each node that an EP runs by a kernel, and each
    node of the CPU EP.

    Args:
        assignment: of the whole model.
        eps: the session's EPs.
        loaded: EP type to its EPContext nodes.
    """
    found: list[OrtEpAssignedSubgraph] = []
    for ep in eps:
        nodes = _of_provider(assignment, ep, loaded.get(ep, ()))
        found += [OrtEpAssignedSubgraph(ep_name=ep, nodes=group) for group in nodes]
    for part in assignment.graphs:
        for place in sorted({*part.left_over(), *part.executed}):
            found.append(OrtEpAssignedSubgraph(ep_name=CPU_EP, nodes=_nodes(part.graph, [place])))
    return found


def _of_provider(
    assignment: Assignment, ep: str, loaded: Sequence[ContextNodeRecord]
) -> Iterator[tuple[OrtEpAssignedNode, ...]]:
    graphs: Mapping[object, GraphIndex] = {part.graph.path: part.graph for part in assignment.graphs}
    for partition in assignment.of(ep):
        yield _nodes(partition.graph, partition.node_indices)
    for record in loaded:
        yield _nodes(graphs[record.path], [record.index])
    for part in assignment.graphs:
        for kernel in part.kernel_nodes:
            if kernel.ep == ep:
                yield _nodes(part.graph, [kernel.node])


def _nodes(graph: GraphIndex, places: Sequence[int]) -> tuple[OrtEpAssignedNode, ...]:
    return tuple(
        OrtEpAssignedNode(
            name=graph.node_name(place), domain=graph.domains[place], op_type=graph.op_types[place]
        )
        for place in places
    )
