"""Who takes which node: asks each EP in order of priority and makes partitions of what it claims.

Claims are merged into convex, maximal partitions; a set that an EP names is never split. What cannot
be a partition is left to the next EP, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epctx_core.context.node import BOUNDARY_TYPES
from epctx_core.graph.partition import CyclicGroupsError, Partitioner
from epctx_core.graph.slice import GraphSlice
from epctx_core.graph.subgraph import GraphPartition
from epctx_core.kernels import RegistryLookup
from epctx_core.plugin import ComputeCapability, KernelDef, Refusal
from epctx_core.registry.guard import contract_broken

if TYPE_CHECKING:
    from epctx_core.errors import PluginError
    from epctx_core.graph.index import GraphIndex
    from epctx_core.registry.instances import ProviderInstances


@dataclass(frozen=True, kw_only=True)
class RefusalRecord:
    """Nodes that an EP did not take, and why."""

    ep: str
    reason: str
    nodes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class KernelNode:
    """A node that an EP runs by one of its kernels."""

    ep: str
    node: int
    kernel: KernelDef


@dataclass(kw_only=True)
class Assignment:
    """The outcome.

    Attributes:
        partitions: in the order of their first nodes.
        kernel_nodes: single nodes run by EPs' kernels.
        refusals: in the order in which they were given.
        partitioner: knows what was taken.
    """

    partitioner: Partitioner
    partitions: list[GraphPartition] = field(default_factory=list)
    kernel_nodes: list[KernelNode] = field(default_factory=list)
    refusals: list[RefusalRecord] = field(default_factory=list)
    taken: list[bool]

    def left_over(self) -> list[int]:
        """Return the nodes that no EP took."""
        return [i for i, taken in enumerate(self.taken) if not taken]

    def of(self, ep: str) -> list[GraphPartition]:
        """Return one EP's partitions."""
        return [p for p in self.partitions if p.ep == ep]


def assign(
    graph: GraphIndex,
    instances: ProviderInstances,
    eps: Sequence[str],
    *,
    reserved: Sequence[int] = (),
    prefix: str = "",
) -> Assignment:
    """Ask EPs for their claims and make partitions of them.

    Args:
        graph: the main graph.
        instances: the live EPs.
        eps: the EP types to ask, in order of priority.
        reserved: nodes that are nobody's to claim (existing EPContext nodes).
        prefix: put before every partition's name.

    Raises:
        PluginError: an EP's answer breaks the contract.
    """
    assignment = Assignment(partitioner=Partitioner(graph.predecessors), taken=[False] * len(graph.nodes))
    _take(assignment, [[node] for node in reserved])
    for ep in eps:
        _ask(graph, instances, ep, assignment)
    assignment.partitions.sort(key=lambda p: p.node_indices[0])
    for number, partition in enumerate(assignment.partitions):
        partition.prefix, partition.number = prefix, number
    return assignment


def _take(assignment: Assignment, groups: Sequence[Sequence[int]]) -> None:
    assignment.partitioner.take(groups)
    for group in groups:
        for node in group:
            assignment.taken[node] = True


def _ask(graph: GraphIndex, instances: ProviderInstances, ep: str, assignment: Assignment) -> None:
    view = GraphSlice(graph, assignment.partitioner, assignment.taken)
    registry = (
        instances.call(ep, "get_kernel_registry") if instances.implements(ep, "get_kernel_registry") else None
    )
    lookup = RegistryLookup(registry, graph.types)
    answer = instances.call(ep, "get_capability", graph=view, kernels=lookup)
    claims = _Claims(graph, instances, ep, assignment.taken)
    for item in answer:
        claims.add(item)
    for keep in (False, True):
        partitions = _partitions(graph, assignment, claims, view, keep=keep)
        _take(assignment, [partition.node_indices for partition in partitions])
        assignment.partitions.extend(partitions)
    for index in claims.single:
        kernel = lookup.lookup(view.node(index))
        if kernel is None:
            raise claims.broken(
                f"claims {claims.describe(index)} with fuse=False, but none of its kernels matches it"
            )
        assignment.kernel_nodes.append(KernelNode(ep=ep, node=index, kernel=kernel))
    _take(assignment, [[index] for index in claims.single])
    assignment.refusals.extend(claims.refusals)


