"""Claims of an EP on nodes of a graph: asking for them, checking them, making
partitions of them, compiling those.

Claims are merged into convex, maximal partitions, except those with `exact`; a set that
an EP names is never split. Nodes that cannot be in a partition are left to the next EP,
with the reason.
"""

from __future__ import annotations

import logging
import sys
from collections import ChainMap
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

from epctx_core.context.manifest import MANIFEST, SEALED
from epctx_core.context.metadata import (
    COMPATIBILITY_PREFIX,
    EARLIER_PREFIX,
    INITIALIZERS,
)
from epctx_core.context.node import BOUNDARY_TYPES
from epctx_core.errors import PluginError, concealed
from epctx_core.graph.extraction import GraphPartition, GraphSlice
from epctx_core.graph.index import GraphIndex, Node
from epctx_core.graph.partition import (
    CyclicGroupsError,
    find_idle,
    find_quantized_groups,
)
from epctx_core.plugin import ComputeCapability, Purpose, Refusal
from epctx_core.process import resume_collection
from epctx_core.registry.guard import blame, contract_error, to_plain
from epctx_core.sessions.assignment import RefusalRecord
from epctx_core.sessions.stages import CompileJob, Stages

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core.graph.partition import NodeGroups, QuantizedGroups
    from epctx_core.options import SessionConfig
    from epctx_core.registry.records import PluginRecord
    from epctx_core.sessions.assignment import Assignment, GraphAssignment
    from epctx_core.sessions.providers import ProviderSession
    from epctx_core.sessions.source import OpenModel

_log = logging.getLogger("epctx.session")
_T = TypeVar("_T")
_IDLE = (
    "a partition that only moves, casts or makes data costs more than it saves; "
    "ep.partition_without_computation=keep has it compiled"
)
_OWN = (MANIFEST, SEALED, INITIALIZERS, COMPATIBILITY_PREFIX, EARLIER_PREFIX)
"""Keys of a model's metadata that are the core's, or how they begin."""
_SERVING = frozenset({"Constant", "DequantizeLinear"})


class Claims:
    """Checked result of one EP's `get_capability`.

    Args:
        part: the graph that it was asked about.
        record: the EP.
        assignment: gets the nodes that it does not take, and what it adds to the
            model's metadata.
        keeps_nodes: whether it may leave nodes in the model.
    """

    def __init__(
        self,
        part: GraphAssignment,
        record: PluginRecord,
        assignment: Assignment,
        *,
        keeps_nodes: bool,
    ) -> None:
        self.ep = record.name
        self.fused: dict[bool, list[list[int]]] = {False: [], True: []}
        self.exact: list[tuple[list[int], ComputeCapability]] = []
        self._assignment = assignment
        self._keeps_nodes = keeps_nodes
        self._graph = part.graph
        self._record = record
        self._claimed = list(part.is_assigned)

    def add(self, item: ComputeCapability | Refusal) -> None:
        """Check one item of the result and add it."""
        if isinstance(item, Refusal):
            reason: object = to_plain(item.reason)
            if type(reason) is not str:
                kind = type(reason).__name__
                raise self.broken(
                    f"gave a {kind} instead of a text as the reason of a Refusal"
                )
            self.refuse(concealed(reason), self._indices(item.nodes))
            return
        nodes = sorted(self._indices(item.nodes))
        if not nodes:
            raise self.broken("claims a set of no nodes")
        first = self.describe(nodes[0])
        is_exact = item.exact or item.keep_nodes
        if item.token is not None and not is_exact:
            raise self.broken(
                f"claims a set at {first} with a token, but without exact=True"
            )
        if item.keep_nodes and not self._keeps_nodes:
            raise self.broken(
                f"claims {first} with keep_nodes=True, but the class does not say "
                "keeps_nodes"
            )
        if not _are_entries(item.metadata):
            raise self.broken(
                f"claims a set at {first} with metadata that are no texts, or the "
                "core's"
            )
        for index in nodes:
            if self._claimed[index]:
                raise self.broken(
                    f"claims {self.describe(index)} twice or takes it from another EP"
                )
            self._claimed[index] = True

        self._assignment.metadata.update(item.metadata)
        if is_exact:
            self.exact.append((nodes, item))
        else:
            self.fused[bool(item.keep_initializers)].append(nodes)

    def refuse(
        self, reason: str, nodes: Iterable[int], *, of_group: bool = False
    ) -> None:
        """Record nodes that are left to the next EP."""
        self._assignment.refusals.append(
            RefusalRecord(
                ep=self.ep,
                # Whoever shows a reason names the EP.
                reason=reason.removeprefix(f"{self.ep}: "),
                graph=self._graph,
                nodes=tuple(nodes),
                of_group=of_group,
            )
        )

    def without(
        self,
        bad: Mapping[int, str],
        units: NodeGroups,
        *,
        of_group: bool = False,
    ) -> NodeGroups:
        """Return the sets without a bad node; refuse the others, with the reasons."""
        sets = []
        for unit in units:
            reasons = dict.fromkeys(bad[node] for node in unit if node in bad)
            for reason in reasons:
                self.refuse(reason, unit, of_group=of_group)
            if not reasons:
                sets.append(unit)
        return sets

    def drop_compiled(self) -> None:
        """Drop all sets but those of nodes that stay in the model."""
        self.exact = [(nodes, item) for nodes, item in self.exact if item.keep_nodes]
        self.fused = {False: [], True: []}

    def leave_out(self, reasons: Mapping[int, str]) -> None:
        """Refuse the nodes that the core left out of the groups that it made for the
        EP.
        """
        nodes: dict[str, list[int]] = {}
        for index, reason in reasons.items():
            if not self._claimed[index]:
                nodes.setdefault(reason, []).append(index)
        for reason, indices in nodes.items():
            self.refuse(reason, sorted(indices), of_group=True)

    def describe(self, index: int) -> str:
        """Return a node's name and operator for messages."""
        return (
            f"node {self._graph.get_node_name(index)!r} "
            f"({self._graph.nodes[index].op_type})"
        )

    def broken(self, what: str) -> PluginError:
        """Return the error for a result that breaks the contract."""
        return contract_error(self._record, "get_capability", what)

    def _indices(self, nodes: Any) -> list[int]:
        count = len(self._claimed)
        indices: list[int] = []
        try:
            for node in islice(nodes, count + 1):
                index = int.__index__(node if isinstance(node, int) else node.index)
                if isinstance(node, Node) and not node.is_in(self._graph):
                    raise self.broken(
                        f"names node {node.name!r} ({node.op_type}), which is in "
                        "another graph"
                    )
                if not 0 <= index < count:
                    raise self.broken(
                        f"names node {index!r}, which the graph does not have"
                    )
                indices.append(index)
        except (TypeError, AttributeError):
            raise self.broken("names something else than nodes of the graph") from None
        if len(indices) > count:
            raise self.broken(f"names more nodes than the graph has, which are {count}")
        return indices


