"""Numbers of nodes that the EPs of a session run. Prints nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_core import InferenceSession, SessionOptions


@dataclass(frozen=True, kw_only=True)
class NodeCounts:
    """Numbers of nodes of a session.

    Attributes:
        by_ep: EP name to its nodes, in order of priority; an EPContext node is one.
        simulated: the simulated EPs that run a node.
    """

    by_ep: Mapping[str, int]
    simulated: Sequence[str]

    def __str__(self) -> str:
        """Return the EPs with their numbers."""
        return ", ".join(
            f"{ep} ({count:,} {'node' if count == 1 else 'nodes'})"
            for ep, count in self.by_ep.items()
        )


def record_nodes(options: SessionOptions) -> None:
    """Have a session record which EP runs which node."""
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")


def count_nodes(session: InferenceSession) -> NodeCounts:
    """Return the numbers of nodes of a session that records them."""
    counts = dict.fromkeys(session.get_providers(), 0)
    for subgraph in session.get_provider_graph_assignment_info():
        counts[subgraph.ep_name] += len(subgraph.nodes)
    return NodeCounts(
        by_ep=counts,
        simulated=[
            record.name
            for record in session.get_provider_records()
            if record.simulated and counts[record.name]
        ],
    )
