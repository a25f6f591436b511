"""Structure of an ONNX model: its graphs, nodes and tensors at any depth, EPContext
nodes, and metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    StringStringEntryProto,
    TensorProto,
    TypeProto,
)

MANIFEST: Final = "epctx.manifest"
SEALED: Final = "epctx.sealed"
INITIALIZERS: Final = "epctx.initializers"
DEPENDENCIES: Final = "external_dependencies"
COMPATIBILITY: Final = "ep_compatibility_info."
"""Keys of metadata, the last one a prefix; see docs/reference/context-model.md."""

FunctionKey: TypeAlias = "tuple[str, str, str]"
"""Domain, name and overload of a function of a model."""

_CONTEXT = "EPContext"
_INSIDE = frozenset(
    {
        AttributeProto.GRAPH,
        AttributeProto.GRAPHS,
        AttributeProto.TENSOR,
        AttributeProto.TENSORS,
        AttributeProto.SPARSE_TENSOR,
    }
)
"""Types of attributes that have graphs or tensors."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Parts of a model, found by one walk; they are the model's own messages.

    Attributes:
        graphs: the main graph and its subgraphs at any depth, each before those inside
            it.
        contexts: the EPContext nodes of these graphs.
        tensors: initializers, sparse ones, and those in attributes; functions and
            training information too.
    """

    graphs: list[GraphProto] = field(default_factory=list)
    contexts: list[NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)


def find_parts(model: ModelProto) -> Parts:
    """Return the parts of a model."""
    parts = Parts()
    _walk(model.graph, parts)
    graphs = len(parts.graphs)
    for function in model.functions:
        _walk_nodes(function.node, parts)
    for training in model.training_info:
        for graph in (training.initialization, training.algorithm):
            _walk(graph, parts)
    del parts.graphs[graphs:]
    return parts


def _walk(graph: GraphProto, parts: Parts) -> None:
    parts.graphs.append(graph)
    parts.tensors.extend(graph.initializer)
    parts.tensors.extend(_split_sparse(graph.sparse_initializer))
    _walk_nodes(graph.node, parts)


def _walk_nodes(nodes: Iterable[NodeProto], parts: Parts) -> None:
    for node in nodes:
        if node.op_type == _CONTEXT and is_context_node(node):
            parts.contexts.append(node)
        for attribute in node.attribute:
            if attribute.type not in _INSIDE:
                continue
            if attribute.type == AttributeProto.TENSOR:
                parts.tensors.append(attribute.t)
            elif attribute.type == AttributeProto.SPARSE_TENSOR:
                parts.tensors.extend(_split_sparse([attribute.sparse_tensor]))
            elif attribute.type == AttributeProto.GRAPH:
                _walk(attribute.g, parts)
            parts.tensors.extend(attribute.tensors)
            for graph in attribute.graphs:
                _walk(graph, parts)


def iter_subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _split_sparse(tensors: Iterable[SparseTensorProto]) -> Iterator[TensorProto]:
    for sparse in tensors:
        yield from (sparse.values, sparse.indices)


def find_location(tensor: TensorProto) -> StringStringEntryProto | None:
    """Return the entry with the name of the file that a tensor lies in, None for an
    inline one.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    return next((each for each in tensor.external_data if each.key == "location"), None)


def is_context_node(node: NodeProto) -> bool:
    """Return whether a node is an EPContext node."""
    return node.op_type == _CONTEXT and node.domain == "com.microsoft"


def find_attribute(node: NodeProto, name: str) -> AttributeProto | None:
    """Return an attribute of a node, or None."""
    return next((each for each in node.attribute if each.name == name), None)


def is_primary(node: NodeProto) -> bool:
    """Return whether an EPContext node has a payload, its own or one in a file."""
    main_context = find_attribute(node, "main_context")
    return main_context is None or main_context.i != 0


def is_embedded(node: NodeProto) -> bool:
    """Return whether the payload of an EPContext node is in the model; that is the
    operator's default.
    """
    mode = find_attribute(node, "embed_mode")
    return mode is None or mode.i == 1


def find_file_name(node: NodeProto) -> AttributeProto | None:
    """Return the attribute of an EPContext node that has the name of a file."""
    cache = find_attribute(node, "ep_cache_context")
    return None if is_embedded(node) or cache is None or not cache.s else cache


def spell_element(number: int) -> str:
    """Return the name of an element type, such as `float`; its number if unknown."""
    known = number in TensorProto.DataType.values()
    return TensorProto.DataType.Name(number).lower() if known else str(number)


def spell_type(type_: TypeProto) -> str:
    """Return a type in few words, such as `float[2, N]`."""
    kind = type_.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return (kind or "untyped").removesuffix("_type")

    tensor = getattr(type_, kind)
    element = spell_element(tensor.elem_type)
    if not tensor.HasField("shape"):
        return element
    lengths = (
        str(each.dim_value) if each.HasField("dim_value") else each.dim_param or "?"
        for each in tensor.shape.dim
    )
    return f"{element}[{', '.join(lengths)}]"


def find_metadata(model: ModelProto, key: str) -> str | None:
    """Return an entry of a model's metadata, or None."""
    for entry in model.metadata_props:
        if entry.key == key:
            value = entry.value
            # protobuf gives bytes for text that is not UTF-8.
            return value.decode(errors="replace") if isinstance(value, bytes) else value
    return None


def set_metadata(model: ModelProto, key: str, text: str) -> None:
    """Set an entry of a model's metadata."""
    remove_metadata(model, {key})
    model.metadata_props.add(key=key, value=text)


def remove_metadata(model: ModelProto, keys: Collection[str]) -> None:
    """Remove entries of a model's metadata."""
    kept = [entry for entry in model.metadata_props if entry.key not in keys]
    if len(kept) < len(model.metadata_props):
        # As messages: a text that is not UTF-8 can be copied, and not be set.
        copies = ModelProto(metadata_props=kept)
        del model.metadata_props[:]
        model.metadata_props.MergeFrom(copies.metadata_props)