def _are_entries(metadata: Any) -> bool:
    """Return whether an EP may add something to a model's metadata."""
    return isinstance(metadata, Mapping) and all(
        isinstance(key, str) and isinstance(text, str) and not key.startswith(_OWN)
        for key, text in metadata.items()
    )


def keep_whole_groups(
    part: GraphAssignment, units: NodeGroups, claims: Claims
) -> NodeGroups:
    """Return the sets that an EP names without those that hold a part of a quantised
    group only.

    Sets that hold a group together become one.

    Args:
        part: their graph.
        units: disjoint sets of nodes; a set is refused whole, never split.
        claims: records a set that is refused.
    """
    quantized = find_quantized_groups(part.graph)
    while True:
        while bad := quantized.find_incomplete(
            chain.from_iterable(units), part.is_assigned
        ):
            units = claims.without(bad, units, of_group=True)
        joined = _joined(quantized, units)
        if len(joined) == len(units):
            return joined
        try:
            part.partitioner.check(joined)
        except CyclicGroupsError as error:
            # Convex sets, joined to keep a group whole, may enclose other EPs' nodes.
            bad = quantized.find_enclosing(joined[number] for number in error.groups)
            if not bad:
                return joined
            units = claims.without(bad, units, of_group=True)
        else:
            return joined


def _joined(quantized: QuantizedGroups, units: NodeGroups) -> NodeGroups:
    """Join sets until no unit of a quantised group lies in two of them."""
    if not quantized.groups:
        return units
    index = {i: number for number, unit in enumerate(units) for i in unit}
    joined = list(range(len(units)))

    def root(number: int) -> int:
        while joined[number] != number:
            joined[number] = number = joined[joined[number]]
        return number

    for members in quantized.make_units(index):
        first = root(index[members[0]])
        for i in members[1:]:
            joined[root(index[i])] = first
    merged: dict[int, list[int]] = {}
    for number, unit in enumerate(units):
        merged.setdefault(root(number), []).extend(unit)
    return [sorted(unit) for unit in merged.values()]


