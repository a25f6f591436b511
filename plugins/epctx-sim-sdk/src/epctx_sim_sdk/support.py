"""Answers to "does this EP take this node, and if not, why?" for the nodes of one
graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.plugin import read_inputs

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView, NodeView


class NodeSupport:
    """Judgement of each node, made once; a vendor's class says in `_judge` what its
    tables do.

    Args:
        graph: the view given to `get_capability`.
    """

    def __init__(self, graph: GraphView) -> None:
        self._graph = graph
        self._results = {value.name for value in graph.outputs}
        self._refusals: dict[int, str | None] = {}

    def __call__(self, node: NodeView) -> bool | str:
        """Return True, or the reason for which the node is refused."""
        return self.refusal(node) or True

    def refusal(self, node: NodeView) -> str | None:
        """Return the reason for which a node is refused, or None."""
        if node.index not in self._refusals:
            self._refusals[node.index] = self._judge(node)
        return self._refusals[node.index]

    def _judge(self, node: NodeView) -> str | None:
        raise NotImplementedError

    def _is_read(self, name: str) -> bool:
        """Return whether the graph returns a value, or an operator does not ignore
        it.
        """
        return bool(name) and (
            name in self._results
            or any(
                name in (*read_inputs(self._graph, node), *node.implicit_inputs)
                for node in self._graph.consumers(name)
            )
        )

    def _serves(self, node: NodeView) -> bool:
        """Return whether a Constant belongs to a node that is taken; alone it is
        nothing to compile.

        In a subgraph it belongs to the node that holds the subgraph.
        """
        if node.op_type != "Constant" or self._graph.parent_node is not None:
            return True
        readers = (
            reader for name in node.outputs for reader in self._graph.consumers(name)
        )
        return any(
            reader.op_type != "Constant" and self.refusal(reader) is None
            for reader in readers
        )
