"""Assignment of nodes to EPs: each is asked in order of priority, and what it claims becomes partitions.

The bodies of control flow are graphs of their own. A node whose bodies hold an EP's work is nobody's to
claim: the session runs it. One without stays an ordinary node, which an EP or an engine takes whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from epctx_core.context.manifest import KERNEL_TYPES, get_metadata
from epctx_core.errors import Fail, ModelRequiresCompilation
from epctx_core.graph.garbage import collection_paused
from epctx_core.options.choices import CPU_EP

if TYPE_CHECKING:
    from epctx_core.engines.matching import KernelMatcher
    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.graph.index import GraphIndex, SubgraphPath
    from epctx_core.graph.partition import Partitioner
    from epctx_core.options import SessionConfig
    from epctx_core.plugin import KernelDef, OperatorTypes
    from epctx_core.sessions.claims import RefusalRecord
    from epctx_core.sessions.providers import ProviderSession
    from epctx_core.sessions.source import OpenModel


class GraphAssignment:
    """Who takes what in one graph.

    Attributes:
        graph: its index.
        taken: for each node whether it is somebody's already.
        bodies: control-flow node to its bodies by attribute.
        executed: the control-flow nodes whose bodies hold an EP's work: the session runs them itself.
        partitions: what EPs compile of this graph, bodies not included.
        kernel_nodes: by index, the nodes that an EP runs by one of its kernels, with both.
    """

    def __init__(self, graph: GraphIndex, reserved: Mapping[SubgraphPath, Sequence[int]]) -> None:
        self.graph = graph
        self._groups: list[Sequence[int]] = []
        self.taken = [False] * len(graph.nodes)
        self.subgraphs = {
            node: {name: GraphAssignment(body, reserved) for name, body in bodies.items()}
            for node, bodies in graph.subgraphs.items()
        }
        self.executed: set[int] = set()
        self.partitions: list[GraphPartition] = []
        self.kernel_nodes: dict[int, tuple[str, KernelDef]] = {}
        self.take([[node] for node in reserved.get(graph.path, ())])
        self.hold_control_flow()

    @cached_property
    def partitioner(self) -> Partitioner:
        """Groups nodes around those that were taken."""
        from epctx_core.graph.partition import Partitioner

        return Partitioner(self.graph.predecessors, self._groups)

    def execution_order(self) -> list[list[int]]:
        """Return what was taken and all other nodes in an order that can be run; see `Partitioner`."""
        if all(len(group) == 1 for group in self._groups):
            return [[node] for node in range(len(self.taken))]
        return self.partitioner.execution_order()

    def take(self, groups: Sequence[Sequence[int]]) -> None:
        """Make groups of nodes somebody's."""
        self._groups += groups
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
        firsts = {group[0] for group in groups}
        self._groups[:] = [group for group in self._groups if group[0] not in firsts]
        for node in chain.from_iterable(groups):
            self.taken[node] = False

    def hold_control_flow(self) -> None:
        """Take the control-flow nodes whose bodies hold an EP's work: nobody can have them whole."""
        for node, bodies in self.subgraphs.items():
            if not self.taken[node] and any(any(body.taken) for body in bodies.values()):
                self.executed.add(node)
                self.take([[node]])

    def fix(self, groups: Sequence[Sequence[int]]) -> None:
        """Keep groups of nodes together that stay nobody's."""
        self._groups += groups

    def cpu_groups(self) -> list[list[int]]:
        """Return what is left to run in the fewest convex groups."""
        # What a Constant node gives is known.
        left = [i for i in self.left_over() if i not in self.graph.node_constants]
        return self.partitioner.group([[node] for node in left]) if left else []

    def left_over(self) -> list[int]:
        """Return the nodes that nobody took."""
        return [i for i, taken in enumerate(self.taken) if not taken]

    def open_bodies(self) -> Iterator[tuple[int, GraphAssignment]]:
        """Yield the bodies of nodes that nobody took whole, each with its node."""
        for node, bodies in self.subgraphs.items():
            if not self.taken[node] or node in self.executed:
                for body in bodies.values():
                    yield node, body

    def executed_graphs(self) -> Iterator[GraphAssignment]:
        """Yield this graph, then the bodies that the session runs itself, at any depth."""
        yield self
        for node, bodies in self.subgraphs.items():
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
    reserved: dict[SubgraphPath, list[int]] = {}
    for record in model.context_nodes:
        reserved.setdefault(record.path, []).append(record.index)
    carried: Sequence[OperatorTypes] = ()
    if get_metadata(model.source.proto, KERNEL_TYPES) is not None:
        # Few models have nodes that kernels of EPs are for.
        from epctx_core.context.decoding import read_kernel_types

        carried = read_kernel_types(model.source.proto)
    assignment = Assignment(main=GraphAssignment(model.graph, reserved), carried=carried)
    with collection_paused(model.node_count):
        for ep in eps:
            # Nobody is asked by most loads.
            from epctx_core.sessions.claims import ask_ep

            ask_ep(assignment, ep, providers, compiles=ep not in kernels_only)
    for part in assignment.graphs:
        assignment.partitions += part.partitions
    assignment.partitions.sort(key=lambda p: (*chain(*p.graph.path), p.node_indices[0]))
    # Nodes that are there already have the numbers before, if epctx wrote them.
    first = sum(map(len, reserved.values()))
    prefix = providers.session.config().node_name_prefix
    for number, partition in enumerate(assignment.partitions, first):
        partition.prefix, partition.number = prefix, number
    return assignment


def check_allowed(
    assignment: Assignment,
    groups: Sequence[tuple[GraphAssignment, Sequence[Sequence[int]]]],
    where: str,
    config: SessionConfig,
) -> None:
    """Raise if the host forbids compiling, or the CPU EP.

    Args:
        assignment: of the whole model.
        groups: the groups of each graph that are left to the CPU EP.
        where: the name of the model in messages.
        config: the host's options.
    """
    if config.disable_model_compile and assignment.partitions:
        first = assignment.partitions[0]
        raise ModelRequiresCompilation(
            f"{first.ep} would have to compile {len(first.node_indices)} nodes of {where}, and "
            "session.disable_model_compile is set.",
            ep=first.ep,
            hint="Load the context model, or compile one first: epctx compile MODEL --ep ...",
        )
    # Control flow around an EP's work is the host's own doing and no fallback.
    left = [part.graph.nodes[i] for part, cpu in groups for group in cpu for i in group]
    if config.disable_cpu_ep_fallback and left:
        node = left[0]
        raise Fail(
            f"node {node.name!r} ({node.op_type}) and {len(left) - 1} more are left to the CPU EP, and "
            "session.disable_cpu_ep_fallback is set.",
            node=node.name,
            ep=CPU_EP,
            hint="Add an EP that takes them, or leave the option at 0.",
        )
