"""Walks over the graphs, nodes, tensors and types of a protobuf model, at any depth;
and ONNX's domains and operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_core.plugin.protos import AttributeProto, GraphProto, TensorProto

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto, SparseTensorProto, TypeProto

EXECUTABLE = {"If": 1, "Loop": 1, "Scan": 9}
"""Operators whose subgraphs are partitioned, each from this version of the default
domain on.

A session executes them itself when their subgraphs contain an EP's partitions. Scan-8
had other inputs.
"""

SubgraphPath: TypeAlias = "tuple[tuple[int, str], ...]"
"""Path from a main graph to a subgraph: for each level the index of the node and the
attribute.
"""

Operators: TypeAlias = "set[tuple[str, str]]"
"""Operators by domain and name."""

_GRAPH_KINDS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
WITHOUT_TENSORS = frozenset({("com.microsoft", "EPContext")})
"""Operators outside ONNX that have neither tensors nor subgraphs, of those that a model
has by the thousand.
"""


WITH_SUBGRAPHS = frozenset({*EXECUTABLE, "SequenceMap"})
"""Operators of the default domain with graph attributes, in any version; onnx's schemas
are not asked, as they take milliseconds to come.
"""
OVERRIDABLE_SINCE = 4
"""IR version from which an initializer need not be an input, and one that is also an
input is only its default.
"""
HIDDEN = "epctx.hidden"
"""Domain of nodes that are hidden from onnx's checker or inference: it has no
operators.
"""
DENSE_OR_SPARSE = frozenset({"tensor_type", "sparse_tensor_type"})
_HELD_TYPE = {
    "sequence_type": "elem_type",
    "optional_type": "elem_type",
    "map_type": "value_type",
}


def can_have_subgraphs(domain: str, op_type: str) -> bool:
    """Return whether an operator can have graph attributes, without looking at them; an
    unknown one can.
    """
    if domain:
        return (domain, op_type) not in WITHOUT_TENSORS
    return op_type in WITH_SUBGRAPHS


def list_operators(graph: GraphProto) -> Operators:
    """Return the operators of a graph and its subgraphs, each by domain and name.

    Looking at every node of a large graph takes long; what is known of the operators
    spares `walk_graphs` and others a pass each.
    """
    names = {(node.domain, node.op_type) for node in graph.node}
    operators = {(shorten_domain(domain), name) for domain, name in names}
    if any(starmap(can_have_subgraphs, operators)):
        for node in graph.node:
            if can_have_subgraphs(node.domain, node.op_type):
                operators.update(*map(list_operators, iter_subgraphs(node)))
    return operators


def iter_named_subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield a node's subgraphs with the name of the attribute; in a list, with the
    index: `name[1]`.
    """
    for attribute in node.attribute:
        if attribute.type in _GRAPH_KINDS:
            if attribute.type == AttributeProto.GRAPH:
                yield attribute.name, attribute.g
            for index, graph in enumerate(attribute.graphs):
                yield f"{attribute.name}[{index}]", graph


def iter_subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs in a node's attributes."""
    return (graph for _, graph in iter_named_subgraphs(node))


def walk_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes and those in their subgraphs, at any depth: each before those inside
    it.
    """
    for node in nodes:
        yield node
        for subgraph in iter_subgraphs(node):
            yield from walk_nodes(subgraph.node)


def walk_model_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield all nodes of a model, those of its functions last; see `walk_nodes`."""
    functions = (function.node for function in model.functions)
    return walk_nodes(chain(model.graph.node, *functions))


def walk_graphs(
    graph: GraphProto,
    path: SubgraphPath = (),
    *,
    operators: Operators | None = None,
) -> Iterator[tuple[SubgraphPath, GraphProto]]:
    """Yield a graph and all subgraphs in it, at any depth, each before those inside
    it.

    Args:
        graph: the graph.
        path: its own, if it is a subgraph.
        operators: those of its nodes, if they are known: where none can have a
            subgraph, nodes are not looked at.
    """
    yield path, graph
    if operators is not None and not any(starmap(can_have_subgraphs, operators)):
        return

    # Most graphs have many nodes and no subgraph: few nodes get beyond this pass.
    suspects = [
        (index, node)
        for index, node in enumerate(graph.node)
        if node.domain or node.op_type in WITH_SUBGRAPHS
    ]
    for index, node in suspects:
        if can_have_subgraphs(node.domain, node.op_type):
            for name, subgraph in iter_named_subgraphs(node):
                yield from walk_graphs(subgraph, (*path, (index, name)))


