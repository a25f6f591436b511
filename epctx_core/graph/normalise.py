"""Models that ONNX's checker refuses and onnxruntime takes: brought into the form that ONNX asks for, in place.

Nodes in any order, graphs without a name, IR versions before 3, and functions written for other operator
versions than the model's. All later stages then see valid models only.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import onnx

from epctx_core.errors import InvalidGraph
from epctx_core.graph.bodies import all_graphs, bodies, given_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto

_log = logging.getLogger("epctx.graph")
_FREE_INITIALIZERS = 4
"""The IR version from which an initializer need not be an input, and an input with one can be overridden."""


def normalise(proto: ModelProto) -> None:
    """Bring a model into a form that the ONNX checker takes, where only that is wrong with it.

    Raises:
        InvalidGraph: nodes read each other's results in a circle.
    """
    for path, graph in all_graphs(proto.graph):
        graph.name = graph.name or ("body" if path else "main_graph")
    drop_initializer_inputs(proto)
    read_with_versions(proto.functions, proto.opset_import)
    for function in proto.functions:
        _sort(function, set(function.input))
    _sort(proto.graph, set(given_names(proto.graph)))


def drop_initializer_inputs(model: ModelProto) -> None:
    """Make an old model, in which every initializer stands among the inputs, one of IR version 4."""
    if model.ir_version >= _FREE_INITIALIZERS:
        return
    constants = {t.name for t in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = _FREE_INITIALIZERS


def read_with_versions(functions: Iterable[FunctionProto], imports: Iterable[OperatorSetIdProto]) -> None:
    """Have functions import the model's operator versions, with which onnxruntime reads them whatever they import.

    Args:
        functions: changed in place.
        imports: the model's.
    """
    versions = {_spelled(opset.domain): opset.version for opset in imports}
    for function in functions:
        changed = {
            domain: own
            for opset in function.opset_import
            if (own := opset.version) != versions.get(domain := _spelled(opset.domain), own)
        }
        _tell_other_definitions(function, changed, versions)
        for opset in function.opset_import:
            opset.version = versions.get(_spelled(opset.domain), opset.version)


def _tell_other_definitions(
    function: FunctionProto, changed: Mapping[str, int], versions: Mapping[str, int]
) -> None:
    """Warn of a function's operators that are others in the version that it is read with.

    Args:
        changed: the versions that it imports, by domain, where the model has another.
        versions: the model's.
    """
    others: dict[str, set[str]] = {}
    for node in function.node if changed else ():
        domain = _spelled(node.domain)
        if domain in changed and _since(node, changed[domain]) != _since(node, versions[domain]):
            others.setdefault(domain, set()).add(node.op_type)
    for domain, operators in others.items():
        _log.warning(
            "the function %r is written for version %d of %s and read, as by onnxruntime, with the model's "
            "version %d, which has another definition of %s.",
            function.name, changed[domain], domain or "ai.onnx", versions[domain], ", ".join(sorted(operators)),
        )  # fmt: skip


def _spelled(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _since(node: NodeProto, version: int) -> int:
    """Return the version of a node's operator that an import gives; 0 for one that onnx does not know."""
    try:
        return int(onnx.defs.get_schema(node.op_type, version, _spelled(node.domain)).since_version)
    except (onnx.defs.SchemaError, TypeError):
        return 0


def _sort(graph: GraphProto | FunctionProto, given: set[str]) -> dict[str, None]:
    """Put nodes behind those whose results they read, as near to their order as can be; return what is read outside.

    Args:
        graph: a graph, whose bodies are sorted first, or a function.
        given: the names that it has without a node.
    """
    nodes = graph.node
    producer: dict[str, int] = {}
    reads: list[dict[str, None]] = []
    for place, node in enumerate(nodes):
        read = dict.fromkeys(node.input)
        for body in bodies(node):
            read |= _sort(body, set(given_names(body)))
        reads.append(read)
        for name in filter(None, node.output):
            producer.setdefault(name, place)
    needs = [[producer[name] for name in read if name in producer and name not in given] for read in reads]
    order = _order(nodes, needs)
    if order != list(range(len(order))):
        place_of = {node: place for place, node in enumerate(order)}
        # The keys are asked for in the order of the nodes.
        places = iter([place_of[node] for node in range(len(order))])
        nodes.sort(key=lambda _: next(places))
    outside = {name: None for read in reads for name in read}
    if isinstance(graph, onnx.GraphProto):
        outside |= dict.fromkeys(value.name for value in graph.output)
    return {name: None for name in outside if name and name not in producer and name not in given}


def _order(nodes: Sequence[NodeProto], needs: Sequence[Sequence[int]]) -> list[int]:
    """Return the nodes' places, each behind those that it needs; a graph in order stays as it is."""
    waiting, begun, done = range(3)
    state = bytearray(len(needs))
    order: list[int] = []
    for start in range(len(needs)):
        stack = [start] if state[start] == waiting else []
        while stack:
            place = stack[-1]
            if state[place] == done:
                stack.pop()
                continue
            missing = [need for need in needs[place] if state[need] != done]
            if not missing:
                state[place] = done
                order.append(stack.pop())
            elif state[place] == begun:
                node = nodes[place]
                raise InvalidGraph(
                    f"node {node.name!r} ({node.op_type}) reads what is computed from its own result: the graph has a "
                    "cycle.",
                    node=node.name,
                    hint="Export the model again; only Loop and Scan carry values back.",
                )
            else:
                state[place] = begun
                stack.extend(reversed(missing))
    return order
