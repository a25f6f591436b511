"""Claims of an EP on a graph's nodes: checked, and kept within what the host and the EPContext operator allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from epctx_core.errors import concealed
from epctx_core.graph.view import Node
from epctx_core.plugin import ComputeCapability, Refusal
from epctx_core.registry.guard import blame, contract_broken, plain

if TYPE_CHECKING:
    from epctx_core.errors import PluginError
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.registry.instances import ProviderInstances
    from epctx_core.sessions.assignment import GraphAssignment


@dataclass(frozen=True, kw_only=True)
class RefusalRecord:
    """Nodes of a graph that an EP did not take, and why."""

    ep: str
    reason: str
    graph: GraphIndex
    nodes: tuple[int, ...]


class Claims:
    """One EP's answer, checked."""

    def __init__(
        self, graph: GraphIndex, instances: ProviderInstances, ep: str, taken: Sequence[bool]
    ) -> None:
        self.ep = ep
        self.fused: dict[bool, list[list[int]]] = {False: [], True: []}
        self.exact: list[tuple[list[int], ComputeCapability]] = []
        self.single: list[int] = []
        self.refusals: list[RefusalRecord] = []
        self._graph = graph
        self._record = instances.record(ep)
        self._claimed = list(taken)

    def add(self, item: ComputeCapability | Refusal) -> None:
        """Check one item of the answer and file it."""
        if isinstance(item, Refusal):
            reason: object = plain(item.reason)
            if type(reason) is not str:
                raise self.broken(
                    f"gave a {type(reason).__name__} instead of a text as the reason of a Refusal"
                )
            self.refuse(concealed(reason), self._indices(item.nodes))
        else:
            nodes = self._claim(item.nodes)
            if item.token is not None and not item.exact:
                raise self.broken(
                    f"claims a set at {self.describe(nodes[0])} with a token, but without exact=True"
                )
            if item.exact and not item.fuse:
                raise self.broken(f"claims {self.describe(nodes[0])} with fuse=False and exact=True")
            if item.exact:
                self.exact.append((nodes, item))
            elif item.fuse:
                self.fused[bool(item.keep_initializers)].append(nodes)
            else:
                self.single.extend(nodes)

    def refuse(self, reason: str, nodes: Iterable[int]) -> None:
        """Record nodes that are left to the next EP."""
        self.refusals.append(RefusalRecord(ep=self.ep, reason=reason, graph=self._graph, nodes=tuple(nodes)))

    def leave_out(self, reasons: Mapping[int, str]) -> None:
        """Record what the core left out of the groups that it made for the EP."""
        nodes: dict[str, list[int]] = {}
        for index, reason in reasons.items():
            if not self._claimed[index]:
                nodes.setdefault(reason, []).append(index)
        for reason, indices in nodes.items():
            self.refuse(reason, sorted(indices))

    def check_nothing_fused(self) -> None:
        """Raise PluginError if an EP without a compiler claims nodes to compile."""
        exact = (nodes for nodes, _ in self.exact)
        for nodes in (*self.fused[False], *self.fused[True], *exact):
            raise self.broken(f"claims {self.describe(nodes[0])} with fuse=True, but has no compile hook")

    def describe(self, index: int) -> str:
        """Return how messages call a node."""
        return f"node {self._graph.node_name(index)!r} ({self._graph.nodes[index].op_type})"

    def broken(self, what: str) -> PluginError:
        """Return the error for an answer that breaks the contract."""
        return contract_broken(self._record, "get_capability", what)

    def _claim(self, nodes: Any) -> list[int]:
        indices = self._indices(nodes)
        if not indices:
            raise self.broken("claims a set of no nodes")
        for index in indices:
            if self._claimed[index]:
                raise self.broken(f"claims {self.describe(index)} twice or takes it from another EP")
            self._claimed[index] = True
        return sorted(indices)

    def _indices(self, nodes: Any) -> list[int]:
        most = len(self._claimed)
        with blame(self._record, "get_capability"):  # whose iterator and items run
            try:
                nodes = list(islice(nodes, most + 1))
                own = [n.index for n in nodes if isinstance(n, Node) and n.is_in(self._graph)]
                numbers = (n if isinstance(n, int) else n.index for n in nodes)
                indices = own if len(own) == len(nodes) else [*map(int.__index__, numbers)]
            except (TypeError, AttributeError):
                raise self.broken("names something else than nodes of the graph") from None
        if len(nodes) > most:
            raise self.broken(f"names more nodes than the graph has, which are {most}")
        for node in nodes if indices is not own else ():
            if isinstance(node, Node) and not node.is_in(self._graph):
                raise self.broken(f"names node {node.name!r} ({node.op_type}), which is in another graph")
        for index in indices:
            if not isinstance(index, int) or not 0 <= index < len(self._claimed):
                raise self.broken(f"names node {index!r}, which the graph does not have")
        return indices


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
