"""A graph as an EP sees it: what no EP before it has taken. Implements `epctx_core.plugin.GraphView`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidArgument
from epctx_core.graph.subgraph import Subgraph
from epctx_core.graph.view import Node
from epctx_core.plugin import ValueInfo

if TYPE_CHECKING:
    import os

    from onnx import ModelProto

    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.partition import Partitioner
    from epctx_core.graph.weights import Weight
    from epctx_core.plugin import NodeView


class GraphSlice:
    """The nodes of a graph that no EP has taken yet; implements `GraphView`.

    Args:
        graph: the graph.
        partitioner: knows what was taken.
        taken: for each node whether it is somebody's already.
        parent_node: the node that holds this graph as a body; None for the main graph.
        root: the main graph; None if this is it.

    Attributes:
        index: the graph's index.
        root: that of the main graph.
        taken: as given.
        grouped: what `convex_groups` answered last: an EP that claims just that needs no second check.
        units: what it made the groups of; the core may take groups apart into these.
        left_out: nodes that it left out, with the reason.
    """

    grouped: Sequence[Sequence[int]] = ()
    units: Sequence[Sequence[int]] = ()
    left_out: Mapping[int, str] = MappingProxyType({})

    def __init__(
        self,
        graph: GraphIndex,
        partitioner: Partitioner,
        taken: Sequence[bool],
        parent_node: Node | None = None,
        root: GraphIndex | None = None,
    ) -> None:
        self.parent_node = parent_node
        self.index = self._graph = graph
        self.root = root or graph
        self.taken = taken
        self._partitioner = partitioner
        self._own = {i: Node(graph, i) for i, owned in enumerate(taken) if not owned}
        self.nodes = tuple(self._own.values())
        self.name = graph.graph.name

    def node(self, index: int) -> Node:
        """Return a node by its place in the graph."""
        return Node(self._graph, index)

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """Graph inputs that no initializer fills, in the model's order."""
        return tuple(self.value(name) for name in self._graph.input_names)

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """Graph outputs in the model's order."""
        return tuple(self.value(name) for name in self._graph.output_names)

    @property
    def opset_imports(self) -> Mapping[str, int]:
        """Domain to version."""
        return MappingProxyType(dict(self._graph.opset_imports))

    def value(self, name: str) -> ValueInfo:
        """Return a value with its type."""
        return ValueInfo(name, self._graph.types.get(name))

    def initializer(self, name: str) -> Weight | None:
        """Return the weight behind a name, or None (also for a default that the caller may override)."""
        return self._graph.weights.get(name) if name in self._graph.constants else None

    def producer(self, name: str) -> Node | None:
        """Return the node that computes a value."""
        index = self._graph.producer.get(name)
        return None if index is None else Node(self._graph, index)

    def consumers(self, name: str) -> Sequence[Node]:
        """Return the nodes that read a value."""
        return [Node(self._graph, i) for i in dict.fromkeys(self._graph.consumers.get(name, ()))]

    def model(self, *, inline_weights: bool = False) -> ModelProto:
        """Return a model of all nodes; see `epctx_core.plugin.GraphView.model`."""
        return self._whole().model(inline_weights=inline_weights)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write that model and its weights to files; see `epctx_core.plugin.GraphView.save`."""
        self._whole().save(path)

    def _whole(self) -> Subgraph:
        return Subgraph(self._graph, range(len(self._graph.nodes)))

    def convex_groups(self, nodes: Iterable[NodeView]) -> list[list[NodeView]]:
        """Group nodes into the fewest convex partitions; see `Partitioner.group`.

        Raises:
            InvalidArgument: a node that another EP has taken, or one of another graph.
        """
        by_index = {node.index: node for node in nodes}
        for index, node in by_index.items():
            own = self._own.get(index)
            if own is not node and own != node:
                raise InvalidArgument(
                    f"node {node.name!r} ({node.op_type}) cannot be grouped: it is not among the view's nodes.",
                    node=node.name,
                    hint="Group nodes out of `graph.nodes` only; `producer` and `consumers` show taken ones, too.",
                )
        quantized = self._graph.quantized
        self.left_out = quantized.incomplete(by_index, self.taken)
        self.units = quantized.units(index for index in by_index if index not in self.left_out)
        self.grouped = self._partitioner.group(self.units)
        return [[by_index[index] for index in group] for group in self.grouped]
