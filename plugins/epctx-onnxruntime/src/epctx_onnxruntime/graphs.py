"""Subgraphs of nodes and the outer names that they read, detached weights, and models
without them.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from epctx_core.plugin.protos import (
    AttributeProto,
    ModelProto,
    TensorProto,
    make_tensor_value_info,
)

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

LOCATION = "epctx-weight"
"""The location of a detached initializer."""
PLACEHOLDER = Path(__file__).with_name(LOCATION)
"""An empty file, which must exist: onnxruntime refuses a model whose weights name a
missing file, even if it gets their bytes otherwise and never reads it.
"""
INLINE_LIMIT = 1024
"""Weights up to this many bytes stay in a model."""

_WITH_SUBGRAPHS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators of the default domain with graph attributes, in any version."""

GraphPath: TypeAlias = "tuple[int, ...]"
"""Path from a main graph to a subgraph: an index at each level."""


def is_detached(tensor: TensorProto) -> bool:
    """Return whether the data of an initializer is outside the model."""
    return tensor.data_location == TensorProto.EXTERNAL


def all_graphs(
    graph: GraphProto, path: GraphPath = ()
) -> Iterator[tuple[GraphPath, GraphProto]]:
    """Yield a graph and all subgraphs in it, at any depth, each before those inside
    it.
    """
    yield path, graph
    for number, subgraph in enumerate(subgraphs(*graph.node)):
        yield from all_graphs(subgraph, (*path, number))


def subgraphs(*nodes: NodeProto) -> list[GraphProto]:
    """Return the subgraphs of nodes."""
    # Most graphs have many nodes and no subgraph: few nodes get beyond this pass.
    holders = [n for n in nodes if n.domain or n.op_type in _WITH_SUBGRAPHS]
    kinds = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    found = [a for node in holders for a in node.attribute if a.type in kinds]
    return [graph for a in found for graph in (a.graphs or [a.g])]


def free_names(graph: GraphProto) -> set[str]:
    """Return the names that a subgraph, with those in it, reads from outside."""
    made = {"", *_list_given_names(graph)}
    read: set[str] = set()
    for node in graph.node:
        read |= names_read(node) - made
        made.update(node.output)
    return read | ({value.name for value in graph.output} - made)


def names_read(node: NodeProto) -> set[str]:
    """Return the names that a node reads, its subgraphs included."""
    return set(node.input).union(*map(free_names, subgraphs(node)))


def rename_apart(graph: GraphProto) -> None:
    """Give results in subgraphs names of their own, in place, where a graph around them
    has a value of the same name: the nearest one is meant, but ONNX allows only one.

    onnxruntime inlines functions graph by graph, and calls their values alike in each.
    """
    graphs = [each for _, each in all_graphs(graph)]
    if len(graphs) == 1:
        return
    names = {name for each in graphs for name in _list_given_names(each)}
    for node in (node for each in graphs for node in each.node):
        names.update(node.input, node.output)
    # Each name counts on from its last number: thousands of subgraphs may share it.
    numbers: defaultdict[str, count[int]] = defaultdict(lambda: count(1))

    def rename(name: str) -> str:
        new = next(n for i in numbers[name] if (n := f"{name}_{i}") not in names)
        names.add(new)
        return new

    _apply_names(graph, ChainMap(), rename)


def _apply_names(
    graph: GraphProto, around: ChainMap[str, str], rename: Callable[[str], str]
) -> None:
    """Rename what a graph makes and reads.

    Args:
        graph: changed in place, with the subgraphs in it.
        around: names of values around it, to the new ones.
        rename: gives a name that no value has.
    """
    scope = around.new_child({name: name for name in _list_given_names(graph)})
    for node in graph.node:
        for name in filter(None, node.output):
            scope[name] = rename(name) if name in around else name

    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [scope.get(name, name) for name in names]
        for subgraph in subgraphs(node):
            _apply_names(subgraph, scope, rename)
    for value in (*graph.output, *graph.value_info):
        value.name = scope.get(value.name, value.name)


def _list_given_names(graph: GraphProto) -> set[str]:
    """Return the names that a graph defines without a node."""
    return {
        *(value.name for value in graph.input),
        *(tensor.name for tensor in graph.initializer),
        *(sparse.values.name for sparse in graph.sparse_initializer),
    }


def without_weights(model: ModelProto) -> ModelProto:
    """Return a copy with detached weights as inputs: onnx would open their files."""
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    kept = [tensor for tensor in graph.initializer if not is_detached(tensor)]
    inputs = {value.name for value in graph.input}
    graph.input.extend(
        make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in graph.initializer
        if is_detached(t) and t.name not in inputs
    )
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return copy
