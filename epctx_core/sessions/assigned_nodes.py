"""Nodes of a session by EP, as onnxruntime describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.frozen import dataclass
from epctx_core.options.choices import CPU_EP

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
        ep_name: the EP.
        nodes: the nodes, in the model's order.
    """

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """Return the nodes."""
        return list(self.nodes)


def list_assigned_subgraphs(
    assignment: Assignment,
    eps: Sequence[str],
    loaded: Mapping[str, Sequence[ContextNodeRecord]],
) -> list[OrtEpAssignedSubgraph]:
    """Return the nodes of each EP, those in subgraphs included: EPs in order of
    priority, the CPU EP last.

    A partition is one subgraph; so is each EPContext node and each node of the CPU EP.

    Args:
        assignment: of the whole model.
        eps: the session's EPs.
        loaded: EP name to its EPContext nodes.
    """
    graphs: Mapping[object, GraphIndex] = {
        part.graph.path: part.graph for part in assignment.graphs
    }
    groups: list[tuple[str, GraphIndex, Sequence[int]]] = [
        *((p.ep, p.graph, p.node_indices) for p in assignment.partitions),
        *(
            (ep, graphs[r.path], [r.index])
            for ep, records in loaded.items()
            for r in records
        ),
        *((p.ep, p.graph, p.node_indices) for p in assignment.kept),
    ]
    for part in assignment.graphs:
        groups += [
            (CPU_EP, part.graph, [i])
            for i in sorted({*part.left_over(), *part.executed})
        ]

    order = [*eps, CPU_EP]
    return [
        OrtEpAssignedSubgraph(
            ep_name=ep,
            nodes=tuple(
                OrtEpAssignedNode(
                    name=graph.get_node_name(i),
                    domain=graph.domains[i],
                    op_type=graph.op_types[i],
                )
                for i in nodes
            ),
        )
        for ep, graph, nodes in sorted(groups, key=lambda group: order.index(group[0]))
    ]
