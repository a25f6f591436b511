"""Boxes of a cut: nodes that run together, grouped so that no path leaves a group and
returns.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from epctx_report.cut import SESSION, Box, CutNode, Edge


def make_boxes(
    nodes: Sequence[CutNode], edges: Iterable[Edge]
) -> tuple[list[Box], list[int]]:
    """Return the boxes, and each node's.

    Nodes outside partitions are grouped so that no path leaves a group and returns:
    connected ones of one EP and one *phase*. The phase counts the changes between
    partitions, and groups of different EPs, on the longest path to a node: along an
    edge within a group it stays, and along any other edge it grows.
    """
    # A unit is a partition, or a node in none.
    units: list[int] = []
    unit_of_partition: dict[int, int] = {}
    members: list[int] = []
    for number, node in enumerate(nodes):
        unit = len(members)
        if node.partition is not None:
            unit = unit_of_partition.setdefault(node.partition, unit)
        if unit == len(members):
            members.append(number)
        units.append(unit)
    # The page may join nodes that no EP compiles.
    joined_by = [_find_group_name(nodes[member]) for member in members]

    between = {
        (units[source], units[target])
        for source, target in edges
        if units[source] != units[target]
    }
    joinable = {
        (a, b) for a, b in between if joined_by[a] and joined_by[a] == joined_by[b]
    }
    phases = _find_phases(len(members), between, joinable)
    group = list(range(len(members)))
    for a, b in joinable:
        if phases[a] == phases[b]:
            group[_find_root(group, a)] = _find_root(group, b)

    numbers: dict[int, int] = {}
    box_of = [
        numbers.setdefault(_find_root(group, unit), len(numbers)) for unit in units
    ]
    held: list[list[int]] = [[] for _ in numbers]
    for number, box in enumerate(box_of):
        held[box].append(number)
    boxes = [
        Box(
            graph=nodes[inside[0]].graph,
            ep=nodes[inside[0]].ep,
            partition=nodes[inside[0]].partition,
            is_context=nodes[inside[0]].is_context,
            nodes=inside,
        )
        for inside in held
    ]
    return boxes, box_of


def _find_group_name(node: CutNode) -> str | None:
    """Return the name that nodes of one group share; None for a node that is alone."""
    if node.is_context or node.partition is not None or node.ep == SESSION:
        return None
    return node.ep


def _find_phases(
    count: int, edges: Iterable[Edge], joinable: Container[Edge]
) -> list[int]:
    """Return the phase of each unit; see `_make_boxes`."""
    after: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for source, target in edges:
        after[source].append(target)
        missing[target] += 1

    phases = [0] * count
    ready = [unit for unit in range(count) if not missing[unit]]
    for unit in ready:
        for target in after[unit]:
            phase = phases[unit] + ((unit, target) not in joinable)
            phases[target] = max(phases[target], phase)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    return phases


def _find_root(group: list[int], unit: int) -> int:
    """Return the representative of a unit's group, and shorten the path to it."""
    while group[unit] != unit:
        group[unit] = group[group[unit]]
        unit = group[unit]
    return unit
