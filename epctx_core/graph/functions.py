"""Functions of a model: inlined, measured, and those that are left."""

from __future__ import annotations

from collections.abc import (
    Collection,
    Container,
    Iterable,
    Sequence,
)
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import TYPE_CHECKING

import onnx
import onnx.inliner
from onnx import FunctionProto, NodeProto

from epctx_core.errors import InvalidGraph, quote
from epctx_core.graph.normalise import adopt_versions
from epctx_core.graph.tensor_bytes import COPIED_LIMIT
from epctx_core.graph.walks import (
    find_used_functions,
    shorten_domain,
    walk_model_nodes,
    walk_nodes,
)

if TYPE_CHECKING:
    from epctx_core.graph.model_io import SourceModel


FunctionId = tuple[str, str]
"""Domain and name of a function."""
FunctionSizes = dict[tuple[str, str, str], tuple[int, int]]
"""Domain, name and overload of functions, to the nodes and bytes of a call."""

MOST_NODES = 1 << 18
"""Nodes that inlined functions may have.

A few functions that call each other twice make a million.
"""


def inline_functions(source: SourceModel, kept: Collection[FunctionId]) -> None:
    """Inline functions, in place; functions without calls are dropped.

    A function may import other operator versions than the model: see `adopt_versions`.

    Args:
        source: a model without its large weights.
        kept: functions with calls that stay.

    Raises:
        InvalidGraph: a function is not valid, or the calls are too many nodes.
    """
    proto = source.proto
    if not proto.functions:
        return
    _check_size(source)

    # Their nodes are about to be the model's.
    domains = {o.domain for o in proto.opset_import}
    for opset in chain(*(function.opset_import for function in proto.functions)):
        if opset.domain not in domains:
            domains.add(opset.domain)
            proto.opset_import.add(domain=opset.domain, version=opset.version)

    # Attributes that calls leave out get their defaults: onnx's inliner drops them.
    defaults = {
        (f.domain, f.name, f.overload): f.attribute_proto for f in proto.functions
    }
    for node in walk_model_nodes(proto):
        set_names = {a.name for a in node.attribute}
        missing = defaults.get((node.domain, node.op_type, node.overload), ())
        node.attribute.extend(a for a in missing if a.name not in set_names)
    adopt_versions(
        (f for f in proto.functions if (f.domain, f.name) not in kept),
        source.opset_imports,
    )
    calls = [key for f in proto.functions if (key := (f.domain, f.name)) in kept]
    try:
        inlined = (
            onnx.inliner.inline_selected_functions(proto, calls, exclude=True)
            if calls
            else onnx.inliner.inline_local_functions(proto)
        )
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise InvalidGraph(
            f"the functions of {source.where} cannot be inlined: {quote(error)}",
            path=source.path,
        ) from error

    source.proto = inlined
    left = find_used_functions(inlined.graph.node, inlined.functions)
    del inlined.functions[:]
    inlined.functions.extend(left)
    for node in walk_nodes(inlined.graph.node):
        # Functions call the default domain "ai.onnx", too.
        node.domain = shorten_domain(node.domain)


def _check_size(source: SourceModel) -> None:
    """Check the size before anything follows the calls: shape inference does, even
    those that stay.
    """
    functions = source.proto.functions
    nodes, size = measure_calls(source.proto.graph.node, functions)
    limit = COPIED_LIMIT + sum(function.ByteSize() for function in functions)
    if nodes > MOST_NODES or size > limit:
        raise InvalidGraph(
            f"the functions of {source.where} become {nodes:,} nodes of {size:,} "
            f"bytes when inlined; at most {MOST_NODES:,} nodes and {limit:,} bytes are "
            "allowed.",
            path=source.path,
            hint="Export the model without functions, if it is meant to be as large.",
        )


def measure_calls(
    nodes: Iterable[NodeProto], functions: Sequence[FunctionProto]
) -> tuple[int, int]:
    """Return the number of nodes and bytes that calls become when all functions are
    inlined; see `measure_functions` and `add_calls`.
    """
    return add_calls(nodes, measure_functions(functions))


def measure_functions(functions: Sequence[FunctionProto]) -> FunctionSizes:
    """Return the number of nodes and bytes that a call of each function becomes when
    all are inlined.

    Counted are the functions' nodes, the calls on the way, and the defaults of
    attributes.

    Raises:
        InvalidGraph: functions call each other in a circle.
    """
    by_key = {(f.domain, f.name, f.overload): f for f in functions}
    contents = {key: _count_nodes(f.node, by_key) for key, f in by_key.items()}
    sizes: FunctionSizes = {}
    try:
        for key in TopologicalSorter(
            {key: callees for key, (_, callees) in contents.items()}
        ).static_order():
            count, callees = contents[key]
            inner = [sizes[callee] for callee in callees]
            total = count + sum(n for n, _ in inner)
            sizes[key] = (
                total,
                by_key[key].ByteSize() + sum(size for _, size in inner),
            )
    except CycleError as error:
        domain, name, _ = error.args[1][0]
        raise InvalidGraph(
            f"the function {name!r} of the domain {domain!r} calls itself, directly "
            "or not."
        ) from None
    return sizes


def add_calls(nodes: Iterable[NodeProto], sizes: FunctionSizes) -> tuple[int, int]:
    """Return the number of nodes and bytes that the calls in nodes, and in their
    subgraphs, become.
    """
    _, calls = _count_nodes(nodes, sizes)
    return sum(sizes[key][0] for key in calls), sum(sizes[key][1] for key in calls)


def _count_nodes(
    nodes: Iterable[NodeProto], functions: Container[tuple[str, str, str]]
) -> tuple[int, list[tuple[str, str, str]]]:
    """Return the number of nodes, those in subgraphs included, and the functions they
    call, once for each call.
    """
    keys = [(node.domain, node.op_type, node.overload) for node in walk_nodes(nodes)]
    return len(keys), [key for key in keys if key in functions]
