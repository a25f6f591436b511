"""Outer names of nodes and subgraphs, and models without external weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import ModelProto, helper

from epctx_onnxruntime.graphs import is_detached, subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


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
