"""Names of a graph: listed, and changed everywhere at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from epctx_files.structure import is_context_node, iter_subgraphs

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

    from epctx_files.structure import FunctionKey


def list_values(graphs: Iterable[GraphProto]) -> Iterator[str]:
    """Yield the names of the values that graphs define, some of them twice."""
    for each in graphs:
        for value in chain(each.input, each.initializer):
            yield value.name
        for sparse in each.sparse_initializer:
            yield sparse.values.name
        for node in each.node:
            yield from filter(None, node.output)


def list_doubtful_texts(
    model: ModelProto, graphs: Iterable[GraphProto]
) -> Iterator[str]:
    """Yield the names in a model that protobuf may give as bytes, as they are not
    UTF-8; none of most nodes.
    """
    for function in model.functions:
        yield from (*get_key(function), *function.input, *function.output)
        yield from function.attribute
        for node in function.node:
            yield from _list_node_texts(node)
            yield from node.output
    for opset in model.opset_import:
        yield opset.domain
    for entry in model.metadata_props:
        yield entry.key
    for each in graphs:
        yield from _list_graph_texts(each)


def _list_graph_texts(each: GraphProto) -> Iterator[str]:
    yield from (each.name, each.doc_string)
    yield from list_values((each,))
    for value in chain(each.value_info, each.output):
        yield value.name
    for annotation in each.quantization_annotation:
        yield annotation.tensor_name
        for entry in annotation.quant_parameter_tensor_names:
            yield entry.value
    for node in each.node:
        yield from _list_node_texts(node)


def _list_node_texts(node: NodeProto) -> Iterator[str]:
    """Yield the names in a node but for its outputs, if one of them is not UTF-8."""
    texts = (node.name, node.op_type, node.domain, node.overload, *node.input)
    try:
        # Far faster than a look at each, and it fails for bytes.
        "".join((*texts, *(attribute.name for attribute in node.attribute)))
    except TypeError:
        yield from texts
        yield from (attribute.name for attribute in node.attribute)


def list_nodes(graphs: Iterable[GraphProto]) -> Iterator[str]:
    """Yield the names of the nodes of graphs, as far as they have one."""
    for each in graphs:
        yield from filter(None, (node.name for node in each.node))


def list_bound_values(graphs: Iterable[GraphProto]) -> set[str]:
    """Return the values that EPContext nodes read and compute.

    Their names stay: what a vendor compiled may know its tensors by them, as QNN's
    binaries do.
    """
    bound: set[str] = set()
    for each in graphs:
        for node in filter(is_context_node, each.node):
            bound.update(node.input, node.output)
    return bound - {""}


def rename_values(graphs: Iterable[GraphProto], names: Mapping[str, str]) -> None:
    """Rename values in graphs."""
    for each in graphs if names else ():
        sparse = (tensor.values for tensor in each.sparse_initializer)
        named = chain(each.input, each.output, each.value_info, each.initializer)
        for value in chain(named, sparse):
            if value.name in names:
                value.name = names[value.name]

        for annotation in each.quantization_annotation:
            annotation.tensor_name = _find(names, annotation.tensor_name)
            for entry in annotation.quant_parameter_tensor_names:
                entry.value = _find(names, entry.value)

        for node in each.node:
            for arguments in (node.input, node.output):
                for index, name in enumerate(arguments):
                    if name in names:
                        arguments[index] = names[name]


def _find(names: Mapping[str, str], name: str) -> str:
    return names.get(name, name)


def rename_nodes(graphs: Iterable[GraphProto], names: Mapping[str, str]) -> None:
    """Rename nodes of graphs."""
    for each in graphs if names else ():
        for node in each.node:
            if node.name in names:
                node.name = names[node.name]


def get_key(function: FunctionProto) -> FunctionKey:
    """Return what nodes call a function by."""
    return function.domain, function.name, function.overload


def rename_functions(model: ModelProto, names: Mapping[FunctionKey, str]) -> None:
    """Rename functions of a model, and the nodes that call them."""
    if not names:
        return
    for function in model.functions:
        _rename_calls(function.node, names)
        function.name = names.get(get_key(function), function.name)
    _rename_calls(model.graph.node, names)


def _rename_calls(nodes: Iterator[NodeProto], names: Mapping[FunctionKey, str]) -> None:
    for node in nodes:
        key = (node.domain, node.op_type, node.overload)
        node.op_type = names.get(key, node.op_type)
        for subgraph in iter_subgraphs(node):
            _rename_calls(subgraph.node, names)


def make_free(name: str, prefix: str, taken: set[str]) -> str:
    """Return a name with a prefix that is not taken; it is taken from now on."""
    new = f"{prefix}{name}"
    number = 2
    while new in taken:
        new = f"{prefix}{name}_{number}"
        number += 1
    taken.add(new)
    return new
