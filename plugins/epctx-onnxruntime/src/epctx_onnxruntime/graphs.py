"""Subgraphs of nodes and the outer names that they read, detached weights, and models
without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from onnx import AttributeProto, ModelProto, TensorProto, helper

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
    inner = (subgraph for node in graph.node for subgraph in subgraphs(node))
    for number, subgraph in enumerate(inner):
        yield from all_graphs(subgraph, (*path, number))


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def free_names(graph: GraphProto) -> set[str]:
    """Return the names that a subgraph, with those in it, reads from outside."""
    made = {
        "",
        *(value.name for value in graph.input),
        *(tensor.name for tensor in graph.initializer),
    }
    made.update(sparse.values.name for sparse in graph.sparse_initializer)
    read: set[str] = set()
    for node in graph.node:
        read |= names_read(node) - made
        made.update(node.output)
    return read | ({value.name for value in graph.output} - made)


def names_read(node: NodeProto) -> set[str]:
    """Return the names that a node reads, its subgraphs included."""
    return set(node.input).union(*map(free_names, subgraphs(node)))


def without_weights(model: ModelProto) -> ModelProto:
    """Return a copy with detached weights as inputs: onnx would open their files."""
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    kept = [tensor for tensor in graph.initializer if not is_detached(tensor)]
    known = {value.name for value in graph.input}
    graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in graph.initializer
        if is_detached(t) and t.name not in known
    )
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return copy
