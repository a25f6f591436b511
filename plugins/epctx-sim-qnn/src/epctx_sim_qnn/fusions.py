"""Groups of nodes that QNN compiles to one operator of its own; knows no table of
operators.

Exporters write Gelu out as Div, Erf, Add, Mul, Mul where the model's opset has no Gelu.
QNN has no Erf but has Gelu, so the real EP takes such a group whole. They multiply in
different orders: a group is a Gelu if it computes what Gelu does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from epctx_sim_sdk.values import constant, is_constant

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView, NodeView

_KEY: Final = "Erf"
"""Every group has one, and no graph many that are in none: the search starts there."""

_ARITHMETIC: Final[Mapping[str, Callable[..., np.ndarray]]] = {
    "Add": np.add,
    "Div": np.divide,
    "Mul": np.multiply,
    _KEY: np.vectorize(math.erf),
}
_SIZE: Final = 5
_LONGEST_WAY: Final = 3
"""Nodes from the Erf to the group's result."""

_SAMPLES: Final = np.array([-1.5, 0.25, 2.0])
_GELU: Final = _SAMPLES * [0.5 * (1 + math.erf(x / math.sqrt(2))) for x in _SAMPLES]
TOLERANCE: Final = 1e-3
"""By how much a result may miss Gelu's: models in float16 round their constants."""


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """A group that QNN takes as one Gelu.

    Attributes:
        nodes: its nodes in the graph's order.
        root: the value that it reads, besides constants.
        result: the value that it gives; no other value of the group is read elsewhere.
    """

    nodes: tuple[NodeView, ...]
    root: str
    result: str


def find_fusions(graph: GraphView) -> list[Fusion]:
    """Return the groups among the nodes that nobody has taken; no node is in two."""
    keys = [node for node in graph.nodes if node.op_type == _KEY and not node.domain]
    free = frozenset(node.index for node in graph.nodes)
    results = frozenset(value.name for value in graph.outputs)
    firsts = (_find_around(graph, node, results) for node in keys)
    return [
        f
        for f in firsts
        if f is not None and free.issuperset(member.index for member in f.nodes)
    ]


def _find_around(
    graph: GraphView, erf: NodeView, results: frozenset[str]
) -> Fusion | None:
    """Return the group that holds an Erf, from the nearest result on."""
    scaled = graph.producer(erf.inputs[0])
    operands = scaled.inputs if scaled is not None else ()
    roots = [name for name in operands if not is_constant(graph, name)]
    last = erf
    for _ in range(_LONGEST_WAY):
        readers = graph.consumers(last.outputs[0])
        if len(roots) != 1 or len(readers) != 1:
            return None
        last = readers[0]
        group = _collect_nodes(graph, last, roots[0])
        fusion = Fusion(nodes=group, root=roots[0], result=last.outputs[0])
        if _is_gelu(graph, fusion) and _is_closed(graph, fusion, results):
            return fusion
    return None


def _collect_nodes(graph: GraphView, last: NodeView, root: str) -> tuple[NodeView, ...]:
    """Return the nodes between a value and a result; none if a Gelu has no such."""
    group: dict[int, NodeView] = {}
    pending: list[NodeView | None] = [last]
    while pending:
        node = pending.pop()
        if node is None or node.domain or node.op_type not in _ARITHMETIC:
            return ()
        group[node.index] = node
        if len(group) > _SIZE:
            return ()
        pending += [
            graph.producer(name)
            for name in node.inputs
            if name != root and not is_constant(graph, name)
        ]
    return tuple(group[index] for index in sorted(group))


def _is_gelu(graph: GraphView, fusion: Fusion) -> bool:
    """Return whether a group gives some numbers what Gelu gives them."""
    values = {fusion.root: _SAMPLES}
    for node in fusion.nodes:
        operands = [
            values[name] if name in values else _read_number(graph, name)
            for name in node.inputs
        ]
        if any(operand is None for operand in operands):
            return False
        with np.errstate(all="ignore"):
            values[node.outputs[0]] = _ARITHMETIC[node.op_type](*operands)
    return np.allclose(values.get(fusion.result, np.nan), _GELU, rtol=0, atol=TOLERANCE)


def _read_number(graph: GraphView, name: str) -> float | None:
    """Return a constant that is one number."""
    # Of a weight the shape says whether it is worth reading.
    weight = graph.initializer(name)
    if weight is not None and weight.shape not in ((), (1,)):
        return None
    array = constant(graph, name)
    return float(array.item()) if array is not None and array.size == 1 else None


def _is_closed(graph: GraphView, fusion: Fusion, results: frozenset[str]) -> bool:
    """Return whether only the result is read outside, and it has the root's type."""
    inner = {node.outputs[0] for node in fusion.nodes} - {fusion.result}
    readers = {reader.index for name in inner for reader in graph.consumers(name)}
    return (
        results.isdisjoint(inner)
        and readers <= {node.index for node in fusion.nodes}
        # A constant of a higher rank would widen what it is multiplied with.
        and graph.value(fusion.root).type == graph.value(fusion.result).type
    )
