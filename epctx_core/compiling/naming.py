"""Names of partitions: those of the core, and those that EPs give the graphs in their
payloads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidGraph
from epctx_core.graph.splice import PARTITION
from epctx_core.registry.guard import contract_error

if TYPE_CHECKING:
    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.sessions.assignment import Assignment, GraphAssignment
    from epctx_core.sessions.providers import ProviderChoice
    from epctx_core.sessions.source import OpenModel


def iterate_remaining(part: GraphAssignment) -> Iterator[tuple[GraphAssignment, int]]:
    """Yield the nodes outside of partitions, at any depth."""
    compiled = {
        index for partition in part.partitions for index in partition.node_indices
    }
    for index in range(len(part.graph.nodes)):
        if index not in compiled:
            yield part, index
            for subgraph in part.subgraphs.get(index, {}).values():
                yield from iterate_remaining(subgraph)


def _staying_names(assignment: Assignment) -> Iterator[str]:
    """Yield the names of the nodes outside of partitions, at any depth."""
    for part, index in iterate_remaining(assignment.main):
        yield part.graph.names[index]


def check_names(model: OpenModel, assignment: Assignment) -> None:
    """Check that no partition gets the name of a node that stays, at any depth.

    Partitions differ from each other by their numbers.

    Raises:
        InvalidGraph: one does, as when a context model is compiled again.
    """
    # A partition's whole name takes a digest of its weights; its beginning costs
    # nothing.
    starts = tuple(
        {f"{partition.prefix}{partition.ep}_" for partition in assignment.partitions}
    )
    suspects = [
        name
        for name in (_staying_names(assignment) if starts else ())
        if name.startswith(starts)
    ]
    if not suspects:
        return
    names = {partition.name for partition in assignment.partitions}
    for name in names.intersection(suspects):
        raise InvalidGraph(
            f"{model.source.where} has a node {name!r} that stays, and an EPContext "
            "node would get the same name.",
            node=name,
            path=model.source.path,
            hint="Set ep.context_node_name_prefix, or rename that node.",
        )


def strip_number(name: str) -> str:
    """Return a partition's name without the number at its end: equal for equal
    partitions.
    """
    return name.rpartition("_")[0]


def name_partitions(
    assignment: Assignment, graph_names: Mapping[GraphPartition, str]
) -> dict[GraphPartition, tuple[str, str]]:
    """Return the names of the graphs that an EP named, and of their nodes: the same, as
    in onnxruntime.

    A node keeps the core's name if the host wants a prefix, or if the name is taken, by
    another EP's too.

    Args:
        assignment: that of the model.
        graph_names: the names that it gave, as far as it gave any.
    """
    if not graph_names:
        return {}
    taken = {p.node_name for p in assignment.partitions}
    taken.update(_staying_names(assignment))
    names = {}
    for partition, graph_name in graph_names.items():
        is_free = not partition.prefix and graph_name not in taken
        node_name = graph_name if is_free else partition.name
        names[partition] = graph_name, node_name
        taken.add(node_name)
    return names


def check_graph_names(
    model: OpenModel,
    choice: ProviderChoice,
    partitions: Sequence[GraphPartition],
    earlier: Sequence[Mapping[str, str]],
) -> None:
    """Check that the names that the EP gave its graphs are unique; see
    `EPContextNode.graph_name`.

    Args:
        model: the source, whose EPContext nodes are of an earlier compile.
        choice: the EP.
        partitions: those of the EP.
        earlier: for each earlier model of the share group, the names of partitions
            and of their graphs.

    Raises:
        PluginError: two partitions that are not equal got one name.
        InvalidGraph: a node of an earlier compile has it, and is of another
            partition.
    """
    if all(partition.graph_name == partition.name for partition in partitions):
        return
    forms: dict[str, str] = {}
    for graphs in (
        *earlier,
        {partition.name: partition.graph_name for partition in partitions},
    ):
        for name, graph_name in graphs.items():
            if forms.setdefault(graph_name, strip_number(name)) != strip_number(name):
                raise contract_error(
                    choice.record,
                    "get_ep_context_nodes",
                    f"gave {name} the graph_name {graph_name!r}, which another "
                    "partition has",
                )
    for record in model.context_nodes:
        metadata = {
            e.key: e.value
            for e in model.graph_of(record).nodes[record.index].metadata_props
        }
        form = strip_number(metadata.get(PARTITION, record.name))
        if (
            record.source in choice.record.sources
            and forms.get(record.partition_name, form) != form
        ):
            raise InvalidGraph(
                f"{model.source.where} has the EPContext node {record.name!r} "
                f"with the partition_name {record.partition_name!r}, and "
                f"{choice.name} gives a new node the same.",
                node=record.name,
                ep=choice.name,
                path=model.source.path,
                hint=(
                    "The EP finds graphs by that name: compile the model that "
                    "this one was made of, in one go."
                ),
            )