def apply_partition_limits(
    assignment: Assignment, ep: str, config: SessionConfig
) -> None:
    """Release an EP's partitions that are too small or too many for the host, in the
    main graph and in subgraphs.
    """
    smallest = config.partition_min_nodes
    limit = config.partition_max_count
    if smallest <= 1 and limit is None:
        return
    partitions = [
        p for part in assignment.graphs for p in part.partitions if p.ep == ep
    ]

    # Of equal size the first in the model are kept: sorting is stable.
    partitions.sort(key=lambda partition: -len(partition.node_indices))
    dropped: set[GraphPartition] = set()
    for index, partition in enumerate(partitions):
        nodes = partition.node_indices
        reason = f"a partition of {len(nodes)} node{'s' * (len(nodes) != 1)} is "
        if len(nodes) < smallest:
            reason += f"smaller than ep.partition_min_nodes={smallest}"
        elif limit is not None and index >= limit:
            reason += f"not among the ep.partition_max_count={limit} largest"
        else:
            continue
        assignment.refusals.append(
            RefusalRecord(
                ep=ep, reason=reason, graph=partition.graph, nodes=tuple(nodes)
            )
        )
        dropped.add(partition)

    if dropped:
        assignment.release(dropped)


def ask_ep(
    assignment: Assignment, ep: str, providers: ProviderSession, *, compiles: bool
) -> None:
    """Ask one EP for its claims on all graphs, and make partitions of them.

    Args:
        assignment: that of the EPs before; the EP's nodes are added.
        ep: the EP, with priority over those asked later.
        providers: the live EPs.
        compiles: False if only claims with `keep_nodes` count.
    """
    instances = providers.instances
    record = instances.record(ep)
    hook = "get_capability"
    metadata = ChainMap(assignment.metadata, _read_texts(assignment.source))
    for part, parent in _open_graphs(assignment.main):
        view = GraphSlice(
            part.graph,
            part.partitioner,
            part.is_assigned,
            parent,
        )
        view.metadata = metadata
        claims = Claims(
            part,
            record,
            assignment,
            keeps_nodes=providers.choices[ep].cls.keeps_nodes,
        )
        with (
            instances.calling(ep, hook, graph=view) as result,
            blame(record, hook),  # whose iterators and items run
        ):
            for item in result:
                claims.add(item)
        claims.leave_out(view.left_out)
        if not compiles:
            claims.drop_compiled()
        part.hold(exact := _exact_partitions(part, claims))
        fused: list[GraphPartition] = []
        for keep in (False, True):
            part.hold(partitions := _partitions(part, claims, view, keep))
            fused += partitions
        if not providers.config.keeps_idle:
            _release_idle(part, claims, fused, [p for p in exact if not p.keeps_nodes])

    apply_partition_limits(assignment, ep, providers.config)
    _trace_refusals([r for r in assignment.refusals if r.ep == ep])


def _read_texts(model: ModelProto) -> dict[str, str]:
    """Return a model's metadata but its manifest, as texts whatever their bytes; of
    several entries with one key the first.
    """
    return {
        entry.key: entry.value
        if isinstance(entry.value, str)
        else entry.value.decode(errors="replace")
        for entry in reversed(model.metadata_props)
        if isinstance(entry.key, str) and entry.key not in {MANIFEST, SEALED}
    }


def _trace_refusals(refusals: Sequence[RefusalRecord]) -> None:
    """Set `RefusalRecord.follows` of one EP's refusals."""
    by_graph: dict[int, dict[int, RefusalRecord]] = {}
    for refusal in reversed(refusals):
        # The first of several counts.
        by_graph.setdefault(id(refusal.graph), {}).update(
            dict.fromkeys(refusal.nodes, refusal)
        )
    for refused in by_graph.values():
        causes: dict[int, int] = {}
        # What a constant serves is behind it, and what that serves is known by then.
        for node in sorted(refused, reverse=True):
            refusal = refused[node]
            served = _find_served(refusal.graph, node, refused)
            if served is None:
                continue
            causes[node] = cause = causes.get(served, served)
            # The reason of a group names the member that is not taken, perhaps this.
            if not refused[cause].of_group and refused[cause].reason != refusal.reason:
                refusal.follows[node] = cause


def _find_served(
    graph: GraphIndex, node: int, refused: Mapping[int, RefusalRecord]
) -> int | None:
    """Return the node without which a constant or a quantiser has no use, if that is
    refused.
    """
    operator = graph.op_types[node]
    if operator == "QuantizeLinear":
        names = graph.explicit_inputs[node][:1]
        return next((i for n in names if (i := graph.producer.get(n)) in refused), None)
    results = graph.outputs[node]
    if operator not in _SERVING or not graph.results.isdisjoint(results):
        return None
    readers = {i for name in results for i in graph.consumers.get(name, ())}
    return min(readers) if readers and readers <= refused.keys() else None


