"""Assignment of nodes to EPs: each is asked in order of priority, and what it claims becomes partitions.

Claims are merged into convex, maximal partitions, but for those that say `exact`; a set that an EP names is never
split. What cannot be a partition is left to the next EP, with the reason.

The bodies of control flow are graphs of their own. A node whose bodies hold an EP's work is nobody's to
claim: the session runs it. One without stays an ordinary node, which an EP or an engine takes whole.

Partitions are compiled by one call of each EP. `Stopwatch` has the seconds of these and all other stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from epctx_core.context.metadata import read_kernel_types
from epctx_core.context.node import BOUNDARY_TYPES
from epctx_core.graph.garbage import collection_paused, collection_resumed
from epctx_core.graph.partition import CyclicGroupsError, Partitioner
from epctx_core.graph.subgraph import GraphPartition, GraphSlice
from epctx_core.graph.view import Node
from epctx_core.kernels import KernelMatcher, RegistryLookup
from epctx_core.registry.guard import blame
from epctx_core.sessions.claims import Claims, PartitionLimits, RefusalRecord, keep_within, whole_units
from epctx_core.sessions.providers import check_compiled

if TYPE_CHECKING:
    from epctx_core.graph.bodies import BodyPath
    from epctx_core.graph.index import GraphIndex
    from epctx_core.plugin import CompiledPartition, KernelDef, OperatorTypes, Purpose
    from epctx_core.registry.instances import ProviderInstances
    from epctx_core.sessions.providers import ProviderSession
    from epctx_core.sessions.source import OpenModel

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class KernelNode:
    """A node that an EP runs by one of its kernels."""

    ep: str
    graph: GraphIndex
    node: int
    kernel: KernelDef


class GraphAssignment:
    """Who takes what in one graph.

    Attributes:
        graph: its index.
        partitioner: knows what was taken.
        taken: for each node whether it is somebody's already.
        bodies: control-flow node to its bodies by attribute.
        executed: the control-flow nodes whose bodies hold an EP's work: the session runs them itself.
        partitions, kernel_nodes: what EPs took of this graph, bodies not included.
    """

    def __init__(self, graph: GraphIndex, reserved: Mapping[BodyPath, Sequence[int]]) -> None:
        self.graph = graph
        self.partitioner = Partitioner(graph.predecessors)
        self.taken = [False] * len(graph.nodes)
        self.bodies = {
            node: {name: GraphAssignment(body, reserved) for name, body in bodies.items()}
            for node, bodies in graph.bodies.items()
        }
        self.executed: set[int] = set()
        self.partitions: list[GraphPartition] = []
        self.kernel_nodes: list[KernelNode] = []
        self.take([[node] for node in reserved.get(graph.path, ())])
        self.hold_control_flow()

    def take(self, groups: Sequence[Sequence[int]]) -> None:
        """Make groups of nodes somebody's."""
        self.partitioner.take(groups)
        for group in groups:
            for node in group:
                self.taken[node] = True

    def hold(self, partitions: Sequence[GraphPartition]) -> None:
        """Make partitions their EP's."""
        self.take([partition.node_indices for partition in partitions])
        self.partitions.extend(partitions)

    def release(self, partitions: Sequence[GraphPartition]) -> None:
        """Give partitions up again."""
        gone = {id(partition) for partition in partitions}
        self.partitions = [p for p in self.partitions if id(p) not in gone]
        self.release_nodes([p.node_indices for p in partitions])

    def release_nodes(self, groups: Sequence[Sequence[int]]) -> None:
        """Make groups that were taken free again."""
        self.partitioner.release(groups)
        for node in chain.from_iterable(groups):
            self.taken[node] = False

    def hold_control_flow(self) -> None:
        """Take the control-flow nodes whose bodies hold an EP's work: nobody can have them whole."""
        for node, bodies in self.bodies.items():
            if not self.taken[node] and any(any(body.taken) for body in bodies.values()):
                self.executed.add(node)
                self.take([[node]])

    def left_over(self) -> list[int]:
        """Return the nodes that nobody took."""
        return [i for i, taken in enumerate(self.taken) if not taken]

    def left_to_run(self) -> list[int]:
        """Return those of them that are to be run: what a Constant node gives is known."""
        return [i for i in self.left_over() if i not in self.graph.node_constants]

    def open_bodies(self) -> Iterator[tuple[int, GraphAssignment]]:
        """Yield the bodies of nodes that nobody took whole, each with its node."""
        for node, bodies in self.bodies.items():
            if not self.taken[node] or node in self.executed:
                for body in bodies.values():
                    yield node, body

    def executed_graphs(self) -> Iterator[GraphAssignment]:
        """Yield this graph, then the bodies that the session runs itself, at any depth."""
        yield self
        for node, bodies in self.bodies.items():
            for body in bodies.values() if node in self.executed else ():
                yield from body.executed_graphs()


