"""Walks over the graphs of a model, at any depth, and its texts. Knows no command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

OF_ONNX = frozenset({"", "ai.onnx"})
"""Names of ONNX's own domain."""

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

    AnyGraph: TypeAlias = GraphProto | FunctionProto


def iter_subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield a node's subgraphs with the name of the attribute; in a list, with the
    index: `name[1]`.
    """
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{index}]", graph


def walk_graphs(model: ModelProto) -> Iterator[AnyGraph]:
    """Yield the main graph, the functions, and all subgraphs: each after the graph
    around it.
    """
    return chain.from_iterable(map(_walk, (model.graph, *model.functions)))


def _walk(graph: AnyGraph) -> Iterator[AnyGraph]:
    yield graph
    for node in graph.node:
        for _, subgraph in iter_subgraphs(node):
            yield from _walk(subgraph)


def get_initializers(graph: AnyGraph) -> Sequence[TensorProto]:
    """Return the tensors of a graph's initializers, also the values of sparse ones; a
    function has none.
    """
    sparse = getattr(graph, "sparse_initializer", ())
    dense: Sequence[TensorProto] = getattr(graph, "initializer", ())
    return [*dense, *(tensor.values for tensor in sparse)]


def decode_text(value: str | bytes) -> str:
    """Return a text of the model; protobuf gives bytes for what is not UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