def _open_graphs(
    part: GraphAssignment, parent: Node | None = None
) -> Iterator[tuple[GraphAssignment, Node | None]]:
    """Yield a graph's subgraphs, then the graph, each with its node: claims in
    subgraphs are known by then.
    """
    for node, subgraphs in part.subgraphs.items():
        # An EP may have taken a node whole.
        for subgraph in (
            subgraphs.values()
            if not part.is_assigned[node] or node in part.executed
            else ()
        ):
            yield from _open_graphs(subgraph, Node(part.graph, node))
    part.take_control_flow()
    if part.graph.nodes:
        yield part, parent


def _release_idle(
    part: GraphAssignment,
    claims: Claims,
    fused: Sequence[GraphPartition],
    exact: Sequence[GraphPartition],
) -> None:
    """Release partitions that compute nothing: each costs a session and copies.

    The others stay convex and maximal, as a path through one still leads through nodes
    that the EP does not have.
    """
    groups, own = ([p.node_indices for p in some] for some in (fused, exact))
    idle = [fused[place] for place in find_idle(part.graph, groups, own)]
    if idle:
        claims.refuse(_IDLE, chain.from_iterable(p.node_indices for p in idle))
        part.release({*idle})


def _exact_partitions(part: GraphAssignment, claims: Claims) -> list[GraphPartition]:
    """Return the sets that an EP names as partitions, without those that would have to
    shrink or grow.
    """
    if not claims.exact:
        return []
    _check_convex(part.partitioner.check, claims, [nodes for nodes, _ in claims.exact])
    partitions = []
    for nodes, item in claims.exact:
        partition = GraphPartition(
            part.graph, nodes, ep=claims.ep, keep_initializers=item.keep_initializers
        )
        partition.token = item.token
        partition.keeps_nodes = item.keep_nodes
        # Parts of quantised groups stay, as the EP has compiled just these nodes.
        bad = {} if item.keep_nodes else _untransportable([partition])
        for reason in dict.fromkeys(bad.values()):
            claims.refuse(
                f"{reason}; the EP takes the {len(nodes)} nodes of this set together "
                "or not at all",
                nodes,
            )
        if not bad:
            partitions.append(partition)
    return partitions


def _partitions(
    part: GraphAssignment, claims: Claims, view: GraphSlice, keep: bool
) -> list[GraphPartition]:
    """Make partitions of an EP's units, without those that would put a type on the
    boundary that EPContext can't carry.

    Leaving one out makes new boundaries, so this repeats until nothing changes; each
    round drops a unit.
    """
    units: NodeGroups = claims.fused[keep]
    groups: NodeGroups | None = None
    if not claims.exact and sorted(claims.fused[keep]) == list(view.grouped):
        # Groups of the view need no second check, and may be taken apart again.
        groups = units
        units = view.units
    else:
        units = keep_whole_groups(part, units, claims)
    while True:
        if groups is None:
            groups = _check_convex(part.partitioner.group, claims, units)
        partitions = [
            GraphPartition(part.graph, g, ep=claims.ep, keep_initializers=keep)
            for g in groups
        ]
        bad = _untransportable(partitions)
        if not bad:
            return partitions
        units = keep_whole_groups(part, claims.without(bad, units), claims)
        groups = None


def _check_convex(
    act: Callable[[NodeGroups], _T],
    claims: Claims,
    units: NodeGroups,
) -> _T:
    """Call a function with an EP's sets; blame the EP for those that enclose other
    nodes.
    """
    try:
        return act(units)
    except CyclicGroupsError as error:
        nodes = ", ".join(claims.describe(units[g][0]) for g in error.groups[:3])
        raise claims.broken(
            f"claims sets that enclose nodes outside of them (at {nodes})"
        ) from None


def _untransportable(partitions: Sequence[GraphPartition]) -> dict[int, str]:
    """Return the nodes at a boundary whose values an EPContext node cannot have, with
    the reason.
    """
    bad: dict[int, str] = {}
    for partition in partitions:
        graph = partition.graph
        get = graph.types.get
        refused = {
            name: f"the boundary value {name!r} is {get(name)}, which an EPContext "
            "node cannot carry"
            for name in partition.input_names + partition.output_names
            if get(name).elem_type not in BOUNDARY_TYPES
        }
        for node in partition.node_indices if refused else ():
            for name in refused.keys() & {*graph.inputs[node], *graph.outputs[node]}:
                bad[node] = refused[name]
    return bad


