"""Partitions of a graph: convex, maximal, quantised groups whole.

A level sweep gives every unit a key that never falls along an edge: even keys for
claimed units, odd for the others. Claimed units with one key form a partition. An edge
goes from a lower or equal key, so contracting all groups leaves a DAG, and the number
of groups is the least possible when a group may be disconnected.

Quantised groups are operators with the DequantizeLinear and QuantizeLinear nodes around
them, which an EP takes whole or not at all. They are units of the sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from epctx_core.graph.walks import shorten_domain

if TYPE_CHECKING:
    from epctx_core.graph.index import GraphIndex

NodeGroups: TypeAlias = "Sequence[Sequence[int]]"
"""Indices of nodes, for each group or for each node."""


class CyclicGroupsError(Exception):
    """Groups cannot be contracted; `groups` are the indices of those on the cycle."""

    def __init__(self, groups: list[int]) -> None:
        super().__init__(f"contracting the groups {groups} makes a cycle")
        self.groups = groups


def compute_level_keys(predecessors: NodeGroups, claimed: Sequence[bool]) -> list[int]:
    """Return the key of each unit; units are numbered in topological order."""
    keys: list[int] = []
    append = keys.append
    for i, preds in enumerate(predecessors):
        claim = claimed[i]
        key = -1 if not claim else 0
        for p in preds:
            if keys[p] > key:  # noqa: PLR1730 - the innermost loop, in which max() takes most of the time
                key = keys[p]
        append(key if (key & 1) != claim else key + 1)
    return keys


def shift_late(predecessors: NodeGroups, keys: list[int]) -> None:
    """Move units that begin their group to the latest group their consumers allow, in
    place.

    The number of groups stays; fewer values cross between them.
    """
    latest: list[int | None] = [None] * len(keys)
    for i in range(len(keys) - 1, -1, -1):
        key = keys[i]
        bound = latest[i]
        preds = predecessors[i]
        if bound is not None and bound > key + 1 and all(keys[p] != key for p in preds):
            key = keys[i] = bound if not (bound - key) & 1 else bound - 1
        for p in preds:
            upper = latest[p]
            if upper is None or key < upper:
                latest[p] = key


def _find_keys(
    predecessors: NodeGroups, claimed: Sequence[bool]
) -> Iterator[tuple[int, int]]:
    keys = compute_level_keys(predecessors, claimed)
    shift_late(predecessors, keys)
    return ((unit, key) for unit, key in enumerate(keys) if claimed[unit])


class Partitioner:
    """Grouping of one graph's nodes, EP after EP; fixed groups stay together.

    Args:
        predecessors: for each node the nodes that it reads from; nodes are in
            topological order.
        fixed: groups that stay as they are; the caller may change the list.
    """

    def __init__(
        self,
        predecessors: NodeGroups,
        fixed: list[Sequence[int]] | None = None,
    ) -> None:
        self._predecessors = predecessors
        self._fixed: list[Sequence[int]] = [] if fixed is None else fixed

    def take(self, groups: Iterable[Sequence[int]]) -> None:
        """Fix groups: later calls see each as one unit."""
        self._fixed.extend(groups)

    def check(self, groups: NodeGroups) -> None:
        """Check that groups can be contracted as they are, and the fixed ones too.

        Raises:
            CyclicGroupsError: some of them enclose other nodes; `groups` are indices
                into these.
        """
        self._sort(groups)

    def _sort(self, groups: NodeGroups) -> tuple[NodeGroups, list[int]]:
        """Return for each unit (these groups, fixed ones, single nodes) the units it
        reads from; and their order.
        """
        try:
            return _sort_units(self._predecessors, [*groups, *self._fixed])
        except CyclicGroupsError as error:
            raise CyclicGroupsError(
                [g for g in error.groups if g < len(groups)]
            ) from None

    def group(self, units: NodeGroups) -> NodeGroups:
        """Merge units into the fewest convex groups.

        Args:
            units: disjoint sets of nodes of no fixed group; a set is never split.

        Returns:
            Groups of node indices, each ascending, ordered by their first node.

        Raises:
            CyclicGroupsError: some of the units enclose other nodes; `groups` are
                indices into `units`.
        """
        if not units:
            return []
        merged: dict[int, list[int]] = {}
        if all(len(unit) == 1 for unit in chain(units, self._fixed)):
            # Nodes are in topological order already.
            claimed = [False] * len(self._predecessors)
            for single in units:
                claimed[single[0]] = True
            for node, key in _find_keys(self._predecessors, claimed):
                merged.setdefault(key, []).append(node)
            return sorted(merged.values())

        needs, order = self._sort(units)
        position = [0] * len(order)
        for index, unit in enumerate(order):
            position[unit] = index
        predecessors = [[position[p] for p in needs[unit]] for unit in order]
        for index, key in _find_keys(
            predecessors, [unit < len(units) for unit in order]
        ):
            merged.setdefault(key, []).extend(units[order[index]])
        return sorted(sorted(group) for group in merged.values())

    def execution_order(self) -> NodeGroups:
        """Return all fixed groups and all other nodes (as groups of one) in an order
        that can be run.

        It stays as close to the model's order as the groups allow.

        Raises:
            CyclicGroupsError: the fixed groups enclose each other.
        """
        order = self._find_model_order()
        if order is not None:
            return order
        members = [*self._fixed, *_list_singles(self._predecessors, self._fixed)]
        return [
            list(members[unit])
            for unit in _sort_units(self._predecessors, self._fixed)[1]
        ]

    def _find_model_order(self) -> NodeGroups | None:
        """Return all groups and other nodes in the order of their first nodes, or None
        if that cannot be run.
        """
        first = list(range(len(self._predecessors)))
        groups = {min(group): group for group in self._fixed}
        for start, group in groups.items():
            for node in group:
                first[node] = start
        for start, group in groups.items():
            # A group without gaps reads nothing behind its first node.
            if max(group) - start >= len(group) and any(
                first[p] > start for node in group for p in self._predecessors[node]
            ):
                return None
        return [
            list(groups.get(i, (i,))) for i, start in enumerate(first) if i == start
        ]


def _list_singles(predecessors: NodeGroups, groups: NodeGroups) -> list[tuple[int]]:
    """Return the nodes that are in no group."""
    grouped = set(chain.from_iterable(groups))
    return [(node,) for node in range(len(predecessors)) if node not in grouped]


def _sort_units(
    predecessors: NodeGroups, groups: NodeGroups
) -> tuple[NodeGroups, list[int]]:
    """Sort a graph in which some groups of nodes are one unit, depth first in the order
    of the nodes.

    Units: the groups first, then single nodes.

    Returns:
        For each unit those that it reads from; and the units in topological order.
    """
    members = [*groups, *_list_singles(predecessors, groups)]
    unit_of = [0] * len(predecessors)
    for unit, nodes in enumerate(members):
        for node in nodes:
            unit_of[node] = unit
    needs = [
        sorted({unit_of[p] for node in nodes for p in predecessors[node]} - {unit})
        for unit, nodes in enumerate(members)
    ]

    # A stack of (unit, iterator over what it needs) instead of recursion: chains are
    # long.
    done = bytearray(len(members))
    order: list[int] = []
    for start in unit_of:
        if done[start]:
            continue
        done[start] = 1
        stack = [(start, iter(needs[start]))]
        while stack:
            unit, pending = stack[-1]
            for needed in pending:
                if done[needed] == 1:
                    path = [u for u, _ in stack]
                    raise CyclicGroupsError([*path[path.index(needed) :]])
                if not done[needed]:
                    done[needed] = 1
                    stack.append((needed, iter(needs[needed])))
                    break
            else:
                done[unit] = 2
                order.append(unit)
                stack.pop()

    return needs, order


MOVING = frozenset(
    """
    BitCast Cast CastLike CenterCropPad Compress Concat ConcatFromSequence Constant
    ConstantOfShape DepthToSpace DequantizeLinear Dropout Expand EyeLike Flatten
    Gather GatherElements GatherND Identity OneHot Optional OptionalGetElement
    OptionalHasElement Pad QuantizeLinear Range Reshape ReverseSequence Scatter
    ScatterElements ScatterND SequenceAt SequenceConstruct SequenceEmpty
    SequenceErase SequenceInsert SequenceLength Shape Size Slice SpaceToDepth Split
    SplitToSequence Squeeze TensorScatter Tile Transpose Trilu Unsqueeze
    """.split()  # noqa: SIM905 - fifty names read better without quotes and commas
)
"""Operators of the default domain that compute nothing: they move, cast or make data.
"""


def find_idle(graph: GraphIndex, groups: NodeGroups, own: NodeGroups) -> list[int]:
    """Return the places of the groups that compute nothing and do not connect two
    others of the same EP.

    Args:
        graph: their graph.
        groups: groups of nodes of one EP.
        own: further groups of the EP, which stay.
    """
    idle = {
        place: group
        for place, group in enumerate(groups)
        # The first node of most groups computes.
        if graph.op_types[group[0]] in MOVING
        and all(
            graph.op_types[i] in MOVING and not shorten_domain(graph.domains[i])
            for i in group
        )
    }
    if not idle:
        return []
    busy = (group for place, group in enumerate(groups) if place not in idle)
    others = {*chain.from_iterable(own), *chain.from_iterable(busy)}

    def connects(group: Sequence[int]) -> bool:
        results = chain.from_iterable(graph.outputs[i] for i in group)
        behind = chain.from_iterable(graph.consumers.get(n, ()) for n in results)
        before = chain.from_iterable(graph.predecessors[i] for i in group)
        return not (others.isdisjoint(before) or others.isdisjoint(behind))

    return [place for place, group in idle.items() if not connects(group)]


_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
_INTO = "QuantizeLinear"
_OUT_OF = "DequantizeLinear"


class QuantizedGroup(NamedTuple):
    """One operator with the quantisation around it.

    Attributes:
        target: the operator.
        sources: its DequantizeLinear nodes; several operators may share one.
        owned: those of them that the target is the first to read. Only these make a
            unit with it: a path from a shared one to an earlier reader could lead back
            to the target.
        sinks: the QuantizeLinear nodes, the only readers of the target's results.
    """

    target: int
    sources: tuple[int, ...]
    owned: tuple[int, ...]
    sinks: tuple[int, ...]


def find_quantized_groups(graph: GraphIndex) -> QuantizedGroups:
    """Return the quantised groups of a graph, which keeps them."""
    if graph.quantized is None:
        graph.quantized = QuantizedGroups(graph)
    groups: QuantizedGroups = graph.quantized
    return groups


class QuantizedGroups:
    """Quantized groups of one graph.

    It has no reference to the graph, which refers to it.

    Attributes:
        groups: in the order of their targets.
    """

    def __init__(self, graph: GraphIndex) -> None:
        self._nodes = graph.nodes
        sources = [i for i, op_type in enumerate(graph.op_types) if op_type == _OUT_OF]
        outer = (i for i in sources if _is_quantizer(graph, i, _OUT_OF))
        targets = {reader for i in outer for reader in _find_readers(graph, i)}
        groups = (_find_group(graph, target) for target in sorted(targets))
        self.groups = [group for group in groups if group is not None]
        readers: dict[int, set[int]] = {}
        for group in self.groups:
            for source in group.sources:
                readers.setdefault(source, set()).add(group.target)
        # The targets that read each DequantizeLinear which nothing else reads.
        self._targets_by_source = {
            i: targets
            for i, targets in readers.items()
            if not _is_output(graph, i) and targets.issuperset(_find_readers(graph, i))
        }

    def find_incomplete(
        self, nodes: Iterable[int], is_assigned: Sequence[bool]
    ) -> dict[int, str]:
        """Return those of some nodes whose groups are not whole among them, with the
        reason.

        Args:
            nodes: the claim of an EP.
            is_assigned: for each node whether an EP has taken it; such a node breaks no
                group.
        """
        if not self.groups:
            return {}
        chosen = set(nodes)
        left_out: dict[int, str] = {}
        for group in self.groups:
            members = (*group.sources, group.target, *group.sinks)
            missing = next(
                (m for m in members if m not in chosen and not is_assigned[m]), None
            )
            if missing is not None:
                reason = self._explain_missing(group.target, missing)
                left_out.update(
                    (i, reason) for i in (group.target, *group.sinks) if i in chosen
                )

        for source, targets in self._targets_by_source.items():
            if source in chosen and not any(
                t in chosen and t not in left_out for t in targets
            ):
                first = min(targets)
                reason = self._explain_missing(first, first)
                left_out[source] = left_out.get(first) or reason

        return left_out

    def find_enclosing(self, units: Iterable[Sequence[int]]) -> dict[int, str]:
        """Return the nodes of those units that are quantised groups and enclose nodes
        of other EPs, with the reason.
        """
        targets = {group.target for group in self.groups}
        return {
            node: self._explain(target, "nodes of another EP lie between them")
            for unit in units
            for target in targets.intersection(unit)
            for node in unit
        }

    def make_units(self, nodes: Iterable[int]) -> NodeGroups:
        """Return nodes as units: a group that is whole among them is one, every other
        node is one.
        """
        if not self.groups:
            return [[i] for i in nodes]
        chosen = dict.fromkeys(nodes)
        units: list[list[int]] = []
        for group in self.groups:
            if group.target in chosen:
                unit = [
                    i for i in (*group.owned, group.target, *group.sinks) if i in chosen
                ]
                units.append(sorted(unit))
                for i in unit:
                    del chosen[i]
        units.extend([i] for i in chosen)
        return units

    def _explain_missing(self, target: int, missing: int) -> str:
        return self._explain(target, f"{self._describe_node(missing)} is not taken")

    def _explain(self, target: int, obstacle: str) -> str:
        return (
            f"{self._describe_node(target)} and the quantisation around it are taken "
            f"whole or not at all, and {obstacle}"
        )

    def _describe_node(self, index: int) -> str:
        node = self._nodes[index]
        return (
            f"{node.op_type} {node.name!r}"
            if node.name
            else f"{node.op_type} (node {index})"
        )


def _find_group(graph: GraphIndex, target: int) -> QuantizedGroup | None:
    if graph.nodes[target].op_type in {_INTO, _OUT_OF}:
        return None
    made_by = dict.fromkeys(
        graph.producer[n] for n in graph.inputs[target] if n in graph.producer
    )
    sources = tuple(i for i in made_by if _is_quantizer(graph, i, _OUT_OF))
    sinks = tuple(dict.fromkeys(_find_readers(graph, target)))
    is_whole = sources and sinks and all(_is_quantizer(graph, i, _INTO) for i in sinks)
    if not is_whole or _is_output(graph, target):
        return None
    owned = tuple(i for i in sources if min(_find_readers(graph, i)) == target)
    return QuantizedGroup(target, sources, owned, sinks)


def _is_output(graph: GraphIndex, index: int) -> bool:
    return not graph.results.isdisjoint(graph.outputs[index])


def _is_quantizer(graph: GraphIndex, index: int, op_type: str) -> bool:
    """Return whether a node is a QuantizeLinear or DequantizeLinear whose scale and
    zero point no node computes.
    """
    node = graph.nodes[index]
    return (
        node.op_type == op_type
        and node.domain in _DOMAINS
        and not any(name in graph.producer for name in graph.inputs[index][1:])
    )


def _find_readers(graph: GraphIndex, index: int) -> list[int]:
    return [
        reader
        for name in graph.outputs[index]
        for reader in graph.consumers.get(name, ())
    ]
