"""Assignment of nodes to EPs: each is asked in order of priority, and its claims become
partitions.

The subgraphs of control flow are graphs of their own. No EP can claim a node whose
subgraphs contain nodes of an EP: the session runs it. Any other is an ordinary node,
which an EP or an engine takes whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import chain, count
from typing import TYPE_CHECKING

from epctx_core.errors import Fail, ModelRequiresCompilation
from epctx_core.frozen import dataclass
from epctx_core.options.choices import CPU_EP

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.partition import NodeGroups, Partitioner
    from epctx_core.graph.walks import SubgraphPath
    from epctx_core.options import SessionConfig
    from epctx_core.plugin import CompiledPartition
    from epctx_core.sessions.source import OpenModel


@dataclass(frozen=True, kw_only=True)
class RefusalRecord:
    """Nodes of a graph that an EP did not take, with the reason.

    Attributes:
        of_group: whether the core refused them, as parts of a quantised group that the
            EP does not take whole.
        follows: those of `nodes` that only serve nodes which the EP refused for another
            reason, each with the first of those.
    """

    ep: str
    reason: str
    graph: GraphIndex
    nodes: tuple[int, ...]
    of_group: bool = False
    follows: dict[int, int] = field(default_factory=dict, compare=False)


class _Claimed:
    """Partitions that EPs claimed, of a graph or of a model."""

    claimed: list[GraphPartition]

    @property
    def partitions(self) -> list[GraphPartition]:
        """Those with nodes that do not stay in the model."""
        return [p for p in self.claimed if not p.keeps_nodes]

    @property
    def kept(self) -> list[GraphPartition]:
        """Those with nodes that stay in the model."""
        return [p for p in self.claimed if p.keeps_nodes]


class GraphAssignment(_Claimed):
    """Assignment of the nodes of one graph.

    Attributes:
        graph: its index.
        is_assigned: for each node, whether an EP has it.
        subgraphs: control-flow node to its subgraphs by attribute.
        executed: the control-flow nodes with nodes of an EP in their subgraphs: the
            session runs them itself.
        claimed: the partitions of this graph, without its subgraphs.
    """

    def __init__(
        self, graph: GraphIndex, reserved: Mapping[SubgraphPath, Sequence[int]]
    ) -> None:
        self.graph = graph
        self._groups: list[Sequence[int]] = []
        self.is_assigned = [False] * len(graph.nodes)
        self.subgraphs = {
            node: {
                name: GraphAssignment(subgraph, reserved)
                for name, subgraph in subgraphs.items()
            }
            for node, subgraphs in graph.subgraphs.items()
        }
        self.executed: set[int] = set()
        self.claimed = []
        self.take([[node] for node in reserved.get(graph.path, ())])
        self.take_control_flow()

    @cached_property
    def partitioner(self) -> Partitioner:
        """Partitioner that groups nodes around those that were taken."""
        from epctx_core.graph.partition import Partitioner

        return Partitioner(self.graph.predecessors, self._groups)

    def execution_order(self) -> NodeGroups:
        """Return assigned groups and all other nodes in an order of execution; see
        `Partitioner`.
        """
        if all(len(group) == 1 for group in self._groups):
            return [[node] for node in range(len(self.is_assigned))]
        return self.partitioner.execution_order()

    def written_order(self) -> NodeGroups:
        """Return the same with nodes that stay in the model on their own."""
        kept_nodes = {partition.node_indices[0] for partition in self.kept}
        return [
            piece
            for group in self.execution_order()
            for piece in ([[i] for i in group] if group[0] in kept_nodes else [group])
        ]

    def take(self, groups: NodeGroups) -> None:
        """Mark groups of nodes as assigned."""
        self._groups += groups
        for group in groups:
            for node in group:
                self.is_assigned[node] = True

    def hold(self, partitions: Sequence[GraphPartition]) -> None:
        """Assign partitions to their EP."""
        self.take([partition.node_indices for partition in partitions])
        self.claimed += partitions

    def release(self, partitions: Collection[GraphPartition]) -> None:
        """Release the nodes of partitions; then the control-flow nodes in whose
        subgraphs nothing is assigned any more.
        """
        gone = [p for p in self.claimed if p in partitions]
        self.claimed = [p for p in self.claimed if p not in partitions]
        idle: list[int] = []
        for node in sorted(self.executed):
            subgraphs = self.subgraphs[node].values()
            if not any(any(subgraph.is_assigned) for subgraph in subgraphs):
                self.executed.discard(node)
                idle.append(node)
        self._release_nodes([*(p.node_indices for p in gone), *([i] for i in idle)])

    def _release_nodes(self, groups: NodeGroups) -> None:
        firsts = {group[0] for group in groups}
        self._groups[:] = [group for group in self._groups if group[0] not in firsts]
        for node in chain.from_iterable(groups):
            self.is_assigned[node] = False

    def take_control_flow(self) -> None:
        """Mark the control-flow nodes with nodes of an EP in their subgraphs: no EP can
        take them whole.
        """
        for node, subgraphs in self.subgraphs.items():
            if not self.is_assigned[node] and any(
                any(subgraph.is_assigned) for subgraph in subgraphs.values()
            ):
                self.executed.add(node)
                self.take([[node]])

    def fix(self, groups: NodeGroups) -> None:
        """Keep the nodes of each group together, for the order of execution."""
        self._groups += groups

    def cpu_groups(self) -> NodeGroups:
        """Return the unassigned nodes in the fewest convex groups."""
        # The output of a Constant node is known.
        left = [i for i in self.left_over() if i not in self.graph.node_constants]
        return self.partitioner.group([[node] for node in left]) if left else []

    def left_over(self) -> list[int]:
        """Return the unassigned nodes."""
        return [i for i, is_taken in enumerate(self.is_assigned) if not is_taken]

    def executed_graphs(self) -> Iterator[GraphAssignment]:
        """Yield this graph, then the subgraphs that the session runs itself, at any
        depth.
        """
        yield self
        for node, subgraphs in self.subgraphs.items():
            for subgraph in subgraphs.values() if node in self.executed else ():
                yield from subgraph.executed_graphs()


@dataclass(kw_only=True)
class Assignment(_Claimed):
    """Assignment of all nodes of a model.

    Attributes:
        main: the main graph's, which holds those of the subgraphs.
        claimed: the partitions of all graphs, in the order of their first nodes, where
            those of a subgraph stand where its node does; those whose nodes stay in
            the model are last.
        refusals: in the order in which they were given, failures to compile first.
        source: the model.
        metadata: what EPs add to the model's.
        compiled: what EPs made of their partitions.
    """

    main: GraphAssignment
    source: ModelProto
    metadata: dict[str, str] = field(default_factory=dict)
    claimed: list[GraphPartition] = field(default_factory=list)
    refusals: list[RefusalRecord] = field(default_factory=list)
    compiled: dict[GraphPartition, CompiledPartition] = field(default_factory=dict)

    @property
    def graphs(self) -> list[GraphAssignment]:
        """The main graph and all subgraphs that the session runs itself."""
        return list(self.main.executed_graphs())

    def find_refusals(self) -> list[RefusalRecord]:
        """Return the refusals but those in bodies that the same EP took with their
        node.
        """
        if not any(refusal.graph.path for refusal in self.refusals):
            return self.refusals
        taken_nodes = {
            (partition.ep, partition.graph.path, node)
            for partition in self.claimed
            for node in partition.node_indices
        }
        return [
            refusal
            for refusal in self.refusals
            if not any(
                (refusal.ep, refusal.graph.path[:depth], node) in taken_nodes
                for depth, (node, _) in enumerate(refusal.graph.path)
            )
        ]

    def of(self, ep: str) -> list[GraphPartition]:
        """Return one EP's partitions."""
        return [p for p in self.partitions if p.ep == ep]

    def release(self, partitions: Collection[GraphPartition]) -> None:
        """Release partitions of any graph."""
        # Subgraphs come before the graphs that contain them.
        for part in reversed(self.graphs):
            part.release(partitions)


