"""Numbers of nodes that the EPs of a session run. Prints nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epctx_cli.entry_points import is_duplicate
from epctx_cli.text import counted
from epctx_core import plugins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_core import InferenceSession, SessionOptions


@dataclass(frozen=True, kw_only=True)
class NodeCounts:
    """Numbers of nodes of a session.

    Attributes:
        by_ep: EP name to its nodes, in order of priority; an EPContext node is one.
        simulated: the simulated EPs that run a node.
        origins: EP name to the package that provides it, for each EP of which another
            package is installed.
    """

    by_ep: Mapping[str, int]
    simulated: Sequence[str]
    origins: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the EPs with their numbers."""
        return ", ".join(
            f"{ep} ({self._name_origin(ep)}{counted(count, 'node')})"
            for ep, count in self.by_ep.items()
        )

    def _name_origin(self, ep: str) -> str:
        return f"{self.origins[ep]}, " if ep in self.origins else ""


def record_nodes(options: SessionOptions) -> None:
    """Have a session record which EP runs which node."""
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")


def count_nodes(session: InferenceSession) -> NodeCounts:
    """Return the numbers of nodes of a session that records them."""
    counts = dict.fromkeys(session.get_providers(), 0)
    for subgraph in session.get_provider_graph_assignment_info():
        counts[subgraph.ep_name] += len(subgraph.nodes)
    records = session.get_provider_records()
    rivals = {record.name for record in plugins() if is_duplicate(record)}
    return NodeCounts(
        by_ep=counts,
        simulated=[
            record.name
            for record in records
            if record.simulated and counts[record.name]
        ],
        origins={r.name: r.origin for r in records if r.name in rivals},
    )
