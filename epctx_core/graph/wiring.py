"""How the nodes of a piece are wired, in numbers instead of names: what makes pieces of one graph equal.

Equal pieces are compiled, digested and prepared once, so this is made for every piece and has to be cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.graph.index import GraphIndex

_OMITTED = -1
_SPECIAL = -2
"""The kind of every node with attributes: two of those may differ in more than their wiring."""


class Wiring(NamedTuple):
    """A piece in numbers.

    Attributes:
        entering: the names that it reads and does not make, in order of first use.
        numbers: each of its names' number, by first appearance; an omitted one is -1.
        form: for each node its kind, the numbers that it reads and those that it makes. A kind says how
            many there are of each, so that forms are equal only where pieces are.
    """

    entering: list[str]
    numbers: dict[str, int]
    form: list[int]


def wire(graph: GraphIndex, nodes: Sequence[int]) -> Wiring:
    """Number the names of some nodes, given in topological order."""
    kinds, inputs, outputs = graph.kinds, graph.inputs, graph.outputs
    numbers = {"": _OMITTED}
    entering: list[str] = []
    form: list[int] = []
    for i in nodes:
        form.append(kinds[i])
        for name in inputs[i]:
            if name not in numbers:
                numbers[name] = len(numbers)
                entering.append(name)
            form.append(numbers[name])
        for name in outputs[i]:
            if name:
                numbers[name] = len(numbers)
            form.append(numbers[name])
    return Wiring(entering, numbers, form)


def is_plain(form: Sequence[int]) -> bool:
    """Whether a form says everything that its nodes do."""
    return _SPECIAL not in form


def node_kinds(graph: GraphIndex) -> list[int]:
    """Return for each node a number for its operator and how many values it reads and makes."""
    if graph.functions:
        # What a function does, its call does not say.
        return [_SPECIAL] * len(graph.nodes)
    places = zip(graph.domains, graph.op_types, map(len, graph.inputs), map(len, graph.outputs), strict=True)
    numbers: dict[tuple[str, str, int, int], int] = {}
    kinds = [numbers.setdefault(place, len(numbers)) for place in places]
    some = {operator for operator in graph.operators if _may_have_attributes(graph, *operator)}
    if some:
        for i, operator in enumerate(zip(graph.domains, graph.op_types, strict=True)):
            if operator in some and graph.nodes[i].attribute:
                kinds[i] = _SPECIAL
    return kinds


def _may_have_attributes(graph: GraphIndex, domain: str, op_type: str) -> bool:
    """Whether an operator can have attributes; cheaper than to look at those of every node."""
    domain = "" if domain == "ai.onnx" else domain
    try:
        schema = onnx.defs.get_schema(op_type, graph.opset_imports.get(domain, 1), domain)
    except (onnx.defs.SchemaError, TypeError):
        return True
    return bool(schema.attributes)
