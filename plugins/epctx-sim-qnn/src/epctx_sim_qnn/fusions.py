"""Groups of nodes that QNN compiles to one operator of its own, as patterns; knows no
table of operators.

Exporters write Gelu out as Div, Erf, Add, Mul, Mul where the model's opset has no Gelu.
QNN has no Erf but has Gelu, so the real EP takes such a group whole. A pattern is an
expression: an operator with its operands, a number for a constant, ROOT for what the
whole group reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from epctx_sim_qnn import conditions

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView, NodeView

ROOT: Final = "root"

TOLERANCE: Final = 1e-3
"""By how much of itself a constant may miss its number: models in float16 round."""


class Operation(NamedTuple):
    """An operator of ONNX on two operands or one."""

    op_type: str
    operands: tuple[Expression, ...]


Expression: TypeAlias = "Operation | float | str"


def _make_operation(op_type: str, *operands: Expression) -> Operation:
    return Operation(op_type, operands)


def _make_gelus(erf: Operation) -> Iterator[Operation]:
    """Yield the ways in which exporters and optimisers write
    `root * 0.5 * (1 + erf)`.
    """
    grown = _make_operation("Add", erf, 1.0)
    yield _make_operation("Mul", _make_operation("Mul", ROOT, 0.5), grown)
    yield _make_operation("Mul", _make_operation("Mul", ROOT, grown), 0.5)
    yield _make_operation("Mul", ROOT, _make_operation("Mul", grown, 0.5))
    yield _make_operation(
        "Mul", ROOT, _make_operation("Add", _make_operation("Mul", erf, 0.5), 0.5)
    )


PATTERNS: Final[Mapping[str, tuple[Operation, ...]]] = {
    "Gelu": (
        *_make_gelus(
            _make_operation("Erf", _make_operation("Div", ROOT, math.sqrt(2)))
        ),
        *_make_gelus(
            _make_operation("Erf", _make_operation("Mul", ROOT, math.sqrt(0.5)))
        ),
    )
}
"""The operator that a group becomes, to what it may be made of."""

_KEY: Final = "Erf"
"""Every pattern has one, and no graph many that are in none: the search starts
there.
"""

_LONGEST_WAY: Final = 3
_ANY_ORDER: Final = frozenset({"Add", "Mul"})


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """A group that QNN takes as one operator.

    Attributes:
        op_type: what it becomes.
        nodes: its nodes in the graph's order.
        root: the value that it reads, besides constants.
        result: the value that it gives; no other value of the group is read elsewhere.
    """

    op_type: str
    nodes: tuple[NodeView, ...]
    root: str
    result: str


def find_fusions(graph: GraphView) -> list[Fusion]:
    """Return the groups among the nodes that nobody has taken; no node is in two."""
    keys = [node for node in graph.nodes if node.op_type == _KEY and not node.domain]
    if not keys:
        return []
    free = frozenset(node.index for node in graph.nodes)
    results = frozenset(value.name for value in graph.outputs)
    firsts = (next(_find_around(graph, node, results), None) for node in keys)
    return [
        f
        for f in firsts
        if f is not None and free.issuperset(member.index for member in f.nodes)
    ]


def _find_around(
    graph: GraphView, node: NodeView, results: frozenset[str]
) -> Iterator[Fusion]:
    """Yield the closed groups that hold a node, from the nearest result on."""
    for _ in range(_LONGEST_WAY):
        readers = graph.consumers(node.outputs[0])
        if len(readers) != 1 or len(readers[0].outputs) != 1:
            return
        node = readers[0]
        for op_type, patterns in PATTERNS.items():
            for pattern in patterns:
                match = _Match(graph)
                if match.fits(pattern, node.outputs[0]) and match.is_closed(
                    node, results
                ):
                    yield match.fusion(op_type, node)


@dataclass
class _Match:
    """One attempt to see a pattern in a graph."""

    graph: GraphView
    nodes: dict[int, NodeView] = field(default_factory=dict)
    root: str = ""

    def fits(self, expression: Expression, name: str) -> bool:
        """Return whether a value is an expression; what fits is kept."""
        if expression is ROOT:
            self.root = self.root or name
            return name == self.root
        if isinstance(expression, Operation):
            return self._is_operation(expression, name)
        return conditions.is_number(self.graph, name, float(expression), TOLERANCE)

    def _is_operation(self, expression: Operation, name: str) -> bool:
        node = self.graph.producer(name)
        if node is None or node.domain or node.op_type != expression.op_type:
            return False
        orders = (
            permutations(node.inputs) if node.op_type in _ANY_ORDER else (node.inputs,)
        )
        before = dict(self.nodes), self.root
        for names in orders:
            if len(names) == len(expression.operands) and all(
                map(self.fits, expression.operands, names)
            ):
                self.nodes[node.index] = node
                return True
            self.nodes = dict(before[0])
            self.root = before[1]
        return False

    def is_closed(self, last: NodeView, results: frozenset[str]) -> bool:
        """Return whether only the last node's result is read outside, and it has the
        root's type.
        """
        inner = [node.outputs[0] for node in self.nodes.values() if node != last]
        readers = (
            reader.index for name in inner for reader in self.graph.consumers(name)
        )
        return (
            results.isdisjoint(inner)
            and self.nodes.keys() >= set(readers)
            # A constant of a higher rank would widen what it is multiplied with.
            and self.graph.value(self.root).type
            == self.graph.value(last.outputs[0]).type
        )

    def fusion(self, op_type: str, last: NodeView) -> Fusion:
        """Return what was found."""
        nodes = tuple(self.nodes[index] for index in sorted(self.nodes))
        return Fusion(
            op_type=op_type, nodes=nodes, root=self.root, result=last.outputs[0]
        )
