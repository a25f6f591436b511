"""Bodies: the graphs that nodes hold as attributes, and what they read of the scopes around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TypeAlias

import onnx
from onnx import AttributeProto, GraphProto, NodeProto

EXECUTABLE = {"If": 1, "Loop": 1, "Scan": 9}
"""Operators whose bodies are worked on, each from this version of the default domain on.

A session executes them itself when their bodies hold an EP's work. Scan-8 had other inputs.
"""

BodyPath: TypeAlias = "tuple[tuple[int, str], ...]"
"""The way from a main graph to a body: a node's place in its graph and the attribute, for each level."""

_GRAPH_KINDS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_OTHERS_WITHOUT = frozenset({("com.microsoft", "EPContext")})
"""Operators that are not ONNX's and come by the thousand."""


def may_hold_bodies(node: NodeProto) -> bool:
    """Whether a node's operator can have graph attributes; cheaper than to look at the attributes."""
    return operator_may_hold_bodies(node.domain, node.op_type)


def operator_may_hold_bodies(domain: str, op_type: str) -> bool:
    """Whether an operator can have graph attributes; one that is not known can."""
    if domain:
        return (domain, op_type) not in _OTHERS_WITHOUT
    return op_type in _operators_with_bodies()


@cache
def _operators_with_bodies() -> frozenset[str]:
    kinds = {onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS}
    return frozenset(
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and not kinds.isdisjoint(a.type for a in schema.attributes.values())
    )


def is_executable(node: NodeProto, opset_imports: Mapping[str, int]) -> bool:
    """Whether a node is one of EXECUTABLE in the version that the model imports."""
    since = EXECUTABLE.get(node.op_type)
    return since is not None and node.domain in {"", "ai.onnx"} and opset_imports.get("", 1) >= since


def named_bodies(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield a node's bodies with the attribute each stands in; of a list, with its place: `name[1]`."""
    for attribute in node.attribute:
        if attribute.type in _GRAPH_KINDS:
            if attribute.type == AttributeProto.GRAPH:
                yield attribute.name, attribute.g
            for place, graph in enumerate(attribute.graphs):
                yield f"{attribute.name}[{place}]", graph


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs that a node holds as attributes."""
    for _, graph in named_bodies(node):
        yield graph


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes and those in their bodies, at any depth: each before those inside it."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from all_nodes(body.node)


def all_graphs(graph: GraphProto, path: BodyPath = ()) -> Iterator[tuple[BodyPath, GraphProto]]:
    """Yield a graph and all bodies in it, at any depth, each before those inside it."""
    yield path, graph
    for place, node in enumerate(graph.node):
        if may_hold_bodies(node):
            for name, body in named_bodies(node):
                yield from all_graphs(body, (*path, (place, name)))


def placed_nodes(graph: GraphProto, path: BodyPath = ()) -> Iterator[tuple[BodyPath, int, NodeProto]]:
    """Yield all nodes with the way to their graph and their place in it, in one pass.

    A graph's own come before those of its bodies.
    """
    holders = []
    for place, node in enumerate(graph.node):
        yield path, place, node
        if may_hold_bodies(node):
            holders.append((place, node))
    for place, node in holders:
        for name, body in named_bodies(node):
            yield from placed_nodes(body, (*path, (place, name)))


def outer_names(node: NodeProto) -> tuple[str, ...]:
    """Return the names of the enclosing scope that a node's bodies read, in order of first use."""
    found: dict[str, None] = {}
    for body in bodies(node):
        found.update(dict.fromkeys(free_names(body)))
    return tuple(found)


def free_names(graph: GraphProto) -> Iterator[str]:
    """Yield the names that a graph reads and does not define before, in order, some of them twice."""
    defined = set(given_names(graph))
    for node in graph.node:
        for name in (*node.input, *outer_names(node)):
            if name and name not in defined:
                yield name
        defined.update(node.output)
    for value in graph.output:
        if value.name and value.name not in defined:
            yield value.name


def given_names(graph: GraphProto) -> Iterable[str]:
    """Yield the names that a graph defines without a node: inputs and initializers."""
    for value in graph.input:
        yield value.name
    for tensor in graph.initializer:
        yield tensor.name
    for sparse in graph.sparse_initializer:
        yield sparse.values.name
