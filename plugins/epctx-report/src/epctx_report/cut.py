"""Cut of a model: its nodes in boxes, which are partitions of EPs, EPContext nodes, and
groups of what no EP took; and the values between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from epctx_core import NodeExplanation

CPU_EP: Final = "CPUExecutionProvider"
SESSION: Final = "session"
"""Taker of an If, Loop or Scan around an EP's work: the session runs it."""
INPUT: Final = -1
"""Producer of a value that is an input of its graph."""

GraphPath: TypeAlias = "tuple[tuple[int, str], ...]"
Edge: TypeAlias = "tuple[int, int]"
Weight: TypeAlias = "tuple[int, str]"
"""Number of a graph, and name of its initializer or of a tensor within a node."""


class CutNode(NamedTuple):
    """Node of a model.

    Attributes:
        name, operator: its own.
        ep: the EP that takes it, or `SESSION`.
        graph: number of its graph.
        explanation: that of the EPs; None for one that the session runs.
        weights: those that it reads, its own as a Constant, and those of its subgraphs.
        source_nodes: number of nodes that an EPContext node replaced, as it says; None
            if it does not, and for other nodes.
    """

    name: str
    operator: str
    ep: str
    graph: int
    explanation: NodeExplanation | None
    weights: Sequence[Weight]
    source_nodes: int | None = None

    @property
    def partition(self) -> int | None:
        """Number of its partition, if it is in one."""
        return None if self.explanation is None else self.explanation.partition

    @property
    def is_context(self) -> bool:
        """True if it is an EPContext node."""
        return self.explanation is not None and self.explanation.compiled


class Box(NamedTuple):
    """Nodes that run together.

    Attributes:
        graph: number of its graph.
        ep: the EP, or `SESSION`.
        partition: number of the partition; None for nodes that are in none.
        is_context: whether it is one EPContext node.
        nodes: their numbers, in the model's order.
    """

    graph: int
    ep: str
    partition: int | None
    is_context: bool
    nodes: Sequence[int]

    @property
    def is_of_ep(self) -> bool:
        """True if an EP compiles it, or did."""
        return self.is_context or self.partition is not None


class ValueType(NamedTuple):
    """Type of values.

    Attributes:
        text: in words, such as `float[1,3]`.
        bytes: size of a value; None if it is only known in a run.
    """

    text: str
    bytes: int | None


class Value(NamedTuple):
    """Value that a node or a caller makes; weights are none.

    Attributes:
        name: its own.
        producer: number of the node, or `INPUT`.
        type: its type; values of one type share the object.
        readers: numbers of the nodes that read it, in its graph and in subgraphs.
        is_result: whether it is an output of its graph.
    """

    name: str
    producer: int
    type: ValueType
    readers: list[int]
    is_result: bool


class Crossing(NamedTuple):
    """Value that one box makes and another one reads."""

    source: int
    target: int
    value: Value


class CutGraph(NamedTuple):
    """Graph of a model.

    Attributes:
        name: its own; of a subgraph, node and attribute.
        owner: number of the node that it belongs to; None for the main graph.
        path: from the main graph to it, as explanations and profiles have it.
        first: number of its first node.
    """

    name: str
    owner: int | None
    path: GraphPath
    first: int


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Cut of a model.

    Attributes:
        eps: the EPs that were asked, then others that have nodes; the CPU EP and the
            session last, if they have nodes.
        graphs: the main graph, then each subgraph that the session runs itself.
        nodes, boxes, values: of all graphs, in the order of the graphs.
        box_of: number of each node's box.
        crossings: the values that cross from box to box, once for each box that reads
            them.
        weight_bytes: size of each initializer, and of the tensor of each Constant node,
            by number and name as nodes have them.
    """

    eps: Sequence[str]
    graphs: Sequence[CutGraph]
    nodes: Sequence[CutNode]
    boxes: Sequence[Box]
    values: Sequence[Value]
    box_of: Sequence[int]
    crossings: Sequence[Crossing]
    weight_bytes: Mapping[Weight, int]

    @property
    def contexts(self) -> Mapping[str, int]:
        """Numbers of the boxes of EPContext nodes, by name."""
        return {
            self.nodes[box.nodes[0]].name: number
            for number, box in enumerate(self.boxes)
            if box.is_context
        }

    def edges(self) -> Iterator[Edge]:
        """Yield the edges between nodes of one graph: what a node in a subgraph reads
        of the graph around it, the node with the subgraph reads.
        """
        return find_edges(self.nodes, self.graphs, self.values)


def find_edges(
    nodes: Sequence[CutNode], graphs: Sequence[CutGraph], values: Iterable[Value]
) -> Iterator[Edge]:
    """Yield the edges between nodes; see `Cut.edges`."""
    for value in values:
        if value.producer == INPUT:
            continue
        graph = nodes[value.producer].graph
        for reader in value.readers:
            target: int | None = reader
            while target is not None and nodes[target].graph != graph:
                target = graphs[nodes[target].graph].owner
            if target is not None:
                yield value.producer, target
