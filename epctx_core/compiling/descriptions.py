"""Answers of EPs to `get_ep_context_nodes`, checked against the contract, and the names
of partitions and graphs that follow from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import onnx

from epctx_core.context.metadata import get_metadata
from epctx_core.context.node import check_attribute
from epctx_core.errors import InvalidGraph, PluginError
from epctx_core.graph.extraction import GraphPartition
from epctx_core.graph.splice import PARTITION
from epctx_core.graph.type_table import may_have_shape
from epctx_core.plugin import CORE_ATTRIBUTES, EPContextNode, ValueInfo
from epctx_core.registry.guard import contract_error, to_plain
from epctx_core.sessions.plan import make_mismatch_error
from epctx_core.sessions.signature import describe_array

if TYPE_CHECKING:
    from epctx_core.context.payload_writer import PayloadSet
    from epctx_core.sessions.assignment import Assignment, GraphAssignment
    from epctx_core.sessions.routing import ProviderChoice
    from epctx_core.sessions.source import OpenModel

HOOK: Final = "get_ep_context_nodes"


class Descriptions:
    """Descriptions that one EP gives of its nodes.

    Args:
        choice: the EP.
        partitions: those that it compiled.
        payloads: those that it wrote.

    Attributes:
        compatibility_info: the text that its nodes have in common, or None.
        shapes: by name, those for which it compiled.
        graph_names: those that the EP gave the graphs in its payloads.
    """

    def __init__(
        self,
        choice: ProviderChoice,
        partitions: Sequence[GraphPartition],
        payloads: PayloadSet,
    ) -> None:
        self._choice = choice
        self._partitions = partitions
        self.payloads = payloads
        self.compatibility_info: str | None = None
        self.shapes: dict[str, Sequence[int]] = {}
        self.graph_names: dict[GraphPartition, str] = {}
        # EPs give many nodes one mapping: each is looked at once.
        self._checked: set[int] = set()

    def check(self, described: Sequence[EPContextNode]) -> list[EPContextNode]:
        """Return one description for each partition, in the partitions' order,
        checked.
        """
        by_partition = {
            id(node.partition): self._check_node(node) for node in described
        }
        missing = [p for p in self._partitions if id(p) not in by_partition]
        if missing or len(described) != len(self._partitions):
            raise self._error(
                f"described {len(described)} nodes for its {len(self._partitions)} "
                "partitions" + (f"; {missing[0].name} is missing" if missing else "")
            )

        ordered = [by_partition[id(p)] for p in self._partitions]

        # A load finds payloads through their primaries alone.
        payloads = {
            id(node.payload)
            for node in ordered
            if node.payload is not None and node.main_context
        }
        for key, writer in self.payloads.writers.items():
            if key not in payloads:
                raise self._error(
                    f"wrote the payload {writer.name!r}, which no node carries with "
                    "main_context=1"
                )
        check_written(self._choice, self.payloads)
        if not payloads:
            raise self._error(
                "gave no node a payload, so that nothing could be loaded again"
            )
        texts = {
            self._check_text(node.compatibility_info, "compatibility_info")
            for node in ordered
        }
        if len(texts) > 1:
            raise self._error(
                "gave nodes of one model different texts as compatibility_info: "
                f"{' and '.join(sorted(map(repr, texts)))}"
            )

        (self.compatibility_info,) = texts
        return ordered

    def _check_node(self, node: EPContextNode) -> EPContextNode:
        if type(node.attributes) is not dict:
            # A copy: another kind of mapping could return other values when it is
            # written.
            node = replace(node, attributes=dict(to_plain(node.attributes)))
        if id(node.attributes) not in self._checked:
            self._checked.add(id(node.attributes))
            owned = CORE_ATTRIBUTES & node.attributes.keys()
            if owned:
                hint = "; EPContextNode.graph_name says another name" * (
                    "partition_name" in owned
                )
                raise self._error(
                    f"set {', '.join(sorted(owned))}, which only the core writes{hint}"
                )
            for key, value in node.attributes.items():
                try:
                    check_attribute(
                        str(node.partition), onnx.helper.make_attribute(key, value)
                    )
                except (TypeError, ValueError, InvalidGraph) as error:
                    raise self._error(
                        f"set {key!r} to a value that the attribute cannot hold "
                        f"({error})"
                    ) from error

        name = self._check_text(node.graph_name, "graph_name")
        if name is not None and not (name and name.isprintable()):
            raise self._error(
                f"gave the graph_name {name!r:.100}, which is not printable text"
            )
        if name and isinstance(node.partition, GraphPartition):
            self.graph_names[node.partition] = name
        self._check_text(node.doc_string, "doc_string")
        if node.main_context and node.payload is None:
            raise self._error("gave a node main_context=1 without a payload")
        self._check_shapes(node)
        if node.payload is not None and id(node.payload) not in self.payloads.writers:
            raise self._error(
                "gave a payload that did not come from this call's writer"
            )
        return node

    def _check_shapes(self, node: EPContextNode) -> None:
        partition: Any = node.partition
        shapes = to_plain(node.shapes)
        if type(shapes) is not dict:
            raise self._error(
                f"gave a {type(shapes).__name__} instead of a mapping as shapes"
            )
        for name, value in shapes.items():
            shape = to_plain(value)
            if name not in {*partition.input_names, *partition.output_names}:
                fault = f"which is not at the boundary of {partition.name}"
            elif type(shape) is not list or not all(
                type(n) is int and n >= 0 for n in shape
            ):
                fault = "which is not a list of static lengths"
            else:
                proven = ValueInfo(name, partition.graph.types.get_proven(name))
                if not may_have_shape(proven.type, shape):
                    actual = describe_array(proven.dtype, shape)
                    owner = self._choice.record
                    raise make_mismatch_error(owner, proven, actual, HOOK)
                self.shapes[name] = shape
                continue
            raise self._error(f"gave the shape {shape!r:.80} for {name!r:.80}, {fault}")

    def _check_text(self, value: Any, field_name: str) -> str | None:
        if value is None:
            return None
        return self._choice.check_text(HOOK, value, field_name)

    def _error(self, problem: str) -> PluginError:
        return contract_error(self._choice.record, HOOK, problem)


def check_written(choice: ProviderChoice, payloads: PayloadSet) -> None:
    """Raise PluginError if an EP wrote nothing into a payload that is to be final."""
    for writer in payloads.writers.values():
        # A load takes an empty file for one that was lost.
        if payloads.final and not writer.size:
            problem = f"wrote nothing into the payload {writer.name!r}"
            raise contract_error(choice.record, HOOK, problem)


def _staying_names(part: GraphAssignment) -> Iterator[str]:
    """Yield the names of the nodes outside of partitions, at any depth."""
    compiled = {
        index for partition in part.partitions for index in partition.node_indices
    }
    for index in range(len(part.graph.nodes)):
        if index not in compiled:
            yield part.graph.names[index]
            for subgraph in part.subgraphs.get(index, {}).values():
                yield from _staying_names(subgraph)


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
        for name in (_staying_names(assignment.main) if starts else ())
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
    used = {p.node_name for p in assignment.partitions}
    used.update(_staying_names(assignment.main))
    names = {}
    for partition, graph_name in graph_names.items():
        is_free = not partition.prefix and graph_name not in used
        node_name = graph_name if is_free else partition.name
        names[partition] = graph_name, node_name
        used.add(node_name)
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
        model: the source; its EPContext nodes are of an earlier compile.
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
        node = model.graph_of(record).nodes[record.index]
        form = strip_number(str(get_metadata(node, PARTITION) or record.name))
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
