"""Names of what will be written, checked before anything is compiled: no two nodes of one context model share one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.errors import InvalidGraph
from epctx_core.graph.bodies import named_bodies, placed_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from epctx_core.graph.bodies import BodyPath
    from epctx_core.graph.index import GraphIndex
    from epctx_core.sessions.assignment import Assignment
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
