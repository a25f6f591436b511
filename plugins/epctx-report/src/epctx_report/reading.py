"""Reading of an explanation: its graphs, nodes, values and weights become a cut."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from epctx_core.plugin import UNKNOWN_TYPE
from epctx_report.sizes import count_tensor_bytes, count_type_bytes

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

    from epctx_core import Explanation, NodeExplanation


from epctx_report.cut import (
    CPU_EP,
    INPUT,
    SESSION,
    Crossing,
    Cut,
    CutGraph,
    CutNode,
    GraphPath,
    Value,
    ValueType,
    Weight,
    find_edges,
)
from epctx_report.grouping import make_boxes

_SOURCE_NODES = "epctx.source_nodes"
_COUNT = re.compile("[1-9][0-9]{0,8}")
_OF_ONNX = frozenset({"", "ai.onnx"})


def make_cut(explanation: Explanation) -> Cut:
    """Return the cut that an explanation describes."""
    explained: dict[GraphPath, dict[int, NodeExplanation]] = {(): {}}
    for node in explanation.nodes:
        own = explained.setdefault(node.graph, {})
        if not node.session:
            own[node.index] = node

    splits: dict[GraphPath, set[int]] = {}
    for path in filter(None, explained):
        splits.setdefault(path[:-1], set()).add(path[-1][0])
    reading = _Reading(explanation)
    # A graph comes after the one around it, which has its owner and its values.
    for path in sorted(explained, key=lambda path: (len(path), path)):
        reading.add_graph(path, explained[path], splits.get(path, set()))

    graphs, nodes = reading.graphs, reading.nodes
    values = [
        value
        for value in reading.values
        if value.readers or value.is_result or value.producer == INPUT
    ]
    boxes, box_of = make_boxes(nodes, find_edges(nodes, graphs, values))
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
        for index, node in enumerate(graph.node):
            inner = map(walk_weights, holders.get(index, ()))
            held = chain(_list_constants(node), chain.from_iterable(inner))
            for at, tensor in enumerate(held):
                weight = number, f"tensor {at} of node {index}"
                self.weight_bytes[weight] = count_tensor_bytes(tensor)
                weights.setdefault(first + index, []).append(weight)

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


def _list_constants(node: NodeProto) -> Iterator[TensorProto]:
    """Yield the tensor of a Constant node; some exporters have all weights there."""
    if node.op_type == "Constant" and node.domain in _OF_ONNX:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t


def walk_weights(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the weights of a graph and of all subgraphs in it, also those that are
    tensors of Constant nodes.
    """
    yield from _list_weights(graph)
    yield from chain.from_iterable(map(_list_constants, graph.node))
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
        source_nodes=_read_source_nodes(node) if found.compiled else None,
    )


def _read_source_nodes(node: NodeProto) -> int | None:
    """Return the number of nodes that an EPContext node replaced, if it says so: any
    text may be there.
    """
    for entry in node.metadata_props:
        if entry.key == _SOURCE_NODES and _COUNT.fullmatch(entry.value):
            return int(entry.value)
    return None


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


def _find_crossings(values: Iterable[Value], box_of: Sequence[int]) -> list[Crossing]:
    return [
        Crossing(box_of[value.producer], target, value)
        for value in values
        if value.producer != INPUT
        for target in {box_of[each] for each in value.readers}
        if target != box_of[value.producer]
    ]
