"""Names of what will be written, checked before anything is compiled: no two nodes of one context model share one."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidGraph
from epctx_core.graph.bodies import named_bodies, placed_nodes
from epctx_core.registry.guard import contract_broken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from epctx_core.graph.bodies import BodyPath
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.providers import ProviderChoice
    from epctx_core.sessions.source import OpenModel


def check_names(model: OpenModel, assignment: Assignment) -> None:
    """Check that no partition will have the name of a node that stays, at any depth.

    Partitions differ among each other by their numbers.

    Raises:
        InvalidGraph: one will, as where a context model is compiled again.
    """
    partitions = assignment.partitions
    # A partition's whole name takes a digest of its weights; its beginning costs nothing.
    starts = tuple({f"{partition.prefix}{partition.ep}_" for partition in partitions})
    if not starts:
        return
    graph = model.graph
    suspects: list[tuple[BodyPath, int, str]] = [
        ((), place, name) for place, name in enumerate(graph.names) if name.startswith(starts)
    ]
    suspects += [found for found in _names_in_bodies(graph) if found[2].startswith(starts)]
    if not suspects:
        return
    names = {partition.name for partition in partitions}
    taken = {(p.graph.path, place) for p in partitions for place in p.node_indices}
    for path, place, name in suspects:
        if name in names and not _is_taken(path, place, taken):
            raise InvalidGraph(
                f"{model.source.where} has a node {name!r} that stays, and an EPContext node would get the same name.",
                node=name,
                path=model.source.path,
                hint="Set ep.context_node_name_prefix, or rename that node.",
            )


def check_graph_names(
    model: OpenModel,
    choice: ProviderChoice,
    partitions: Sequence[GraphPartition],
    earlier: Sequence[Mapping[str, str]],
) -> None:
    """Check that the names that an EP gave its graphs tell them apart; see `EPContextNode.graph_name`.

    Args:
        model: its EPContext nodes are of an earlier compile.
        choice: the EP.
        partitions: those whose nodes it described.
        earlier: of its share group, the partitions of the models before this one and their graphs' names.

    Raises:
        PluginError: two partitions got one name.
        InvalidGraph: a node of an earlier compile has it, and is of another partition.
    """
    if not any(partition.said_name for partition in partitions):
        return
    holders: dict[str, GraphPartition] = {}
    for partition in partitions:
        other = holders.setdefault(partition.graph_name, partition)
        if other is not partition:
            what = f"gave {other.name} and {partition.name} one graph_name, {partition.graph_name!r}"
            raise contract_broken(choice.record, "get_ep_context_nodes", what)
    for name, graph_name in chain.from_iterable(graphs.items() for graphs in earlier):
        same = holders.get(graph_name)
        if same is not None and form_of(same.name) != form_of(name):
            what = f"gave {same.name} the graph_name {graph_name!r}, which another partition of the share group has"
            raise contract_broken(choice.record, "get_ep_context_nodes", what)
    for record in model.context_nodes:
        same = holders.get(record.partition_name) if record.source in choice.record.sources else None
        if same is not None and form_of(same.name) != form_of(record.name):
            raise InvalidGraph(
                f"{model.source.where} has the EPContext node {record.name!r} with the partition_name "
                f"{record.partition_name!r}, and {choice.name} gives a new node the same.",
                node=record.name,
                ep=choice.name,
                path=model.source.path,
                hint="The EP finds graphs by that name: compile the model that this one was made of, in one go.",
            )


def form_of(name: str) -> str:
    """Return a partition's name without the number at its end: equal for equal partitions."""
    return name.rpartition("_")[0]


def _names_in_bodies(graph: GraphIndex) -> Iterator[tuple[BodyPath, int, str]]:
    """Yield the names of all nodes in bodies, with their places."""
    for holder in graph.holders:
        for attribute, body in named_bodies(graph.nodes[holder]):
            for path, place, node in placed_nodes(body, ((holder, attribute),)):
                yield path, place, node.name


def _is_taken(path: BodyPath, place: int, taken: AbstractSet[tuple[BodyPath, int]]) -> bool:
    """Whether a node, or one that holds the body it is in, went into a partition."""
    steps = [*(step for step, _ in path), place]
    return any((path[:depth], step) in taken for depth, step in enumerate(steps))
