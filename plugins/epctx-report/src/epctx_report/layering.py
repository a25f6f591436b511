"""Positions of a graph too large for the page to lay out: a layer for each node, and an
`x` within the layer. Linear but for one sort of each layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Layering(NamedTuple):
    """Position of each node.

    Attributes:
        layers: from 0; every edge leads to a later layer.
        xs: from 0, different within a layer; 1 is the width of a node.
    """

    layers: list[int]
    xs: list[int]


def lay_out(count: int, edges: Iterable[tuple[int, int]]) -> Layering:
    """Return positions of `count` nodes with edges between them, each given once, which
    have no cycle.

    Nodes of one layer are ordered by the mean of their neighbours in the layers before,
    then after, and before again: the barycentre heuristic of layered graph drawing
    (Sugiyama, Tagawa and Toda, 1981).
    """
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        after[source].append(target)
        before[target].append(source)

    layers = _find_layers(before, after)
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for node, layer in enumerate(layers):
        rows[layer].append(node)

    xs = [0] * count
    for row in rows:
        for x, node in enumerate(row):
            xs[node] = x
    _order(rows, before, xs)
    _order(reversed(rows), after, xs)
    _order(rows, before, xs)

    left = min(xs, default=0)
    return Layering(layers, [x - left for x in xs])


def _find_layers(before: Sequence[list[int]], after: Sequence[list[int]]) -> list[int]:
    """Return the length of the longest path to each node; a node that nothing leads to
    is moved down to the first one that it leads to.
    """
    layers = [0] * len(before)
    missing = [len(sources) for sources in before]
    ready = [node for node, count in enumerate(missing) if not count]
    for node in ready:
        for target in after[node]:
            layers[target] = max(layers[target], layers[node] + 1)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)

    for node, targets in enumerate(after):
        if targets and not before[node]:
            layers[node] = min(layers[target] for target in targets) - 1
    return layers


def _order(
    rows: Iterable[list[int]], neighbours: Sequence[list[int]], xs: list[int]
) -> None:
    """Order each row by the mean `x` of its nodes' neighbours, and set their `x`."""
    for row in rows:
        means = {node: _average(xs, neighbours[node], xs[node]) for node in row}
        if len(row) == 1:
            xs[row[0]] = round(means[row[0]])
            continue
        row.sort(key=means.__getitem__)

        # From the left, no node further left than its mean; then all of them back by
        # the mean of what that cost.
        free = round(means[row[0]])
        for node in row:
            xs[node] = max(free, round(means[node]))
            free = xs[node] + 1
        excess = round(sum(xs[node] - means[node] for node in row) / len(row))
        for node in row:
            xs[node] -= excess


def _average(xs: Sequence[int], nodes: Sequence[int], default: float) -> float:
    """Return the mean `x` of nodes, the default if there are none."""
    if not nodes:
        return default
    if len(nodes) == 1:
        return xs[nodes[0]]
    return sum(xs[node] for node in nodes) / len(nodes)
