"""Subgraphs of nodes and what they read outside, and weights that lie outside of a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from onnx import AttributeProto, ModelProto, TensorProto, helper

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

LOCATION = "epctx-weight"
"""The location that a detached initializer carries."""
PLACEHOLDER = Path(__file__).with_name(LOCATION)
"""An empty file, which has to exist: onnxruntime refuses a model whose weights name a file that does not exist, even
where it is given their bytes and never reads it."""

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


def free_names(graph: GraphProto) -> set[str]:
    """Return the names that a subgraph, with those in it, reads from outside."""
    made = {"", *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)}
    made.update(sparse.values.name for sparse in graph.sparse_initializer)
    read: set[str] = set()
    for node in graph.node:
        read |= names_read(node) - made
        made.update(node.output)
    return read | ({value.name for value in graph.output} - made)


def names_read(node: NodeProto) -> set[str]:
    """Return the names that a node reads, its subgraphs included."""
    return set(node.input).union(*map(free_names, bodies(node)))


def without_weights(model: ModelProto) -> ModelProto:
    """Return a copy with weights that lie outside as inputs: onnx would look for their files."""
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