class _Claims:
    """One EP's answer, checked."""

    def __init__(
        self, graph: GraphIndex, instances: ProviderInstances, ep: str, taken: Sequence[bool]
    ) -> None:
        self.ep = ep
        self.fused: dict[bool, list[list[int]]] = {False: [], True: []}
        self.single: list[int] = []
        self.refusals: list[RefusalRecord] = []
        self._graph = graph
        self._record = instances.record(ep)
        self._claimed = list(taken)

    def add(self, item: Any) -> None:
        """Check one item of the answer and file it."""
        if isinstance(item, Refusal):
            self.refuse(item.reason, self._indices(item.nodes))
        elif isinstance(item, ComputeCapability):
            nodes = self._claim(item.nodes)
            if item.fuse:
                self.fused[item.keep_initializers].append(nodes)
            else:
                self.single.extend(nodes)
        else:
            raise self.broken(f"gave a {type(item).__name__} instead of a ComputeCapability or a Refusal")

    def refuse(self, reason: str, nodes: Iterable[int]) -> None:
        """Record nodes that are left to the next EP."""
        self.refusals.append(RefusalRecord(ep=self.ep, reason=reason, nodes=tuple(nodes)))

    def describe(self, index: int) -> str:
        """Return how messages call a node."""
        node = self._graph.nodes[index]
        return f"node {node.name!r} ({node.op_type})"

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
        try:
            indices = [n if isinstance(n, int) else n.index for n in nodes]
        except (TypeError, AttributeError):
            raise self.broken("names something else than nodes of the graph") from None
        for index in indices:
            if not isinstance(index, int) or not 0 <= index < len(self._claimed):
                raise self.broken(f"names node {index!r}, which the graph does not have")
        return indices


def _partitions(
    graph: GraphIndex, assignment: Assignment, claims: _Claims, view: GraphSlice, *, keep: bool
) -> list[GraphPartition]:
    """Make partitions of an EP's units, without those that would put a type on the boundary that EPContext can't carry.

    Leaving one out makes new boundaries, so this repeats until nothing changes; each round drops a unit.
    """
    units = claims.fused[keep]
    # What the view grouped needs no second look.
    groups = units if sorted(units) == list(view.grouped) else None
    while True:
        if groups is None:
            groups = _grouped(assignment, claims, units)
        partitions = [GraphPartition(graph, g, ep=claims.ep, keep_initializers=keep) for g in groups]
        bad = _untransportable(partitions)
        if not bad:
            return partitions
        for unit in units:
            for reason in dict.fromkeys(bad[node] for node in unit if node in bad):
                claims.refuse(reason, unit)
        units = [unit for unit in units if not any(node in bad for node in unit)]
        groups = None


def _grouped(assignment: Assignment, claims: _Claims, units: list[list[int]]) -> list[list[int]]:
    try:
        return assignment.partitioner.group(units)
    except CyclicGroupsError as error:
        nodes = ", ".join(claims.describe(units[g][0]) for g in error.groups[:3])
        raise claims.broken(f"claims sets that enclose nodes outside of them (at {nodes})") from None


def _untransportable(partitions: Sequence[GraphPartition]) -> dict[int, str]:
    """Return the nodes at a boundary whose values an EPContext node cannot have, with the reason."""
    bad: dict[int, str] = {}
    for partition in partitions:
        graph = partition.graph
        refused = {
            name: f"the boundary value {name!r} is {graph.types.get(name)}, which an EPContext node cannot carry"
            for name in (*partition.input_names, *partition.output_names)
            if graph.types.get(name).elem_type not in BOUNDARY_TYPES
        }
        if refused:
            for node in partition.node_indices:
                for name in (*graph.inputs[node], *graph.outputs[node]):
                    if name in refused:
                        bad[node] = refused[name]
    return bad
