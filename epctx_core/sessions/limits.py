"""What becomes of an EP's claims beyond convexity: quantized groups stay whole, partitions within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.sessions.assignment import GraphAssignment

Refuse = Callable[[str, Sequence[int]], None]


@dataclass(frozen=True, kw_only=True)
class PartitionLimits:
    """What a host allows each EP.

    Attributes:
        min_nodes: smaller partitions are left to the next EP.
        max_count: beyond so many the smallest are; None for no limit.
    """

    min_nodes: int = 1
    max_count: int | None = None


UNLIMITED = PartitionLimits()


def whole_units(
    graph: GraphIndex, units: Sequence[Sequence[int]], taken: Sequence[bool], refuse: Refuse
) -> Sequence[Sequence[int]]:
    """Return the sets that an EP names without those that hold a part of a quantized group only.

    Sets that hold a group together become one.

    Args:
        graph: where they are.
        units: disjoint sets of nodes; a set is given up whole, never split.
        taken: for each node whether it is somebody's already.
        refuse: records a set that is given up.
    """
    while True:
        bad = graph.quantized.incomplete((i for unit in units for i in unit), taken)
        if not bad:
            return _joined(graph, units)
        for unit in units:
            for reason in dict.fromkeys(bad[i] for i in unit if i in bad):
                refuse(reason, unit)
        units = [unit for unit in units if not any(i in bad for i in unit)]


def _joined(graph: GraphIndex, units: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Join sets until no unit of a quantized group lies in two of them."""
    if not graph.quantized.groups:
        return units
    place = {i: number for number, unit in enumerate(units) for i in unit}
    joined = list(range(len(units)))

    def root(number: int) -> int:
        while joined[number] != number:
            joined[number] = number = joined[joined[number]]
        return number

    for members in graph.quantized.units(place):
        first = root(place[members[0]])
        for i in members[1:]:
            joined[root(place[i])] = first
    merged: dict[int, list[int]] = {}
    for number, unit in enumerate(units):
        merged.setdefault(root(number), []).extend(unit)
    return [sorted(unit) for unit in merged.values()]


def keep_within(
    main: GraphAssignment,
    ep: str,
    limits: PartitionLimits,
    refuse: Callable[[str, GraphIndex, Sequence[int]], None],
) -> None:
    """Give up an EP's partitions that are too small or too many, in the main graph and in bodies."""
    if limits == UNLIMITED:
        return
    own = [(part, p) for part in _graphs(main) for p in part.partitions if p.ep == ep]
    # Of equal size the first in the model are kept: sorting is stable.
    own.sort(key=lambda item: -len(item[1].node_indices))
    dropped: dict[int, list[GraphPartition]] = {}
    for place, (part, partition) in enumerate(own):
        reason = _too_many_or_small(place, len(partition.node_indices), limits)
        if reason:
            refuse(reason, part.graph, partition.node_indices)
            dropped.setdefault(id(part), []).append(partition)
    if dropped:
        for part in _graphs(main):
            part.release(dropped.get(id(part), ()))
            _release_control_flow(part)


def _too_many_or_small(place: int, size: int, limits: PartitionLimits) -> str:
    nodes = f"a partition of {size} node{'s' * (size != 1)}"
    if size < limits.min_nodes:
        return f"{nodes} is smaller than ep.partition_min_nodes={limits.min_nodes}"
    if limits.max_count is not None and place >= limits.max_count:
        return f"{nodes} is not among the ep.partition_max_count={limits.max_count} largest"
    return ""


def _release_control_flow(part: GraphAssignment) -> None:
    """Give free the control-flow nodes in whose bodies nothing is anybody's any more."""
    for node in sorted(part.executed):
        if not any(any(body.taken) for body in part.bodies[node].values()):
            part.executed.discard(node)
            part.release_nodes([[node]])


def _graphs(part: GraphAssignment) -> Iterator[GraphAssignment]:
    """Yield a graph's bodies, at any depth, then the graph."""
    for bodies in part.bodies.values():
        for body in bodies.values():
            yield from _graphs(body)
    yield part
