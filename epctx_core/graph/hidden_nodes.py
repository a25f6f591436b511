"""Nodes hidden from onnx's inference, which ends the process over them.

Some operators are inferred only where the type of their first input is known. Right
models have it unknown: behind an operator that onnx does not have, and in functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from epctx_core.graph.walks import (
    find_schema,
    iter_subgraphs,
    read_opset_imports,
    shorten_domain,
    walk_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnx import GraphProto, ModelProto, NodeProto

    from epctx_core.graph.preconditions import Operators

_NEED_TYPES = frozenset(
    {
        ("", "EyeLike"),
        ("", "RegexFullMatch"),
        ("ai.onnx.ml", "DictVectorizer"),
        ("ai.onnx.ml", "LabelEncoder"),
        ("ai.onnx.ml", "TreeEnsemble"),
    }
)
_HIDDEN = "epctx.hidden"
"""Domain of hidden nodes, which has no operators."""


def has_needy_nodes(model: ModelProto, operators: Operators) -> bool:
    """Return whether a model has nodes of such operators at all.

    Args:
        model: the model.
        operators: those of all its nodes outside of functions.
    """
    functions = (node for function in model.functions for node in function.node)
    return not _NEED_TYPES.isdisjoint(operators) or any(
        map(_needs_type, walk_nodes(functions))
    )


def hide_untyped(probe: ModelProto, operators: Operators) -> int:
    """Hide, in place, the nodes whose input may have no type; return their number.

    They are nodes of a domain without operators until `show_hidden`.

    Args:
        probe: the model.
        operators: see `has_needy_nodes`.
    """
    if not has_needy_nodes(probe, operators):
        return 0
    hidden: list[NodeProto] = []
    infers = partial(_is_inferred, read_opset_imports(probe))
    _walk_graph(probe.graph, frozenset(), infers, hidden)
    for function in probe.functions:
        # Whether a caller has types for them is not looked at.
        unknown = set(function.input)
        infers = partial(_is_inferred, read_opset_imports(function))
        _walk(function.node, unknown, frozenset(), infers, hidden)
    for node in hidden:
        node.domain, node.op_type = _HIDDEN, f"{node.domain}:{node.op_type}"
    for each in (probe, *probe.functions) if hidden else ():
        each.opset_import.add(domain=_HIDDEN, version=1)
    return len(hidden)


def show_hidden(model: ModelProto) -> None:
    """Undo `hide_untyped`, in place."""
    functions = [node for function in model.functions for node in function.node]
    for node in walk_nodes(chain(model.graph.node, functions)):
        if node.domain == _HIDDEN:
            node.domain, _, node.op_type = node.op_type.rpartition(":")
    for each in (model, *model.functions):
        kept = [opset for opset in each.opset_import if opset.domain != _HIDDEN]
        del each.opset_import[:]
        each.opset_import.extend(kept)


def _needs_type(node: NodeProto) -> bool:
    return (shorten_domain(node.domain), node.op_type) in _NEED_TYPES


def _is_inferred(versions: dict[str, int], node: NodeProto) -> bool:
    """Return whether onnx finds the types of a node's results, given those of its
    inputs.
    """
    domain = shorten_domain(node.domain)
    schema = find_schema(domain, node.op_type, versions.get(domain, 1))
    return schema is not None and schema.has_type_and_shape_inference_function


def _walk_graph(
    graph: GraphProto,
    outside: AbstractSet[str],
    infers: Callable[[NodeProto], bool],
    hidden: list[NodeProto],
) -> set[str]:
    """Return the names in a graph whose types may be unknown, those of the graphs
    around it among them, and add the nodes to hide.
    """
    values = (*graph.input, *graph.output, *graph.value_info)
    typed = {value.name for value in values if value.type.WhichOneof("value")}
    typed.update(tensor.name for tensor in graph.initializer)
    # Its own values hide those of its names outside.
    unknown = set(outside - typed)
    unknown.update(value.name for value in graph.input if value.name not in typed)
    _walk(graph.node, unknown, typed, infers, hidden)
    return unknown


def _walk(
    nodes: Iterable[NodeProto],
    unknown: set[str],
    typed: AbstractSet[str],
    infers: Callable[[NodeProto], bool],
    hidden: list[NodeProto],
) -> None:
    """Follow what is unknown through nodes in their order; `unknown` is changed."""
    for node in nodes:
        if _needs_type(node) and not unknown.isdisjoint(node.input[:1]):
            hidden.append(node)
        lacks_type = not unknown.isdisjoint(node.input) or not infers(node)
        for subgraph in iter_subgraphs(node):
            inner = _walk_graph(subgraph, unknown, infers, hidden)
            lacks_type |= any(value.name in inner for value in subgraph.output)
        results = set(node.output) - typed
        if lacks_type:
            unknown |= results
        else:
            unknown -= results
