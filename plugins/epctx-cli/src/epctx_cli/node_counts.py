"""Numbers of nodes that the EPs of a session run. Prints nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epctx_cli.entry_points import is_duplicate
from epctx_cli.text import counted
from epctx_core import plugins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_core import InferenceSession


@dataclass(frozen=True, kw_only=True)
class NodeCounts:
    """Numbers of nodes of a session.

    Attributes:
        by_ep: EP name to its nodes, in order of priority, those inside subgraphs and
            functions included; an EPContext node is one.
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


def count_nodes(session: InferenceSession) -> NodeCounts:
    """Return the numbers of nodes of a session."""
    placed = session.placement().eps
    rivals = {record.name for record in plugins() if is_duplicate(record)}
    return NodeCounts(
        by_ep={row["ep"]: row["nodes"] for row in placed},
        simulated=[row["ep"] for row in placed if row["simulated"] and row["nodes"]],
        origins={
            row["ep"]: row["provided_by"] for row in placed if row["ep"] in rivals
        },
    )