@dataclass(kw_only=True)
class Assignment:
    """The outcome.

    Attributes:
        main: the main graph's, which holds those of the bodies.
        partitions: of all graphs, in the order of their first nodes; a body's stand where its node stands.
        refusals: in the order in which they were given.
        matchers: EP type to its kernels, in order of priority; EPs without kernels are not among them.
        carried: the operators that the model's metadata describes.
    """

    main: GraphAssignment
    matchers: dict[str, KernelMatcher] = field(default_factory=dict)
    carried: Sequence[OperatorTypes] = ()
    partitions: list[GraphPartition] = field(default_factory=list)
    refusals: list[RefusalRecord] = field(default_factory=list)

    @cached_property
    def graphs(self) -> list[GraphAssignment]:
        """The main graph and all bodies that the session runs itself."""
        return list(self.main.executed_graphs())

    def of(self, ep: str) -> list[GraphPartition]:
        """Return one EP's partitions."""
        return [p for p in self.partitions if p.ep == ep]


@collection_paused()
def assign_nodes(
    model: OpenModel, providers: ProviderSession, eps: Sequence[str], *, kernels_only: Collection[str] = ()
) -> Assignment:
    """Ask EPs for their claims and make partitions of them.

    Each EP is asked once for each graph, for bodies before the graph that holds them. Existing EPContext nodes are
    nobody's to claim.

    Args:
        model: what is assigned.
        providers: the live EPs.
        eps: those to ask, in order of priority.
        kernels_only: the EPs of which only claims with `fuse=False` count.

    Raises:
        PluginError: an EP's answer breaks the contract.
        InvalidGraph: the model's metadata about operators is damaged.
    """
    providers.cancel.raise_if_requested()
    reserved: dict[BodyPath, list[int]] = {}
    for record in model.context_nodes:
        reserved.setdefault(record.path, []).append(record.index)
    config, instances = providers.session.config(), providers.instances
    limits = PartitionLimits(min_nodes=config.partition_min_nodes, max_count=config.partition_max_count)
    carried = read_kernel_types(model.source.proto)
    assignment = Assignment(main=GraphAssignment(model.graph, reserved), carried=carried)
    for ep in eps:
        has_kernels = instances.implements(ep, "get_kernel_registry")
        registry = instances.call(ep, "get_kernel_registry") if has_kernels else None
        matcher = KernelMatcher(registry, carried)
        if registry is not None:
            assignment.matchers[ep] = matcher
        compiles = ep not in kernels_only
        turn = _Round(model.graph, instances, ep, matcher, assignment.refusals, compiles=compiles)
        turn.ask(assignment.main)
        keep_within(assignment.main, ep, limits, turn.refuse)
    for part in assignment.graphs:
        assignment.partitions += part.partitions
    assignment.partitions.sort(key=_place)
    # Nodes that are there already have the numbers before, if epctx wrote them.
    first = sum(map(len, reserved.values()))
    prefix = config.node_name_prefix
    for number, partition in enumerate(assignment.partitions, first):
        partition.prefix, partition.number = prefix, number
    return assignment


def _place(partition: GraphPartition) -> tuple[object, ...]:
    return (*partition.graph.place, partition.node_indices[0])


class _Round:
    """One EP's turn."""

    def __init__(
        self,
        root: GraphIndex,
        instances: ProviderInstances,
        ep: str,
        matcher: KernelMatcher,
        refusals: list[RefusalRecord],
        *,
        compiles: bool,
    ) -> None:
        self._root = root
        self._instances = instances
        self._ep = ep
        self._matcher = matcher
        self._compiles = compiles
        self._refusals = refusals

    def refuse(self, reason: str, graph: GraphIndex, nodes: Sequence[int]) -> None:
        """Record nodes that are left to the next EP."""
        self._refusals.append(RefusalRecord(ep=self._ep, reason=reason, graph=graph, nodes=tuple(nodes)))

    def ask(self, part: GraphAssignment, parent_node: Node | None = None) -> None:
        """Ask for a graph's bodies, then for the graph."""
        for node, body in part.open_bodies():
            self.ask(body, Node(part.graph, node))
        part.hold_control_flow()
        if part.graph.nodes:
            self._ask_graph(part, parent_node)

    def _ask_graph(self, part: GraphAssignment, parent_node: Node | None) -> None:
        view = GraphSlice(part.graph, part.partitioner, part.taken, parent_node, self._root)
        lookup = RegistryLookup(self._matcher, part.graph.types)
        answer = self._instances.call(self._ep, "get_capability", graph=view, kernels=lookup)
        claims = Claims(part.graph, self._instances, self._ep, part.taken)
        for item in answer:
            claims.add(item)
        claims.leave_out(view.left_out)
        if not self._instances.implements(self._ep, "compile"):
            claims.check_nothing_fused()
        if self._compiles:
            part.hold(_exact_partitions(part, claims))
            for keep in (False, True):
                part.hold(_partitions(part, claims, view, keep=keep))
        for index in claims.single:
            kernel = self._kernel(lookup, view.node(index), claims)
            part.kernel_nodes.append(KernelNode(ep=self._ep, graph=part.graph, node=index, kernel=kernel))
        part.take([[index] for index in claims.single])
        self._refusals.extend(claims.refusals)

    def _kernel(self, lookup: RegistryLookup, node: Node, claims: Claims) -> KernelDef:
        """Return the kernel of a node that the EP claims with `fuse=False`."""
        with blame(self._instances.record(self._ep), "get_kernel_registry"):
            kernel = lookup.lookup(node)
        if kernel is None:
            called = claims.describe(node.index)
            why = lookup.refusal(node) or "it has none of this operator"
            raise claims.broken(f"claims {called} with fuse=False, but none of its kernels fits ({why})")
        return kernel


