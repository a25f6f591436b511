"""Forms that onnxruntime accepts and the ONNX checker refuses, brought into the one
that later stages expect.
"""

from __future__ import annotations

import logging
from collections.abc import (
    Iterable,
    Mapping,
    Sequence,
)
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush

import onnx
import onnx.inliner
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from epctx_core.errors import InvalidGraph
from epctx_core.graph.preconditions import find_schema
from epctx_core.graph.walks import (
    HIDDEN,
    ONNX_DOMAINS,
    OVERRIDABLE_SINCE,
    copy_message,
    find_used_functions,
    iter_subgraphs,
    keep_messages,
    list_given_names,
    list_shaped_types,
    read_opset_imports,
    shorten_domain,
    walk_graphs,
    walk_nodes,
)

_log = logging.getLogger("epctx.graph")


def normalise(proto: ModelProto) -> None:
    """Bring a model that onnxruntime accepts into the form that the ONNX checker
    accepts.

    Raises:
        InvalidGraph: nodes read each other's results in a circle.
    """
    for path, graph in walk_graphs(proto.graph):
        graph.name = graph.name or ("body" if path else "main_graph")
    if proto.ir_version < OVERRIDABLE_SINCE:
        constants = {t.name for t in proto.graph.initializer}
        keep_messages(proto.graph.input, lambda value: value.name not in constants)
        proto.ir_version = OVERRIDABLE_SINCE
    adopt_versions(proto.functions, read_opset_imports(proto))
    for function in proto.functions:
        _sort(function, set(function.input))
    _sort(proto.graph, set(list_given_names(proto.graph)))


def adopt_versions(
    functions: Iterable[FunctionProto], versions: Mapping[str, int]
) -> None:
    """Make functions import the model's operator versions, as onnxruntime reads them.

    A warning names a function's operators that have another definition there.

    Args:
        functions: changed in place.
        versions: the model's, by domain.
    """
    for function in functions:
        imports = read_opset_imports(function)
        for opset in function.opset_import:
            opset.version = versions.get(shorten_domain(opset.domain), opset.version)
        others: dict[str, set[str]] = {}
        for node in function.node if imports != read_opset_imports(function) else ():
            domain = shorten_domain(node.domain)
            before = imports.get(domain, 0)
            after = versions.get(domain, before)
            if before and _find_since_version(node, before) != _find_since_version(
                node, after
            ):
                others.setdefault(domain, set()).add(node.op_type)
        for domain, operators in others.items():
            _log.warning(
                (
                    "the function %r is written for version %d of %s and read, as by "
                    "onnxruntime, with the model's version %d, which has another "
                    "definition of %s."
                ),
                function.name,
                imports[domain],
                domain or "ai.onnx",
                versions[domain],
                ", ".join(sorted(operators)),
            )


def _find_since_version(node: NodeProto, version: int) -> int:
    """Return the version of a node's operator that an import gives; 0 for one that onnx
    does not know.
    """
    schema = find_schema(node.domain, node.op_type, version)
    return 0 if schema is None else int(schema.since_version)


def _sort(graph: GraphProto | FunctionProto, defined: set[str]) -> dict[str, None]:
    """Sort nodes behind those whose results they read, keeping their order where
    possible; return the outer names read.

    Args:
        graph: a graph (its subgraphs are sorted first) or a function.
        defined: names that it defines without a node.
    """
    nodes = graph.node
    producer: dict[str, int] = {}
    reads: list[dict[str, None]] = []
    for index, node in enumerate(nodes):
        read = dict.fromkeys(node.input)
        for subgraph in iter_subgraphs(node):
            read |= _sort(subgraph, set(list_given_names(subgraph)))
        reads.append(read)
        for name in filter(None, node.output):
            producer.setdefault(name, index)

    needs = [
        [producer[name] for name in read if name in producer and name not in defined]
        for read in reads
    ]
    order = _order_nodes(nodes, needs)
    if order != list(range(len(order))):
        in_order = [copy_message(nodes[index]) for index in order]
        del nodes[:]
        nodes.extend(in_order)
    outside = {name: None for read in reads for name in read}
    if isinstance(graph, onnx.GraphProto):
        outside |= dict.fromkeys(value.name for value in graph.output)
    return {
        name: None
        for name in outside
        if name and name not in producer and name not in defined
    }


def _order_nodes(
    nodes: Sequence[NodeProto], needs: Sequence[Sequence[int]]
) -> list[int]:
    """Return the nodes' indices, each behind those that it needs; a sorted graph keeps
    its order.
    """
    sorter = TopologicalSorter(dict(enumerate(needs)))
    try:
        sorter.prepare()
    except CycleError as error:
        node = nodes[error.args[1][0]]
        raise InvalidGraph(
            f"node {node.name!r} ({node.op_type}) reads what is computed from its own "
            "result: the graph has a cycle.",
            node=node.name,
            hint="Export the model again; only Loop and Scan carry values back.",
        ) from None

    order: list[int] = []
    ready = sorted(sorter.get_ready())
    while ready:
        order.append(heappop(ready))
        sorter.done(order[-1])
        for index in sorter.get_ready():
            heappush(ready, index)

    return order


def declare_open_types(proto: ModelProto) -> ModelProto:
    """Return a copy for the checker in which inputs and outputs have complete types."""
    probe: ModelProto = copy_message(proto)
    for value in probe.graph.output:
        if value.type.WhichOneof("value") is None:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for value in (*probe.graph.input, *probe.graph.output):
        for tensor in list_shaped_types(value.type):
            tensor.shape.SetInParent()
    return probe


def hide_unknown_operators(proto: ModelProto) -> frozenset[tuple[str, str, int]]:
    """Move operators that onnx does not have out of its domains, in place, so that its
    checker passes them over; return them by domain, name and version.

    Those of functions are looked up in the function's own versions; those of functions
    that nobody calls are not returned.
    """
    called = find_used_functions(proto.graph.node, proto.functions)
    names = {(function.domain, function.name, function.overload) for function in called}
    hidden = set()
    for owner in (proto, *proto.functions):
        versions = read_opset_imports(owner)
        body = owner.graph if isinstance(owner, ModelProto) else owner
        unknown = set()
        for node in walk_nodes(body.node):
            domain = shorten_domain(node.domain)
            operator = domain, node.op_type, versions.get(domain, 1)
            if domain in ONNX_DOMAINS and find_schema(*operator) is None:
                unknown.add(operator)
                node.domain = HIDDEN

        if unknown:
            owner.opset_import.add(domain=HIDDEN, version=1)
        if (
            isinstance(owner, ModelProto)
            or (owner.domain, owner.name, owner.overload) in names
        ):
            hidden |= unknown

    return frozenset(hidden)
