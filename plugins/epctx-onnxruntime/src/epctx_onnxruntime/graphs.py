"""Subgraphs of nodes, and detached weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from onnx import AttributeProto, TensorProto

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

LOCATION = "epctx-weight"
"""The location of a detached initializer."""
PLACEHOLDER = Path(__file__).with_name(LOCATION)
"""An empty file, which must exist: onnxruntime refuses a model whose weights name a missing file, even if it gets their
bytes otherwise and never reads it."""
INLINE_LIMIT = 1024
"""Weights up to this many bytes stay in a model."""

GraphPath: TypeAlias = "tuple[int, ...]"
"""Path from a main graph to a subgraph: an index at each level."""


def is_detached(tensor: TensorProto) -> bool:
    """Return whether the data of an initializer is outside the model."""
    return tensor.data_location == TensorProto.EXTERNAL


def all_graphs(graph: GraphProto, path: GraphPath = ()) -> Iterator[tuple[GraphPath, GraphProto]]:
    """Yield a graph and all subgraphs in it, at any depth, each before those inside it."""
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
