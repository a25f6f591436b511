"""Preconditions of operators that onnx's own code takes for granted: where a model
breaks one, it ends the process or never comes back.

Checked before any native inference, so by every compile, load and verification. What a
node alone cannot show, such as sizes that inference computes, is found only by the
process in which a verification reads the model first. The faults of onnx are listed in
docs/contributing/onnx-faults.md.

Some operators are inferred only where the type of their first input is known. Right
models have it unknown: behind an operator that onnx does not have, and in functions.
So their nodes are not refused, but hidden from inference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeAlias

from epctx_core.errors import InvalidGraph
from epctx_core.graph.walks import (
    HIDDEN,
    Operators,
    iter_subgraphs,
    keep_messages,
    read_opset_imports,
    shorten_domain,
    walk_graphs,
    walk_model_nodes,
    walk_nodes,
)
from epctx_core.graph.weights import MAX_RANK

if TYPE_CHECKING:
    import onnx
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

_Attributes: TypeAlias = "Mapping[str, AttributeProto]"
_Check: TypeAlias = "Callable[[NodeProto, _Attributes], bool]"


def find_schema(domain: str, op_type: str, version: int) -> onnx.defs.OpSchema | None:
    """Return ONNX's definition of an operator in a version of its domain, None for one
    that onnx does not know.
    """
    import onnx

    try:
        return onnx.defs.get_schema(op_type, version, shorten_domain(domain))
    except (onnx.defs.SchemaError, TypeError):
        return None


def _splits_evenly(node: NodeProto, attributes: _Attributes) -> bool:
    has_sizes = len(node.input) > 1 and node.input[1] != ""
    count = attributes.get("num_outputs")
    return has_sizes or count is None or count.i == len(node.output)


def _has_terms_of_letters(node: NodeProto, attributes: _Attributes) -> bool:
    equation = attributes.get("equation")
    left = b"" if equation is None else equation.s.replace(b" ", b"").split(b"->")[0]
    terms = left.split(b",")
    return all(node.input) and all(_EINSUM_TERM.fullmatch(term) for term in terms)


def _counts_within_pool(_node: NodeProto, attributes: _Attributes) -> bool:
    pools = (attributes.get("pool_int64s"), attributes.get("pool_strings"))
    size = sum(len(pool.ints) + len(pool.strings) for pool in pools if pool is not None)
    counts = attributes.get("ngram_counts")
    starts = (0, *(() if counts is None else counts.ints), size)
    return all(one <= other for one, other in pairwise(starts))


def _is_axis_from(least: int, name: str) -> _Check:
    """Return a check of an attribute that counts axes, which may be missing."""
    return lambda _node, attributes: (
        name not in attributes or least <= attributes[name].i <= MAX_RANK
    )


_EINSUM_TERM = re.compile(rb"[A-Za-z]*(\.\.\.)?[A-Za-z]*")
_PRECONDITIONS: dict[str, tuple[_Check, str]] = {
    **dict.fromkeys(
        ["Max", "Mean", "Min", "Sum"],
        (
            # onnxruntime ends the process.
            lambda node, _attributes: all(node.input),
            "An empty string stands for an optional input; these are variadic.",
        ),
    ),
    "Einsum": (
        _has_terms_of_letters,
        (
            "The equation string contains a comma-separated sequence of letters; each "
            "term corresponds to an operand tensor."
        ),
    ),
    "GatherND": (
        _is_axis_from(0, "batch_dims"),
        "b < min(q, r) is to be honored.",
    ),
    "LayerNormalization": (
        _is_axis_from(-MAX_RANK, "axis"),
        "If rank(X) is r, axis' allowed range is [-r, r).",
    ),
    "Scan": (
        lambda node, attributes: (
            "num_scan_inputs" not in attributes
            or 0 < attributes["num_scan_inputs"].i <= len(node.input)
        ),
        "num_scan_inputs: An attribute specifying the number of scan_inputs M.",
    ),
    "Split": (
        _splits_evenly,
        "num_outputs: Number of outputs to split parts of the tensor into.",
    ),
    "TfIdfVectorizer": (
        _counts_within_pool,
        "ngram_counts: The starting indexes of 1-grams, 2-grams, and so on in pool.",
    ),
}
"""By operator of the default domain: the check of a node, and the sentence of ONNX's
specification that it broke otherwise.
"""


def check_preconditions(model: ModelProto, operators: Operators) -> None:
    """Check the nodes of a model, those of subgraphs and functions among them.

    Args:
        model: the model.
        operators: those of all its nodes outside of functions.

    Raises:
        InvalidGraph: a node breaks a precondition.
    """
    functions = [node for function in model.functions for node in function.node]
    nodes: Iterable[NodeProto] = walk_nodes(functions)
    if not _PRECONDITIONS.keys().isdisjoint([name for _, name in operators]):
        walk = walk_graphs(model.graph, operators=operators)
        nodes = chain(nodes, *(graph.node for _, graph in walk))
    for node in nodes:
        check, text = _PRECONDITIONS.get(node.op_type, (None, ""))
        if check is None or shorten_domain(node.domain):
            continue
        attributes = {attribute.name: attribute for attribute in node.attribute}
        # What a function's caller gives is not known here.
        is_open = any(attribute.ref_attr_name for attribute in node.attribute)
        if is_open or check(node, attributes):
            continue
        name = node.name or next(iter(node.output), "")
        raise InvalidGraph(
            f"the node {name!r} is not the {node.op_type} of ONNX's specification, "
            f"which says: {text}",
            node=name,
            hint="The file is damaged, or a faulty tool wrote it; export it again.",
        )


_NEED_TYPES = frozenset(
    {
        ("", "EyeLike"),
        ("", "RegexFullMatch"),
        ("ai.onnx.ml", "DictVectorizer"),
        ("ai.onnx.ml", "LabelEncoder"),
        ("ai.onnx.ml", "TreeEnsemble"),
    }
)


def hide_untyped(probe: ModelProto, operators: Operators) -> int:
    """Hide, in place, the nodes whose input may have no type; return their number.

    They are nodes of a domain without operators until `show_hidden`.

    Args:
        probe: the model.
        operators: those of all its nodes outside of functions.
    """
    hidden: list[NodeProto] = []
    if not _NEED_TYPES.isdisjoint(operators):
        _walk_graph(probe.graph, frozenset(), read_opset_imports(probe), hidden)
    for function in probe.functions:
        # Whether a caller has types for them is not looked at.
        versions = read_opset_imports(function)
        _walk(function.node, set(function.input), frozenset(), versions, hidden)
    for node in hidden:
        node.domain, node.op_type = HIDDEN, f"{node.domain}:{node.op_type}"
    for each in (probe, *probe.functions) if hidden else ():
        each.opset_import.add(domain=HIDDEN, version=1)
    return len(hidden)


def show_hidden(model: ModelProto) -> None:
    """Undo `hide_untyped`, in place."""
    for node in walk_model_nodes(model):
        if node.domain == HIDDEN:
            node.domain, _, node.op_type = node.op_type.rpartition(":")
    for each in (model, *model.functions):
        keep_messages(each.opset_import, lambda opset: opset.domain != HIDDEN)


def _walk_graph(
    graph: GraphProto,
    outside: AbstractSet[str],
    versions: Mapping[str, int],
    hidden: list[NodeProto],
) -> set[str]:
    """Return the names in a graph of values that may have no type, those of the graphs
    around it among them, and add the nodes to hide.
    """
    values = (*graph.input, *graph.output, *graph.value_info)
    typed = {value.name for value in values if value.type.WhichOneof("value")}
    typed.update(tensor.name for tensor in graph.initializer)
    # Its own values hide those of its names outside.
    unknown = set(outside - typed)
    unknown.update(value.name for value in graph.input if value.name not in typed)
    _walk(graph.node, unknown, typed, versions, hidden)
    return unknown


def _walk(
    nodes: Iterable[NodeProto],
    unknown: set[str],
    typed: AbstractSet[str],
    versions: Mapping[str, int],
    hidden: list[NodeProto],
) -> None:
    """Follow what is unknown through nodes in their order; `unknown` is changed."""
    for node in nodes:
        domain = shorten_domain(node.domain)
        needs_type = (domain, node.op_type) in _NEED_TYPES
        if needs_type and not unknown.isdisjoint(node.input[:1]):
            hidden.append(node)
        schema = find_schema(domain, node.op_type, versions.get(domain, 1))
        lacks_type = (
            schema is None
            or not schema.has_type_and_shape_inference_function
            or not unknown.isdisjoint(node.input)
        )
        for subgraph in iter_subgraphs(node):
            inner = _walk_graph(subgraph, unknown, versions, hidden)
            lacks_type |= any(value.name in inner for value in subgraph.output)
        results = set(node.output) - typed
        if lacks_type:
            unknown |= results
        else:
            unknown -= results