def _exact_partitions(part: GraphAssignment, claims: Claims) -> list[GraphPartition]:
    """Return the sets that an EP names as partitions, without those that would have to shrink or grow."""
    _check_convex(part.partitioner.check, claims, [nodes for nodes, _ in claims.exact])
    partitions = []
    for nodes, item in claims.exact:
        partition = GraphPartition(part.graph, nodes, ep=claims.ep, keep_initializers=item.keep_initializers)
        partition.token = item.token
        bad = part.graph.quantized.incomplete(nodes, part.taken) or _untransportable([partition])
        for reason in dict.fromkeys(bad.values()):
            claims.refuse(
                f"{reason}; the EP takes the {len(nodes)} nodes of this set together or not at all", nodes
            )
        if not bad:
            partitions.append(partition)
    return partitions


def _partitions(
    part: GraphAssignment, claims: Claims, view: GraphSlice, *, keep: bool
) -> list[GraphPartition]:
    """Make partitions of an EP's units, without those that would put a type on the boundary that EPContext can't carry.

    Leaving one out makes new boundaries, so this repeats until nothing changes; each round drops a unit.
    """
    units: Sequence[Sequence[int]] = claims.fused[keep]
    groups: Sequence[Sequence[int]] | None = None
    if not claims.exact and sorted(claims.fused[keep]) == list(view.grouped):
        # What the view grouped needs no second look, and may be taken apart again.
        groups, units = units, view.units
    else:
        units = whole_units(part.graph, units, part.taken, claims.refuse)
    while True:
        if groups is None:
            groups = _check_convex(part.partitioner.group, claims, units)
        partitions = [GraphPartition(part.graph, g, ep=claims.ep, keep_initializers=keep) for g in groups]
        bad = _untransportable(partitions)
        if not bad:
            return partitions
        for unit in units:
            for reason in dict.fromkeys(bad[node] for node in unit if node in bad):
                claims.refuse(reason, unit)
        units = [unit for unit in units if not any(node in bad for node in unit)]
        units = whole_units(part.graph, units, part.taken, claims.refuse)
        groups = None


def _check_convex(
    act: Callable[[Sequence[Sequence[int]]], _T], claims: Claims, units: Sequence[Sequence[int]]
) -> _T:
    """Do something with an EP's sets; blame the EP for those that enclose other nodes."""
    try:
        return act(units)
    except CyclicGroupsError as error:
        nodes = ", ".join(claims.describe(units[g][0]) for g in error.groups[:3])
        raise claims.broken(f"claims sets that enclose nodes outside of them (at {nodes})") from None


def _untransportable(partitions: Sequence[GraphPartition]) -> dict[int, str]:
    """Return the nodes at a boundary whose values an EPContext node cannot have, with the reason."""
    bad: dict[int, str] = {}
    for partition in partitions:
        refused = {
            value.name: f"the boundary value {value.name!r} is {value.type}, which an EPContext node cannot carry"
            for value in chain(partition.inputs, partition.outputs)
            if value.type.elem_type not in BOUNDARY_TYPES
        }
        if refused:
            graph = partition.graph
            for node in partition.node_indices:
                for name in (*graph.inputs[node], *graph.outputs[node]):
                    if name in refused:
                        bad[node] = refused[name]
    return bad


@dataclass(kw_only=True)
class Stopwatch:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def compile_partitions(
    assignment: Assignment,
    providers: ProviderSession,
    purpose: Purpose,
    watch: Stopwatch,
) -> dict[GraphPartition, CompiledPartition]:
    """Have each EP compile its partitions; return what each became. Progress counts partitions.

    Raises:
        EPFail: an EP raised.
        PluginError: an EP gave back something else than one `CompiledPartition` for each partition.
        ModelLoadCanceled: the host asked to stop.
    """
    compiled: dict[GraphPartition, CompiledPartition] = {}
    with watch.stage("compile"):
        for ep in providers.choices:
            partitions = assignment.of(ep)
            if not partitions:
                continue
            providers.cancel.raise_if_requested()
            providers.progress("compile", len(compiled), len(assignment.partitions))
            with collection_resumed():
                result = providers.instances.call(ep, "compile", partitions=partitions)
            providers.keep(result)
            check_compiled(ep, "compile", result, partitions, providers, purpose)
            compiled.update(zip(partitions, result, strict=True))
            providers.progress("compile", len(compiled), len(assignment.partitions))
    providers.cancel.raise_if_requested()
    return compiled
