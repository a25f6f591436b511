"""Which operators a context model has to describe: those of nodes that stay, and that no ONNX schema describes."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from epctx_core.graph.view import Node
from epctx_core.kernels import described

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epctx_core.plugin import OperatorTypes
    from epctx_core.sessions.assignment import Assignment, GraphAssignment


def staying_operators(assignment: Assignment) -> Iterator[OperatorTypes]:
    """Yield, for each operator outside of partitions, what EPs or the model's own metadata say of it.

    What an EP says comes before what the model says, and EPs stand in order of priority.
    """
    tables = [*(matcher.own for matcher in assignment.matchers.values()), assignment.carried]
    if not any(tables):
        return
    nodes = list(_first_of_each_operator(assignment.main))
    for operators in tables:
        yield from filter(None, (described(operators, node) for node in nodes))


def _first_of_each_operator(main: GraphAssignment) -> Iterator[Node]:
    seen: set[tuple[str, str]] = set()
    for part, index in _staying(main):
        node = Node(part.graph, index)
        operator = (node.domain, node.op_type)
        if operator not in seen:
            seen.add(operator)
            yield node


def _staying(part: GraphAssignment) -> Iterator[tuple[GraphAssignment, int]]:
    """Yield the nodes outside of partitions, at any depth."""
    compiled = set(chain.from_iterable(partition.node_indices for partition in part.partitions))
    for index in range(len(part.graph.nodes)):
        if index not in compiled:
            yield part, index
            for body in part.bodies.get(index, {}).values():
                yield from _staying(body)