def walk_indexed_nodes(
    graph: GraphProto, operators: Operators | None = None
) -> Iterator[tuple[SubgraphPath, int, NodeProto]]:
    """Yield all nodes with the path to their graph and their index in it; a graph's own
    before those of its subgraphs.

    `operators` are as in `walk_graphs`.
    """
    for path, each in walk_graphs(graph, operators=operators):
        for index, node in enumerate(each.node):
            yield path, index, node


def find_outer_names(node: NodeProto) -> tuple[str, ...]:
    """Return the names of the enclosing scope that a node's subgraphs read, in order of
    first use.
    """
    return tuple(
        dict.fromkeys(chain.from_iterable(map(find_free_names, iter_subgraphs(node))))
    )


def find_free_names(graph: GraphProto) -> Iterator[str]:
    """Yield the names that a graph reads and does not define before, in order, some of
    them twice.
    """
    defined = set(list_given_names(graph))
    for node in graph.node:
        for name in (*node.input, *find_outer_names(node)):
            if name and name not in defined:
                yield name
        defined.update(node.output)
    for value in graph.output:
        if value.name and value.name not in defined:
            yield value.name


def list_given_names(graph: GraphProto) -> Iterable[str]:
    """Yield the names that a graph defines without a node: inputs and initializers."""
    sparse = (tensor.values for tensor in graph.sparse_initializer)
    return (each.name for each in chain(graph.input, graph.initializer, sparse))


def walk_tensors(
    graph: GraphProto, functions: Sequence[FunctionProto]
) -> Iterator[TensorProto]:
    """Yield every tensor of a model: initializers, sparse ones, those in attributes,
    subgraphs and functions.
    """
    yield from graph.initializer
    yield from walk_inner_tensors(graph, functions)


def walk_inner_tensors(
    graph: GraphProto, functions: Sequence[FunctionProto]
) -> Iterator[TensorProto]:
    """Yield all of them but the main graph's initializers."""
    yield from _split_sparse(graph.sparse_initializer)
    for node in walk_nodes(
        chain(graph.node, *(function.node for function in functions))
    ):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("sparse_tensor"):
                yield from _split_sparse([attribute.sparse_tensor])
            yield from attribute.tensors
        for subgraph in iter_subgraphs(node):
            yield from subgraph.initializer
            yield from _split_sparse(subgraph.sparse_initializer)


def _split_sparse(tensors: Iterable[SparseTensorProto]) -> Iterator[TensorProto]:
    for sparse in tensors:
        yield from (sparse.values, sparse.indices)


def find_used_functions(
    nodes: Iterable[NodeProto], functions: Sequence[FunctionProto]
) -> list[FunctionProto]:
    """Return the functions that nodes call, directly or through others, in the model's
    order.
    """
    if not functions:
        return []
    by_key = {(f.domain, f.name, f.overload): f for f in functions}
    used: set[tuple[str, str, str]] = set()
    pending = [nodes]
    while pending:
        for node in walk_nodes(pending.pop()):
            key = (node.domain, node.op_type, node.overload)
            if key in by_key and key not in used:
                used.add(key)
                pending.append(by_key[key].node)
    return [f for key, f in by_key.items() if key in used]


DEFAULT_DOMAINS = ("", "ai.onnx")


ONNX_DOMAINS = frozenset(
    {
        "",
        "ai.onnx",
        "ai.onnx.ml",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "ai.onnx.training",
    }
)
"""The domains of ONNX itself."""


def shorten_domain(domain: str) -> str:
    """Return a domain by one name: the empty string for the default one."""
    return "" if domain == "ai.onnx" else domain


def read_opset_imports(model: ModelProto | FunctionProto) -> dict[str, int]:
    """Return domain to version; the default domain is the empty string."""
    return {shorten_domain(o.domain): o.version for o in model.opset_import}


def walk_types(type_: TypeProto) -> Iterator[tuple[str, TypeProto]]:
    """Yield a type and those nested in it (sequence, optional, map) at any depth, each
    with the name of its field.
    """
    while True:
        which = type_.WhichOneof("value") or ""
        yield which, type_
        if which not in _HELD_TYPE:
            return
        type_ = getattr(getattr(type_, which), _HELD_TYPE[which])


def list_shaped_types(type_: TypeProto) -> list[Any]:
    """Return the types of dense and sparse tensors in a type, nested at any depth."""
    return [
        getattr(each, which)
        for which, each in walk_types(type_)
        if which in DENSE_OR_SPARSE
    ]


def keep_messages(messages: Any, is_kept: Callable[[Any], bool]) -> None:
    """Remove all other messages from a repeated field, in place."""
    remaining = [message for message in messages if is_kept(message)]
    if len(remaining) < len(messages):
        del messages[:]
        messages.extend(remaining)


def copy_message(message: Any) -> Any:
    """Return a copy of a protobuf message."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