def compile_all(
    assignment: Assignment,
    providers: ProviderSession,
    purpose: Purpose,
    stages: Stages,
    ask_again: Callable[[Sequence[str]], object],
) -> None:
    """Have each EP compile its partitions; see `Assigned.compile`.

    Args:
        assignment: gets the results.
        providers: the live EPs.
        purpose: theirs; an export compiles no partition whose nodes stay in the model.
        stages: decide what happens if one fails.
        ask_again: asks EPs that get the nodes of one that failed.
    """

    def compile_some(partitions: Sequence[GraphPartition]) -> None:
        compile_partitions(assignment, partitions, providers, purpose)

    for ep in providers.choices:
        partitions = assignment.of(ep)
        if purpose is not Purpose.EXPORT:
            partitions += [p for p in assignment.kept if p.ep == ep]
        if not partitions:
            continue
        job = CompileJob(
            assignment=assignment,
            partitions=partitions,
            compile=compile_some,
            eps=providers.instances.names,
            cancel=providers.cancel,
        )
        later = stages.compile(job)
        if later is not None:
            ask_again(later)


def compile_partitions(
    assignment: Assignment,
    partitions: Sequence[GraphPartition],
    providers: ProviderSession,
    purpose: Purpose,
) -> None:
    """Have an EP compile partitions of its own, in one call; `Assignment.compiled` gets
    the results.

    Progress counts partitions.

    Raises:
        EPFail: the EP raised.
        PluginError: it did not return one `CompiledPartition` for each partition.
        ModelLoadCanceled: the host asked to stop.
    """
    compiled = assignment.compiled
    providers.cancel.raise_if_requested()
    total = len(assignment.claimed)
    providers.progress("compile", len(compiled), total)
    with resume_collection():
        result = providers.call_for_runnables(
            partitions[0].ep, "compile", partitions, purpose, partitions=partitions
        )
    compiled.update(zip(partitions, result, strict=True))
    providers.progress("compile", len(compiled), total)


def warn_of_unused_eps(
    assignment: Assignment,
    model: OpenModel,
    eps: Collection[str],
    loaded: Collection[str],
) -> None:
    """Log a warning that names EPs which a session has and which run nothing; not those
    to which the EPs before them left no node.

    Args:
        assignment: of the whole model.
        model: the model.
        eps: of the session.
        loaded: those that load EPContext nodes.
    """
    used = {p.ep for p in assignment.claimed} | {*loaded}
    asked = {refusal.ep for refusal in assignment.refusals if refusal.nodes}
    idle = [ep for ep in eps if ep not in used and (ep in asked or not used)]
    if idle:
        _log.warning(
            "no node of %s is taken by %s%s.%s",
            model.source.where,
            " or ".join(idle),
            "" if used else ": the CPU EP runs them all",
            explain_unused_eps(assignment, model, idle),
        )


def explain_unused_eps(
    assignment: Assignment, model: OpenModel, eps: Collection[str]
) -> str:
    """Return why some EPs take no node, in sentences after a space: a reason for all
    nodes, or else the one for the most, where those inside count and those left out
    because of others do not; then the model's open dimensions, if refused nodes have
    one.
    """
    refusals = [refusal for refusal in assignment.refusals if refusal.ep in eps]
    if not refusals:
        return ""
    refusal = min(
        refusals,
        key=lambda refusal: (
            # The EP would take these.
            refusal.reason == _IDLE,
            # A node of the main graph is refused with all of its bodies.
            bool(refusal.graph.path),
            len(refusal.follows)
            - refusal.graph.count_inside(refusal.nodes)
            - (len(refusal.nodes) or sys.maxsize),
        ),
    )
    inside = refusal.graph.count_inside(refusal.nodes)
    more = f" ({inside:,} nodes inside)" if inside else ""
    why = f" {refusal.ep} says: {refusal.reason.rstrip('.')}{more}."

    # Most compilers need static shapes, and few say how to get them.
    types = map(model.types.get, model.graph.input_names)
    names = [d for each in types for d in each.shape or () if isinstance(d, str)]
    if names and any(
        not refusal.graph.types.get(name).is_static
        for node in refusal.nodes[:1]
        for name in refusal.graph.nodes[node].input
    ):
        shown = ", ".join(map(repr, list(dict.fromkeys(names))[:4]))
        why += (
            f" Dimensions of the model's inputs are open ({shown}): if that is the "
            "cause, fix them at the lengths that you use, by `--free-dimension NAME=…` "
            "or `SessionOptions.add_free_dimension_override_by_name`."
        )
    return why
