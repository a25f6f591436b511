"""Preconditions of operators that onnx's own code takes for granted: where a model
breaks one, it ends the process or never comes back.

Checked before any native inference, so by every compile, load and verification. What a
node alone cannot show, such as sizes that inference computes, is found only by the
process in which a verification reads the model first. The faults of onnx are listed in
docs/onnx-faults.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeAlias

from epctx_core.errors import InvalidGraph
from epctx_core.graph.walks import (
    can_have_subgraphs,
    iter_subgraphs,
    shorten_domain,
    walk_graphs,
    walk_nodes,
)
from epctx_core.graph.weights import MAX_RANK

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

Operators: TypeAlias = "set[tuple[str, str]]"
"""Operators by domain and name."""
_Attributes: TypeAlias = "Mapping[str, AttributeProto]"
_Check: TypeAlias = "Callable[[NodeProto, _Attributes], bool]"


def _splits_evenly(node: NodeProto, attributes: _Attributes) -> bool:
    has_sizes = len(node.input) > 1 and node.input[1] != ""
    count = attributes.get("num_outputs")
    return has_sizes or count is None or count.i == len(node.output)


def _has_terms_of_letters(_node: NodeProto, attributes: _Attributes) -> bool:
    equation = attributes.get("equation")
    left = b"" if equation is None else equation.s.replace(b" ", b"").split(b"->")[0]
    return all(_EINSUM_TERM.fullmatch(term) for term in left.split(b","))


def _counts_within_pool(_node: NodeProto, attributes: _Attributes) -> bool:
    pools = (attributes.get("pool_int64s"), attributes.get("pool_strings"))
    size = sum(len(pool.ints) + len(pool.strings) for pool in pools if pool is not None)
    counts = attributes.get("ngram_counts")
    starts = (0, *(() if counts is None else counts.ints), size)
    return all(one <= other for one, other in pairwise(starts))


def _is_within(name: str, least: int, most: int) -> _Check:
    """Return a check of an integer attribute, which may be missing."""
    return lambda _node, attributes: (
        name not in attributes or least <= attributes[name].i <= most
    )


_EINSUM_TERM = re.compile(rb"[A-Za-z]*(\.\.\.)?[A-Za-z]*")
_PRECONDITIONS: dict[tuple[str, str], tuple[_Check, str]] = {
    ("", "Einsum"): (
        _has_terms_of_letters,
        "The equation string contains a comma-separated sequence of letters.",
    ),
    ("", "GatherND"): (
        _is_within("batch_dims", 0, MAX_RANK),
        "b < min(q, r) is to be honored.",
    ),
    ("", "LayerNormalization"): (
        _is_within("axis", -MAX_RANK, MAX_RANK),
        "If rank(X) is r, axis' allowed range is [-r, r).",
    ),
    ("", "Scan"): (
        lambda node, attributes: (
            "num_scan_inputs" not in attributes
            or 0 < attributes["num_scan_inputs"].i <= len(node.input)
        ),
        "num_scan_inputs: An attribute specifying the number of scan_inputs M.",
    ),
    ("", "Split"): (
        _splits_evenly,
        "num_outputs: Number of outputs to split parts of the tensor into.",
    ),
    ("", "TfIdfVectorizer"): (
        _counts_within_pool,
        "ngram_counts: The starting indexes of 1-grams, 2-grams, and so on in pool.",
    ),
}
"""By domain and operator: the check of a node, and the sentence of ONNX's specification
that it broke otherwise.
"""


def list_operators(graph: GraphProto) -> Operators:
    """Return the operators of a graph and its subgraphs, each by domain and name."""
    found = {(node.domain, node.op_type) for node in graph.node}
    operators = {(shorten_domain(domain), name) for domain, name in found}
    if any(can_have_subgraphs(*operator) for operator in operators):
        for node in graph.node:
            if can_have_subgraphs(node.domain, node.op_type):
                operators.update(*map(list_operators, iter_subgraphs(node)))
    return operators


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
    if not _PRECONDITIONS.keys().isdisjoint(operators):
        nodes = chain(nodes, *(graph.node for _, graph in walk_graphs(model.graph)))
    for node in nodes:
        check, text = _PRECONDITIONS.get(
            (shorten_domain(node.domain), node.op_type), (None, "")
        )
        if check is None:
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
