"""Control flow: OpenVINO compiles an If or a Loop with its subgraphs, whole or not at
all.

The core asks for subgraphs before the graph that holds them, so the answers for them
are remembered until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.plugin import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.plugin import GraphView, NodeView
    from epctx_sim_openvino.support import Support


class Subgraphs:
    """Subgraphs that one EP instance was shown."""

    def __init__(self) -> None:
        self._reasons: dict[NodeView, str] = {}
        """By node with subgraphs: why a node in them, at any depth, is refused."""

    def judge(
        self, graph: GraphView, parent: NodeView, support: Support
    ) -> Sequence[Refusal]:
        """Remember whether a subgraph can be taken; return why not, and nothing if it
        can.

        A subgraph that can be taken is not claimed: the node that holds it will be.
        """
        reasons: dict[str, list[NodeView]] = {}
        others = []
        for node in graph.nodes:
            reason = support.refusal(node)
            if reason is None:
                others.append(node)
            else:
                reasons.setdefault(reason, []).append(node)
                # The innermost reason: each level would wrap that of the one below.
                self._reasons.setdefault(parent, self._reasons.get(node, reason))
        holder = support.refusal_of_operator(parent)
        if reasons or holder is not None:
            whole = (
                holder
                or f"{parent.op_type}: OpenVINO takes it whole or not at all, and "
                "not all of it"
            )
            reasons.setdefault(whole, []).extend(others)
        return [Refusal(reason, nodes) for reason, nodes in reasons.items() if nodes]

    def refusal(self, node: NodeView) -> str | None:
        """Return why a node's subgraphs cannot be taken; None if they can."""
        reason = self._reasons.get(node)
        if reason is None:
            return None
        return (
            f"{node.op_type}: OpenVINO takes it whole or not at all, and not all of "
            f"it ({reason})"
        )
