"""Cut of a model: its nodes in boxes, which are partitions of EPs, EPContext nodes, and
groups of what no EP took; and the values between them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from epctx_core.plugin import UNKNOWN_TYPE
from epctx_report.sizes import count_tensor_bytes, count_type_bytes

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

    from epctx_core import Explanation, NodeExplanation

CPU_EP: Final = "CPUExecutionProvider"
SESSION: Final = "session"
"""Taker of an If, Loop or Scan around an EP's work: the session runs it."""
INPUT: Final = -1
"""Producer of a value that is an input of its graph."""

GraphPath: TypeAlias = "tuple[tuple[int, str], ...]"
Edge: TypeAlias = "tuple[int, int]"
Weight: TypeAlias = "tuple[int, str]"
"""Number of a graph, and name of its initializer."""


class CutNode(NamedTuple):
    """Node of a model.

    Attributes:
        name, operator: its own.
        ep: the EP that takes it, or `SESSION`.
        graph: number of its graph.
        explanation: that of the EPs; None for one that the session runs.
        weights: those that it reads, and those of its subgraphs.
    """

    name: str
    operator: str
    ep: str
    graph: int
    explanation: NodeExplanation | None
    weights: Sequence[Weight]

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
        weight_bytes: size of each initializer, by number and name as nodes have them.
    """

    eps: Sequence[str]
    graphs: Sequence[CutGraph]
    nodes: Sequence[CutNode]
    boxes: Sequence[Box]
    values: Sequence[Value]
    box_of: Sequence[int]
    crossings: Sequence[Crossing]
    weight_bytes: Mapping[Weight, int]

    def edges(self) -> Iterator[Edge]:
        """Yield the edges between nodes of one graph: what a node in a subgraph reads
        of the graph around it, the node with the subgraph reads.
        """
        return _find_edges(self.nodes, self.graphs, self.values)


def make_cut(explanation: Explanation) -> Cut:
    """Return the cut that an explanation describes."""
    explained: dict[GraphPath, dict[int, NodeExplanation]] = {(): {}}
    for node in explanation.nodes:
        explained.setdefault(node.graph, {})[node.index] = node

    reading = _Reading(explanation)
    # A graph comes after the one around it, which has its owner and its values.
    for path in sorted(explained, key=lambda path: (len(path), path)):
        split = {inner[-1][0] for inner in explained if inner and inner[:-1] == path}
        reading.add_graph(path, explained[path], split)

    graphs, nodes = reading.graphs, reading.nodes
    values = [
        value
        for value in reading.values
        if value.readers or value.is_result or value.producer == INPUT
    ]
    boxes, box_of = _make_boxes(nodes, _find_edges(nodes, graphs, values))
    return Cut(
        eps=_list_eps(explanation, nodes),
        graphs=graphs,
        nodes=nodes,
        boxes=boxes,
        values=values,
        box_of=box_of,
        crossings=_find_crossings(values, box_of),
        weight_bytes=reading.weight_bytes,
    )


class _Reading:
    """Graphs of an explanation, read one after the other; see `Cut` for the attributes.

    Args:
        explanation: the explanation.
    """

    def __init__(self, explanation: Explanation) -> None:
        self._explanation = explanation
        self.graphs: list[CutGraph] = []
        self.nodes: list[CutNode] = []
        self.values: list[Value] = []
        self.weight_bytes: dict[Weight, int] = {}
        self._first_of: dict[GraphPath, int] = {}
        self._scopes: dict[GraphPath, dict[str, Value | Weight]] = {}

    def add_graph(
        self,
        path: GraphPath,
        explained: Mapping[int, NodeExplanation],
        split: Container[int],
    ) -> None:
        """Add a graph.

        Args:
            path: from the main graph to it.
            explained: its explained nodes by index.
            split: indices of the nodes whose subgraphs are added, too.
        """
        graph = _find_graph(self._explanation.model.graph, path)
        owner = self._first_of[path[:-1]] + path[-1][0] if path else None
        label = "" if owner is None else f"{self.nodes[owner].name}.{path[-1][1]}"
        number = len(self.graphs)
        self._first_of[path] = first = len(self.nodes)
        self.graphs.append(CutGraph(label or graph.name, owner, path, first))

        holders = {
            index: graphs
            for index, graphs in _find_holders(graph).items()
            if index not in split
        }
        readers = _find_readers(graph, first, holders)
        weights = self._add_weights(graph, path, number, readers)
        for index, inner in holders.items():
            for at, tensor in enumerate(chain.from_iterable(map(walk_weights, inner))):
                weight = number, f"{index}.{at}"
                self.weight_bytes[weight] = count_tensor_bytes(tensor)
                weights.setdefault(first + index, []).append(weight)

        for index, node in enumerate(graph.node):
            found = explained.get(index)
            own = weights.get(first + index, ())
            self.nodes.append(_make_node(node, index, found, number, own))
        self._add_values(graph, path, first, readers)

    def _add_weights(
        self,
        graph: GraphProto,
        path: GraphPath,
        number: int,
        readers: dict[str, list[int]],
    ) -> dict[int, list[Weight]]:
        """Add a graph's weights; return those that each node reads, and take them out
        of the names that are read.
        """
        scope: dict[str, Value | Weight] = {}
        for tensor in _list_weights(graph):
            scope[tensor.name] = weight = number, tensor.name
            self.weight_bytes[weight] = count_tensor_bytes(tensor)
        self._scopes[path] = scope

        made = {name for node in graph.node for name in node.output} if path else ()
        found: dict[int, list[Weight]] = {}
        for name in [*readers] if path else scope:
            known = scope.get(name)
            if known is None and name not in made:
                known = self._find_outside(path, name)
            # A plain tuple: values have a class of their own.
            if known is None or isinstance(known, Value):
                continue
            for reader in readers.pop(name, ()):
                found.setdefault(reader, []).append(known)
        return found

    def _add_values(
        self,
        graph: GraphProto,
        path: GraphPath,
        first: int,
        readers: Mapping[str, list[int]],
    ) -> None:
        """Add a graph's values: its inputs, what is read of the graphs around it and
        unknown there, and the results of its nodes.
        """
        find_type = self._explanation.types.get(path)
        results = {value.name for value in graph.output}
        made = {
            name: first + index
            for index, node in enumerate(graph.node)
            for name in node.output
            if name
        }
        scope = self._scopes[path]
        inputs = {value.name for value in graph.input}.difference(scope)
        # Inference makes equal types once, so few are spelled.
        types: dict[int, ValueType] = {}
        given = (value.name for value in graph.input if value.name in inputs)
        for name in dict.fromkeys(chain(given, readers, made)):
            if path and name not in made and name not in inputs:
                outside = self._find_outside(path, name)
                if isinstance(outside, Value):
                    outside.readers.extend(readers[name])
                    continue

            type_ = UNKNOWN_TYPE if find_type is None else find_type(name)
            spelled = types.get(id(type_))
            if spelled is None:
                spelled = ValueType(str(type_), count_type_bytes(type_))
                types[id(type_)] = spelled
            value = Value(
                name,
                made.get(name, INPUT),
                spelled,
                readers.get(name) or [],
                name in results,
            )
            scope[name] = value
            self.values.append(value)

    def _find_outside(self, path: GraphPath, name: str) -> Value | Weight | None:
        """Return what a name is in the nearest graph around that has it."""
        for depth in reversed(range(len(path))):
            found = self._scopes[path[:depth]].get(name)
            if found is not None:
                return found
        return None


def _list_eps(explanation: Explanation, nodes: Iterable[CutNode]) -> list[str]:
    used = dict.fromkeys(node.ep for node in nodes)
    last = [ep for ep in (CPU_EP, SESSION) if ep in used]
    first = dict.fromkeys(
        ep for ep in (*explanation.eps, *used) if ep not in (CPU_EP, SESSION)
    )
    return [*first, *last]


def _find_graph(graph: GraphProto, path: GraphPath) -> GraphProto:
    """Return the graph at a path, whose last step may name one of a list: `name[1]`."""
    for index, step in path:
        name, _, number = step.partition("[")
        for attribute in graph.node[index].attribute:
            if attribute.name == step and attribute.HasField("g"):
                graph = attribute.g
                break
            if attribute.name == name and number:
                graph = attribute.graphs[int(number.removesuffix("]"))]
                break
    return graph


def _list_weights(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the initializers, and the values of sparse ones."""
    yield from graph.initializer
    yield from (tensor.values for tensor in graph.sparse_initializer)


