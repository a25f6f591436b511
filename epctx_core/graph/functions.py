"""Functions that a model defines for itself: which of them a piece needs, what they amount to, and their inlining.

Inlining puts functions in place of their calls, so that EPs see operators.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import onnx
import onnx.inliner

from epctx_core.errors import InvalidGraph
from epctx_core.graph.bodies import bodies
from epctx_core.graph.normalise import read_with_versions
from epctx_core.graph.weights import COPIED_LIMIT

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

    from epctx_core.graph.model_io import SourceModel

FunctionId = tuple[str, str]
"""Domain and name of a function."""
_Key: TypeAlias = "tuple[str, str, str]"
"""Domain, name and overload."""

MOST_NODES = 1 << 18
"""Nodes that calls of functions may become. A few functions that call each other twice are a million."""


def inline_functions(source: SourceModel, kept: Collection[FunctionId] = ()) -> None:
    """Put function bodies in place of their calls, in place; functions that nothing calls then are dropped.

    A function may import other operator versions than the model: see `read_with_versions`.

    Args:
        source: a model without its large weights.
        kept: functions whose calls stay.

    Raises:
        InvalidGraph: a function is not valid, or the calls are too many nodes.
    """
    proto = source.proto
    if not proto.functions:
        return
    _check_size(source)
    _add_imports(proto)
    _add_defaults(proto)
    inlined_ones = (f for f in proto.functions if (f.domain, f.name) not in kept)
    read_with_versions(inlined_ones, proto.opset_import)
    source.proto = inlined = _inlined(source, kept)
    left = used_functions(inlined.graph.node, inlined.functions)
    del inlined.functions[:]
    inlined.functions.extend(left)
    _spell_default_domain(inlined.graph)


def _check_size(source: SourceModel) -> None:
    """Raise before anything follows the calls: shape inference does, also those that stay."""
    functions = source.proto.functions
    nodes, size = size_of_calls(source.proto.graph.node, functions)
    most = COPIED_LIMIT + sum(function.ByteSize() for function in functions)
    if nodes > MOST_NODES or size > most:
        raise InvalidGraph(
            f"the functions of {source.where} become {nodes:,} nodes of {size:,} bytes where they are called; at most "
            f"{MOST_NODES:,} nodes and {most:,} bytes are taken.",
            path=source.path,
            hint="Export the model without functions, if it is meant to be as large.",
        )


def _inlined(source: SourceModel, kept: Collection[FunctionId]) -> ModelProto:
    proto = source.proto
    calls = [key for f in proto.functions if (key := (f.domain, f.name)) in kept]
    try:
        if calls:
            return onnx.inliner.inline_selected_functions(proto, calls, exclude=True)
        return onnx.inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        text = " ".join(str(error).split())
        raise InvalidGraph(
            f"the functions of {source.where} cannot be put in place of their calls: {text}", path=source.path
        ) from error


def _add_imports(proto: ModelProto) -> None:
    """Import the domains that only functions import: their nodes are about to be the model's."""
    known = {o.domain for o in proto.opset_import}
    for function in proto.functions:
        for opset in function.opset_import:
            if opset.domain not in known:
                known.add(opset.domain)
                proto.opset_import.add(domain=opset.domain, version=opset.version)


def _add_defaults(proto: ModelProto) -> None:
    """Write the defaults of functions' attributes into calls that leave them out: onnx's inliner drops them."""
    defaults = {(f.domain, f.name, f.overload): f.attribute_proto for f in proto.functions}
    pending = [*proto.graph.node, *(node for f in proto.functions for node in f.node)]
    while pending:
        node = pending.pop()
        given = {a.name for a in node.attribute}
        missing = defaults.get((node.domain, node.op_type, node.overload), ())
        node.attribute.extend(a for a in missing if a.name not in given)
        for body in bodies(node):
            pending.extend(body.node)


def _spell_default_domain(graph: GraphProto) -> None:
    """Write the default domain as the empty string; function bodies also call it "ai.onnx"."""
    for node in graph.node:
        if node.domain == "ai.onnx":
            node.domain = ""
        for body in bodies(node):
            _spell_default_domain(body)


def used_functions(nodes: Iterable[NodeProto], functions: Sequence[FunctionProto]) -> list[FunctionProto]:
    """Return the functions that nodes call, directly or through others, in the model's order."""
    if not functions:
        return []
    known = {(f.domain, f.name, f.overload): f for f in functions}
    used: set[tuple[str, str, str]] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        for body in bodies(node):
            pending.extend(body.node)
        key = (node.domain, node.op_type, node.overload)
        if key in known and key not in used:
            used.add(key)
            pending.extend(known[key].node)
    return [f for key, f in known.items() if key in used]


def size_of_calls(nodes: Iterable[NodeProto], functions: Sequence[FunctionProto]) -> tuple[int, int]:
    """Return how many nodes calls become until all functions are in place, and of how many bytes.

    Counted are the functions' nodes, the calls on the way, and the defaults of attributes.

    Args:
        nodes: those of the main graph.
        functions: the model's.

    Raises:
        InvalidGraph: functions call each other in a circle.
    """
    known = {(f.domain, f.name, f.overload): f for f in functions}
    contents = {key: _contents(f.node, known) for key, f in known.items()}
    sizes: dict[_Key, tuple[int, int]] = {}
    begun: set[_Key] = set()
    _, first = _contents(nodes, known)
    pending = list(dict.fromkeys(first))
    while pending:
        key = pending[-1]
        own, callees = contents[key]
        missing = {callee for callee in callees if callee not in sizes}
        if missing & begun:
            raise InvalidGraph(
                f"the function {key[1]!r} of the domain {key[0]!r} calls itself, directly or not."
            )
        if missing:
            begun.add(key)
            pending.extend(missing)
            continue
        inner = [sizes[callee] for callee in callees]
        sizes[key] = own + sum(n for n, _ in inner), known[key].ByteSize() + sum(size for _, size in inner)
        begun.discard(pending.pop())
    return sum(sizes[key][0] for key in first), sum(sizes[key][1] for key in first)


def _contents(nodes: Iterable[NodeProto], known: Container[_Key]) -> tuple[int, list[_Key]]:
    """Return how many nodes there are, those of bodies too, and the functions they call, once for each call."""
    count = 0
    callees: list[_Key] = []
    pending = list(nodes)
    while pending:
        node = pending.pop()
        count += 1
        key = (node.domain, node.op_type, node.overload)
        if key in known:
            callees.append(key)
        for body in bodies(node):
            pending.extend(body.node)
    return count, callees
