"""The cut as columns of JSON, one array for each fact of all nodes, boxes and values:
small when compressed, and read at once.

The page's scripts read them by these names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from epctx_report.cut import INPUT
from epctx_report.layering import lay_out

if TYPE_CHECKING:
    from epctx_report.cut import Cut, CutNode, Value

MOST_LAID_OUT_BY_THE_PAGE: Final = 400
"""Boxes of a graph, or nodes of a box, that the page places itself, by dagre."""
_IN_A_NODE = "\0"
"""Begin of the name of a value that begins with its node's name."""


def to_differences(numbers: Iterable[int]) -> dict[str, list[int]]:
    """Return a column of integers as the first one and the difference of each to the
    one before, which compresses better.
    """
    column = list(numbers)
    return {"d": [*column[:1], *(after - before for before, after in pairwise(column))]}


def make_columns(cut: Cut) -> dict[str, Any]:
    """Return `graphs`, `nodes`, `boxes`, `values`, `uses`, `results` and `inner`."""
    uses = [
        (number, reader)
        for number, value in enumerate(cut.values)
        for reader in value.readers
    ]
    return {
        "graphs": [{"name": graph.name, "owner": graph.owner} for graph in cut.graphs],
        "nodes": _describe_nodes(cut),
        "boxes": _describe_boxes(cut),
        "values": _describe_values(cut),
        "uses": {
            "value": to_differences(value for value, _ in uses),
            "node": to_differences(node for _, node in uses),
        },
        "results": [
            number for number, value in enumerate(cut.values) if value.is_result
        ],
        "inner": _place_inside(cut),
    }


def _describe_nodes(cut: Cut) -> dict[str, Any]:
    # A weight counts for the first node of a box that reads it, so that boxes have the
    # sum of their nodes.
    counted: set[tuple[int, tuple[int, str]]] = set()
    weight_bytes = []
    for node, box in zip(cut.nodes, cut.box_of, strict=True):
        new = {(box, weight) for weight in node.weights}.difference(counted)
        counted |= new
        weight_bytes.append(sum(cut.weight_bytes[weight] for _, weight in new))

    operators = {
        operator: number
        for number, operator in enumerate(
            dict.fromkeys(node.operator for node in cut.nodes)
        )
    }
    return {
        "name": [_clean(node.name) for node in cut.nodes],
        "ops": list(operators),
        "op": [operators[node.operator] for node in cut.nodes],
        "box": to_differences(cut.box_of),
        "weight_bytes": weight_bytes,
    }


def _describe_boxes(cut: Cut) -> dict[str, Any]:
    eps = {ep: number for number, ep in enumerate(cut.eps)}
    layers, xs = _place_boxes(cut)
    return {
        "graph": to_differences(box.graph for box in cut.boxes),
        "ep": [eps[box.ep] for box in cut.boxes],
        "partition": [
            -1 if box.partition is None else box.partition for box in cut.boxes
        ],
        "context": [int(box.is_context) for box in cut.boxes],
        "layer": layers,
        "x": xs,
    }


def _describe_values(cut: Cut) -> dict[str, Any]:
    types = {
        type_: number
        for number, type_ in enumerate(dict.fromkeys(v.type for v in cut.values))
    }
    return {
        "producer": to_differences(value.producer for value in cut.values),
        "name": [_shorten(value, cut.nodes) for value in cut.values],
        "types": [type_.text for type_ in types],
        "type_bytes": [type_.bytes for type_ in types],
        "type": [types[value.type] for value in cut.values],
    }


def _clean(name: str) -> str:
    """Return a name without the character that has a meaning in `_shorten`."""
    return name.replace(_IN_A_NODE, "\N{SYMBOL FOR NULL}")


def _shorten(value: Value, nodes: Sequence[CutNode]) -> str:
    """Return the name of a value without that of its node: exporters name it so."""
    if value.producer != INPUT:
        node = nodes[value.producer].name
        if node and value.name.startswith(node):
            return _IN_A_NODE + _clean(value.name[len(node) :])
    return _clean(value.name)


def _place_boxes(cut: Cut) -> tuple[list[int], list[int]] | tuple[None, None]:
    """Return layer and x of the boxes of large graphs, 0 for others; None if no graph
    is large.
    """
    held: list[list[int]] = [[] for _ in cut.graphs]
    for number, box in enumerate(cut.boxes):
        held[box.graph].append(number)
    large = [boxes for boxes in held if len(boxes) > MOST_LAID_OUT_BY_THE_PAGE]
    if not large:
        return None, None

    edges = {(cut.box_of[a], cut.box_of[b]) for a, b in cut.edges()}
    return _place(large, edges, len(cut.boxes))


def _place_inside(cut: Cut) -> dict[str, Any] | None:
    """Return node, layer and x of the nodes of large boxes; None if there is none."""
    large = [
        box.nodes for box in cut.boxes if len(box.nodes) > MOST_LAID_OUT_BY_THE_PAGE
    ]
    if not large:
        return None
    layers, xs = _place(large, {*cut.edges()}, len(cut.nodes))
    placed = [node for nodes in large for node in nodes]
    return {
        "node": to_differences(placed),
        "layer": to_differences(layers[node] for node in placed),
        "x": to_differences(xs[node] for node in placed),
    }


def _place(
    parts: Iterable[Sequence[int]], edges: Iterable[tuple[int, int]], count: int
) -> tuple[list[int], list[int]]:
    """Return layer and x of each of `count` things, those of each part by the edges
    within it, 0 for things in none.
    """
    index = [-1] * count
    part_of = [-1] * count
    numbered = list(parts)
    for number, part in enumerate(numbered):
        for position, thing in enumerate(part):
            index[thing] = position
            part_of[thing] = number
    inside: list[list[tuple[int, int]]] = [[] for _ in numbered]
    for source, target in edges:
        if part_of[source] == part_of[target] != -1:
            inside[part_of[source]].append((index[source], index[target]))

    layers, xs = [0] * count, [0] * count
    for part, own in zip(numbered, inside, strict=True):
        layering = lay_out(len(part), own)
        for thing, layer, x in zip(part, layering.layers, layering.xs, strict=True):
            layers[thing] = layer
            xs[thing] = x
    return layers, xs