def walk_weights(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the weights of a graph and of all subgraphs in it."""
    yield from _list_weights(graph)
    for graphs in _find_holders(graph).values():
        for inner in graphs:
            yield from walk_weights(inner)


def _find_holders(graph: GraphProto) -> dict[int, list[GraphProto]]:
    """Return the subgraphs of each node that has some."""
    holders: dict[int, list[GraphProto]] = {}
    for index, node in enumerate(graph.node):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                holders.setdefault(index, []).append(attribute.g)
            if attribute.graphs:
                holders.setdefault(index, []).extend(attribute.graphs)
    return holders


def _list_reads(node: NodeProto, subgraphs: Iterable[GraphProto]) -> Iterator[str]:
    """Yield the names that a node reads, then those of its scope that its subgraphs
    read.
    """
    yield from node.input
    for graph in subgraphs:
        holders = _find_holders(graph)
        own = {
            *(value.name for value in graph.input),
            *(tensor.name for tensor in _list_weights(graph)),
            *chain.from_iterable(inner.output for inner in graph.node),
        }
        read = chain(
            *(
                _list_reads(inner, holders.get(index, ()))
                for index, inner in enumerate(graph.node)
            ),
            (value.name for value in graph.output),
        )
        yield from (name for name in read if name not in own)


def _make_node(
    node: NodeProto,
    index: int,
    found: NodeExplanation | None,
    graph: int,
    weights: Sequence[Weight],
) -> CutNode:
    if found is None:
        return CutNode(
            name=node.name or f"{node.op_type}_{index}",
            operator=node.op_type,
            ep=SESSION,
            graph=graph,
            explanation=None,
            weights=weights,
        )
    return CutNode(
        name=found.name,
        operator=found.operator,
        ep=found.ep,
        graph=graph,
        explanation=found,
        weights=weights,
    )


def _find_readers(
    graph: GraphProto, first: int, holders: Mapping[int, Sequence[GraphProto]]
) -> dict[str, list[int]]:
    """Return the numbers of the nodes that read each name, in order: also what the
    subgraphs of `holders` read.
    """
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(graph.node):
        names: Iterable[str] = node.input
        if index in holders:
            names = _list_reads(node, holders[index])
        for name in names:
            found = readers.get(name)
            if found is None:
                readers[name] = [first + index]
            elif found[-1] != first + index:
                found.append(first + index)
    readers.pop("", None)
    return readers


def _find_edges(
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


def _make_boxes(
    nodes: Sequence[CutNode], edges: Iterable[Edge]
) -> tuple[list[Box], list[int]]:
    """Return the boxes, and each node's.

    Nodes outside partitions are grouped so that no path leaves a group and returns:
    connected ones of one EP and one *phase*. The phase counts the changes between
    partitions, and groups of different EPs, on the longest path to a node: along an
    edge within a group it stays, and along any other edge it grows.
    """
    # A unit is a partition, or a node in none.
    units: list[int] = []
    unit_of_partition: dict[int, int] = {}
    members: list[int] = []
    for number, node in enumerate(nodes):
        unit = len(members)
        if node.partition is not None:
            unit = unit_of_partition.setdefault(node.partition, unit)
        if unit == len(members):
            members.append(number)
        units.append(unit)
    # The page may join nodes that no EP compiles.
    joined_by = [_find_group_name(nodes[member]) for member in members]

    between = {
        (units[source], units[target])
        for source, target in edges
        if units[source] != units[target]
    }
    joinable = {
        (a, b) for a, b in between if joined_by[a] and joined_by[a] == joined_by[b]
    }
    phases = _find_phases(len(members), between, joinable)
    group = list(range(len(members)))
    for a, b in joinable:
        if phases[a] == phases[b]:
            group[_find_root(group, a)] = _find_root(group, b)

    numbers: dict[int, int] = {}
    box_of = [
        numbers.setdefault(_find_root(group, unit), len(numbers)) for unit in units
    ]
    held: list[list[int]] = [[] for _ in numbers]
    for number, box in enumerate(box_of):
        held[box].append(number)
    boxes = [
        Box(
            graph=nodes[inside[0]].graph,
            ep=nodes[inside[0]].ep,
            partition=nodes[inside[0]].partition,
            is_context=nodes[inside[0]].is_context,
            nodes=inside,
        )
        for inside in held
    ]
    return boxes, box_of


def _find_group_name(node: CutNode) -> str | None:
    """Return the name that nodes of one group share; None for a node that is alone."""
    if node.is_context or node.partition is not None or node.ep == SESSION:
        return None
    return node.ep


def _find_phases(
    count: int, edges: Iterable[Edge], joinable: Container[Edge]
) -> list[int]:
    """Return the phase of each unit; see `_make_boxes`."""
    after: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for source, target in edges:
        after[source].append(target)
        missing[target] += 1

    phases = [0] * count
    ready = [unit for unit in range(count) if not missing[unit]]
    for unit in ready:
        for target in after[unit]:
            phase = phases[unit] + ((unit, target) not in joinable)
            phases[target] = max(phases[target], phase)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    return phases


def _find_crossings(values: Iterable[Value], box_of: Sequence[int]) -> list[Crossing]:
    return [
        Crossing(box_of[value.producer], target, value)
        for value in values
        if value.producer != INPUT
        for target in {box_of[each] for each in value.readers}
        if target != box_of[value.producer]
    ]


def _find_root(group: list[int], unit: int) -> int:
    """Return the representative of a unit's group, and shorten the path to it."""
    while group[unit] != unit:
        group[unit] = group[group[unit]]
        unit = group[unit]
    return unit