def begin_assignment(model: OpenModel) -> Assignment:
    """Return the assignment of a model before any EP was asked: its EPContext nodes are
    taken.
    """
    reserved: dict[SubgraphPath, list[int]] = {}
    for record in model.context_nodes:
        reserved.setdefault(record.path, []).append(record.index)
    return Assignment(
        main=GraphAssignment(model.graph, reserved), source=model.source.proto
    )


def complete_assignment(assignment: Assignment, prefix: str, first: int) -> None:
    """Collect and number the partitions, after all EPs were asked. Compiled ones keep
    their numbers.

    Args:
        assignment: the assignment.
        prefix: what their names begin with.
        first: the first number: EPContext nodes that are there already have those
            before, if epctx wrote them.
    """
    assignment.claimed = sorted(
        chain.from_iterable(part.claimed for part in assignment.graphs),
        key=lambda p: (p.keeps_nodes, *chain(*p.graph.path), p.node_indices[0]),
    )
    used = {partition.number for partition in assignment.compiled}
    free = (number for number in count(first) if number not in used)
    for partition in assignment.claimed:
        if partition not in assignment.compiled:
            partition.prefix = prefix
            partition.number = next(free)


def check_allowed(
    assignment: Assignment,
    groups: Sequence[tuple[GraphAssignment, NodeGroups]],
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
            f"{first.ep} would have to compile {len(first.node_indices)} nodes of "
            f"{where}, and session.disable_model_compile is set.",
            ep=first.ep,
            hint=(
                "Load the context model, or compile one first: epctx compile MODEL "
                "--ep ..."
            ),
        )
    # Control flow around an EP's work is the host's own doing and no fallback.
    left = [(part.graph, i) for part, cpu in groups for group in cpu for i in group]
    if config.disable_cpu_ep_fallback and left:
        graph, first_left = left[0]
        name = graph.get_node_name(first_left)
        others = f" and {len(left) - 1:,} more are" if left[1:] else " is"
        raise Fail(
            f"node {name!r} ({graph.op_types[first_left]}){others} left to the CPU EP, "
            "and session.disable_cpu_ep_fallback is set.",
            node=name,
            ep=CPU_EP,
            hint="Add an EP that takes them, or leave the option at 0.",
        )
