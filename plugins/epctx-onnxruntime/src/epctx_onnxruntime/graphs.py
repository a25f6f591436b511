"""Subgraphs of nodes, and weights that lie outside of a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from onnx import AttributeProto, TensorProto

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

LOCATION = "epctx-weight"
"""The location that a detached initializer carries."""
PLACEHOLDER = Path(__file__).with_name(LOCATION)
"""An empty file, which has to exist: onnxruntime refuses a model whose weights name a file that does not exist, even
where it is given their bytes and never reads it."""
INLINE_LIMIT = 1024
"""Weights up to this many bytes stay in a model."""

BodyPath: TypeAlias = "tuple[int, ...]"
"""The way from a main graph to a subgraph: its number among those of each graph around it."""


def is_detached(tensor: TensorProto) -> bool:
    """Whether an initializer's data is outside of the model."""
    return tensor.data_location == TensorProto.EXTERNAL


def all_graphs(graph: GraphProto, path: BodyPath = ()) -> Iterator[tuple[BodyPath, GraphProto]]:
    """Yield a graph and all subgraphs in it, at any depth, each before those inside it."""
    yield path, graph
    inner = (body for node in graph.node for body in bodies(node))
    for number, body in enumerate(inner):
        yield from all_graphs(body, (*path, number))


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs
