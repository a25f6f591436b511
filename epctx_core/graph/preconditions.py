"""Preconditions of operators that onnx's own code takes for granted: where a model
breaks one, it ends the process or never comes back.

Checked before any native inference, so by every compile, load and verification. What a
node alone cannot show, such as sizes that inference computes, is found only by the
process in which a verification reads the model first. The faults of onnx are listed in
docs/onnx-faults.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeAlias

from epctx_core.errors import InvalidGraph
from epctx_core.graph.index import (
    shorten_domain,
    walk_graphs,
    walk_nodes,
)
from epctx_core.graph.weights import MAX_RANK

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, NodeProto

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

NEED_TYPES = frozenset(
    {
        ("", "EyeLike"),
        ("", "RegexFullMatch"),
        ("ai.onnx.ml", "DictVectorizer"),
        ("ai.onnx.ml", "LabelEncoder"),
        ("ai.onnx.ml", "TreeEnsemble"),
    }
)
"""Operators that onnx infers only where the type of the first input is known. Right
models have it unknown: behind an operator that onnx does not have.
"""
_HIDDEN = "epctx.hidden"


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
        # What a function's caller gives is not known here.
        given = (a for a in node.attribute if not a.ref_attr_name)
        if check is None or check(node, {a.name: a for a in given}):
            continue
        name = node.name or next(iter(node.output), "")
        raise InvalidGraph(
            f"the node {name!r} is not the {node.op_type} of ONNX's specification, "
            f"which says: {text}",
            node=name,
            hint="The file is damaged, or a faulty tool wrote it; export it again.",
        )


def hide_untyped(probe: ModelProto, operators: Operators) -> bool:
    """Hide from onnx, in place, the nodes that it infers only with the type of their
    input and that have it not declared; return whether there are any.

    They are nodes of a domain without operators meanwhile.

    Args:
        probe: the model.
        operators: see `check_preconditions`; those of functions are looked for.
    """
    inner = (node for function in probe.functions for node in function.node)
    if NEED_TYPES.isdisjoint(operators) and NEED_TYPES.isdisjoint(
        (shorten_domain(node.domain), node.op_type) for node in inner
    ):
        return False
    known = _list_typed_names(probe)
    hidden = False
    for node in _walk_all_nodes(probe):
        needs = (shorten_domain(node.domain), node.op_type) in NEED_TYPES
        if needs and known.isdisjoint(node.input[:1]):
            node.domain, node.op_type = _HIDDEN, f"{node.domain}:{node.op_type}"
            hidden = True
    if hidden:
        probe.opset_import.add(domain=_HIDDEN, version=1)
        for function in probe.functions:
            function.opset_import.add(domain=_HIDDEN, version=1)
    return hidden


def show_typed(probe: ModelProto, inferred: ModelProto | None = None) -> bool:
    """Show hidden nodes again, in place; return whether there were any.

    Args:
        probe: a model with hidden nodes.
        inferred: the same model, inferred: only nodes whose input has a type in it are
            shown. None for all.
    """
    known = None if inferred is None else _list_typed_names(inferred)
    shown = False
    for node in _walk_all_nodes(probe):
        if node.domain == _HIDDEN and (
            known is None or not known.isdisjoint(node.input[:1])
        ):
            node.domain, _, node.op_type = node.op_type.rpartition(":")
            shown = True
    return shown


def _list_typed_names(model: ModelProto) -> set[str]:
    names: set[str] = set()
    for _, graph in walk_graphs(model.graph):
        declared = chain(graph.input, graph.output, graph.value_info)
        names.update(v.name for v in declared if v.type.WhichOneof("value"))
        names.update(tensor.name for tensor in graph.initializer)
    return names


def _walk_all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    yield from walk_nodes(model.graph.node)
    for function in model.functions:
        yield from walk_nodes(function.node)
