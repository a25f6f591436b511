"""Context model of a compile: EPs describe their nodes, which are checked and spliced
in, and the metadata is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from epctx_core.compiling.initializers import check_size, place_initializers
from epctx_core.compiling.provenance import PassThrough, add_metadata
from epctx_core.context.kernel_types import write_kernel_types
from epctx_core.context.named_files import (
    SOURCE_MODEL,
    read_dependencies,
    write_dependencies,
)
from epctx_core.context.node import check_attribute
from epctx_core.context.node_writer import (
    Embeddable,
    SerializedModel,
    embed,
    make_context_node,
)
from epctx_core.context.payload_writer import PayloadSet, PayloadWriter
from epctx_core.context.weightless import (
    FILE_ATTRIBUTE,
    SourceReferences,
    list_source_files,
)
from epctx_core.context.weights_folder import strip_seal
from epctx_core.engines.matching import find_operator_types
from epctx_core.errors import InvalidGraph, PluginError
from epctx_core.graph.extraction import GraphPartition
from epctx_core.graph.index import Node
from epctx_core.graph.splice import (
    PARTITION,
    NodeDraft,
    Replacement,
    declare_shapes,
    replace_subgraphs,
    splice,
    splice_graph,
)  # fmt: skip
from epctx_core.graph.type_table import may_have_shape
from epctx_core.graph.weights import compute_digests_ahead
from epctx_core.plugin import (
    CORE_ATTRIBUTES,
    EPContextNode,
    OperatorTypes,
    TensorView,
    ValueInfo,
)
from epctx_core.registry.guard import blame, contract_error, to_plain
from epctx_core.sessions.plan import make_shape_error

if TYPE_CHECKING:
    from epctx_core.compiling.compile import Compile
    from epctx_core.compiling.destination import Outputs
    from epctx_core.context.manifest import PayloadEntry
    from epctx_core.sessions.assignment import Assignment, GraphAssignment
    from epctx_core.sessions.providers import ProviderChoice
    from epctx_core.sessions.source import OpenModel

GraphsByModel: TypeAlias = "Mapping[str, tuple[Mapping[str, str], ...]]"
"""EP name to its partitions in each model of a share group: their names, and those of
their graphs in the payload.
"""

NO_GRAPHS: GraphsByModel = {}

_HOOK = "get_ep_context_nodes"


def list_remaining_operators(assignment: Assignment) -> Iterator[OperatorTypes]:
    """Yield a description of each operator outside of partitions, from EPs or from the
    model's own metadata.

    EPs come before the model, in order of priority.
    """
    tables = [
        *(matcher.own for matcher in assignment.matchers.values()),
        assignment.carried,
    ]
    if not any(tables):
        return
    first: dict[tuple[str, str], Node] = {}
    for part, index in _iterate_remaining(assignment.main):
        node = Node(part.graph, index)
        first.setdefault((node.domain, node.op_type), node)
    for operators in tables:
        yield from filter(
            None, (find_operator_types(operators, node) for node in first.values())
        )


def _iterate_remaining(part: GraphAssignment) -> Iterator[tuple[GraphAssignment, int]]:
    """Yield the nodes outside of partitions, at any depth."""
    compiled = set(
        chain.from_iterable(partition.node_indices for partition in part.partitions)
    )
    for index in range(len(part.graph.nodes)):
        if index not in compiled:
            yield part, index
            for subgraph in part.subgraphs.get(index, {}).values():
                yield from _iterate_remaining(subgraph)


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
    staying = (
        part.graph.names[index] for part, index in _iterate_remaining(assignment.main)
    )
    suspects = [name for name in staying if name.startswith(starts)] if starts else []
    names = (
        {partition.name for partition in assignment.partitions} if suspects else set()
    )
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


@dataclass(frozen=True, kw_only=True)
class ContextModel:
    """A context model, not yet written.

    Attributes:
        proto: the model.
        payloads: one entry for each payload; those not embedded were written to their
            sinks.
        written: `ep_cache_context` of a primary to the payload that EPs wrote now.
        contents: marker in `proto` to the bytes of the embedded payload or weight.
        initializers: entry of the file for initializers, None without one.
        named_files: files in which the host put initializers itself.
        source_files: files of the source in which payloads leave weights.
        source_tensors: those weights, by their names there.
        pending: names of the payloads that its share group writes at its end.
        to_read: names of the nodes that EPs read back: a primary for each payload, and
            one node for each form of partition. A model of many equal layers has as
            many nodes of one form, which only their names tell apart; those whose
            graphs their EP named are all read. Nodes that the source has already are
            not among them.
    """

    proto: ModelProto
    payloads: tuple[PayloadEntry, ...]
    written: Mapping[bytes, PayloadWriter]
    contents: Mapping[bytes, Embeddable]
    initializers: PayloadEntry | None
    named_files: tuple[str, ...]
    source_files: tuple[str, ...] = ()
    source_tensors: Mapping[str, TensorView] = field(default_factory=dict)
    pending: tuple[str, ...] = ()
    to_read: frozenset[str] = frozenset()

    def serialize(self, *, embedded: bool) -> SerializedModel:
        """Return the bytes; the same model gives the same bytes.

        Args:
            embedded: whether payloads are stored in the model.

        Raises:
            Fail: it is larger than a protobuf can be.
        """
        # To ask for the size alone would serialise it once more.
        data = embed(self.proto.SerializeToString(deterministic=True), self.contents)
        check_size(data.size, embedded=embedded)
        return data

    @property
    def digests(self) -> dict[str, str]:
        """The root digest (hex) of each file that was written, as a load checks it; by
        the name of the file.
        """
        files = {
            entry.name: entry.root for entry in self.payloads if not entry.embedded
        }
        if self.initializers is not None:
            files[self.initializers.name] = strip_seal(self.initializers).root
        return files


def make_context_model(
    compile_: Compile, outputs: Outputs, earlier: GraphsByModel
) -> ContextModel:
    """Return the context model of a compile whose partitions were compiled.

    Args:
        compile_: the compile.
        outputs: outputs for the payloads.
        earlier: graphs of the share group's models before this one.

    Raises:
        PluginError: an EP describes its nodes wrongly.
        Fail, InvalidArgument: see `place_initializers`.
    """
    work, existing = compile_.work, compile_.existing
    source, assignment = work.model.source, work.assignment
    choices = [c for c in work.providers.choices.values() if assignment.of(c.name)]
    parts = [ProviderPart(compile_, choice, outputs, earlier) for choice in choices]
    entries = [entry for part in parts for entry in part.entries]
    writers = [writer for part in parts for writer in part.payloads.writers.values()]
    inside = {
        mark: view
        for writer in writers
        for mark, view in writer.get_embedded_bytes().items()
    }
    used = {
        name: r for part in parts for name, r in part.payloads.references.used.items()
    }
    proto = _place_nodes(compile_, parts)
    # Without `final` nothing was written: an entry has only the payload's name.
    pending = () if outputs.final else tuple(entry.name for entry in entries)
    entries = [] if pending else entries
    contents, initializers, named_files = place_initializers(
        proto,
        source.weights,
        outputs.destination.placement,
        outputs.create,
        outputs.destination.folder,
    )
    if parts or existing.records:
        write_dependencies(
            proto,
            source_model=bool(used) or _depends_on_source(existing, proto),
            external_weights=bool(initializers or named_files),
            context_binary=not outputs.embedded,
        )
        texts = {part.ep: part.compatibility_info for part in parts}
        add_metadata(
            proto, compile_, [*existing.entries, *entries], used, pending, texts
        )
        write_kernel_types(proto, list_remaining_operators(assignment))
    return ContextModel(
        proto=proto,
        payloads=(*existing.written, *entries),
        written={
            writer.get_cache_value(): writer for writer in writers if outputs.final
        },
        contents={**existing.contents, **inside, **contents},
        initializers=initializers,
        named_files=named_files,
        source_files=list_source_files(
            used.values(), () if source.path is None else (source.path.name,)
        ),
        source_tensors={
            n: t for part in parts for n, t in part.payloads.references.tensors.items()
        },
        pending=pending,
        to_read=frozenset(name for part in parts for name in part.to_read),
    )


def _place_nodes(compile_: Compile, parts: Sequence[ProviderPart]) -> ModelProto:
    """Return the model with EPContext nodes in the places of partitions, and the shapes
    that EPs compiled for.
    """
    main, model = compile_.work.assignment.main, compile_.work.model
    nodes = {
        partition: node for part in parts for partition, node in part.nodes.items()
    }
    taken = _make_replacements(main, nodes, compile_.existing)
    proto = splice(model.source.proto, model.graph, main.execution_order(), taken)

    declare_shapes(
        proto.graph,
        {name: shape for part in parts for name, shape in part.shapes.items()},
    )
    return proto


def _depends_on_source(existing: PassThrough, proto: ModelProto) -> bool:
    """Return whether payloads of an earlier compile left weights in a source model."""
    if existing.manifest and existing.manifest.source_weights:
        return True
    # Of other compilers' payloads only the model itself says so.
    return bool(existing.records) and SOURCE_MODEL in (read_dependencies(proto) or ())


class ProviderPart:
    """Part of one EP in a context model: the payloads that it writes, and the nodes
    that it describes, checked.

    Args:
        compile_: the compile.
        choice: the EP.
        outputs: outputs for the payloads.
        earlier: graphs of the share group's models before this one.

    Attributes:
        ep: its name.
        compatibility_info: the text that its nodes have in common, or None.
        payloads: payloads that it wrote.
        nodes: partition to its EPContext node.
        entries: of the payloads; of several, each with the nodes that refer to it.
        to_read: see `ContextModel`.
        shapes: by name, those for which it compiled.
    """

    def __init__(
        self,
        compile_: Compile,
        choice: ProviderChoice,
        outputs: Outputs,
        earlier: GraphsByModel,
    ) -> None:
        self._choice = choice
        self.ep = choice.name
        self.compatibility_info: str | None = None
        work = compile_.work
        self._partitions = partitions = work.assignment.of(choice.name)
        # EPs give many nodes one mapping: each is looked at once.
        self._checked: set[int] = set()
        self.nodes: dict[GraphPartition, Replacement] = {}
        self.entries: list[PayloadEntry] = []
        self.to_read: list[str] = []
        self.shapes: dict[str, Sequence[int]] = {}
        source = work.model.source
        with compute_digests_ahead(
            weight for p in partitions for weight in p.weights.values()
        ):
            # A partition's name has the digests of its weights.
            graphs = (
                *map(tuple, earlier.get(choice.name, ())),
                tuple(p.name for p in partitions),
            )
            references = SourceReferences(work.providers.weightless, source.locations)
            self.payloads = _make_payload_set(choice, outputs, graphs, references)
            with (
                work.providers.instances.calling(
                    choice.name, _HOOK, writer=self.payloads.handle
                ) as results,
                # Reading attributes and flags runs the EP's code.
                blame(choice.record, _HOOK),
            ):
                described = self._sort_nodes(results)
            self._name_nodes(work.assignment)
            file = (
                source.path.name
                if references.used and source.path is not None
                else None
            )
            names = self._make_nodes(
                described, {} if file is None else {FILE_ATTRIBUTE: file}
            )
        if len(self.entries) == 1 and compile_.existing.records:
            # The model may have others of an earlier compile.
            self.entries = [replace(self.entries[0], references=names)]
        self._check_graph_names(work.model, earlier.get(choice.name, ()))

    def _name_nodes(self, assignment: Assignment) -> None:
        """Give nodes the names of their graphs, unless the host wants a prefix or a
        name is taken, by another EP's too.
        """
        stated = [p for p in self._partitions if p.stated_name and not p.prefix]
        remaining = _iterate_remaining(assignment.main) if stated else ()
        taken = {p.node_name for p in assignment.partitions} if stated else set()
        taken.update(part.graph.names[index] for part, index in remaining)
        for partition in stated:
            if partition.stated_name not in taken:
                partition.stated_node_name = partition.stated_name
                taken.add(partition.stated_name)

    def _check_graph_names(
        self, model: OpenModel, earlier: Sequence[Mapping[str, str]]
    ) -> None:
        """Check that the names that the EP gave its graphs are unique; see
        `EPContextNode.graph_name`.

        Args:
            model: the source, whose EPContext nodes are of an earlier compile.
            earlier: for each earlier model of the share group, the names of partitions
                and of their graphs.

        Raises:
            PluginError: two partitions that are not equal got one name.
            InvalidGraph: a node of an earlier compile has it, and is of another
                partition.
        """
        if not any(partition.stated_name for partition in self._partitions):
            return
        forms: dict[str, str] = {}
        for graphs in (
            *earlier,
            {partition.name: partition.graph_name for partition in self._partitions},
        ):
            for name, graph_name in graphs.items():
                if forms.setdefault(graph_name, strip_number(name)) != strip_number(
                    name
                ):
                    problem = (
                        f"gave {name} the graph_name {graph_name!r}, which another "
                        "partition has"
                    )
                    raise self._error(problem)
        choice = self._choice
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

    def _sort_nodes(self, described: Sequence[EPContextNode]) -> list[EPContextNode]:
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
        found = {
            id(node.payload)
            for node in ordered
            if node.payload is not None and node.main_context
        }
        for key, writer in self.payloads.writers.items():
            if key not in found:
                problem = (
                    f"wrote the payload {writer.name!r}, which no node carries with "
                    "main_context=1"
                )
                raise self._error(problem)
            if self.payloads.final and not writer.size:
                # A load takes an empty file for one that was lost.
                raise self._error(f"wrote nothing into the payload {writer.name!r}")
        if not found:
            raise self._error(
                "gave no node a payload, so that nothing could be loaded again"
            )
        texts = {
            self._check_text(node.compatibility_info, "compatibility_info")
            for node in ordered
        }
        if len(texts) > 1:
            shown = " and ".join(sorted(f"{text!r:.80}" for text in texts)[:2])
            raise self._error(
                "gave nodes of one model different texts as compatibility_info: "
                f"{shown}"
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
                    problem = (
                        f"set {key!r} to a value that the attribute cannot hold "
                        f"({error})"
                    )
                    raise self._error(problem) from error
        name = self._check_text(node.graph_name, "graph_name")
        if name is not None and not (name and name.isprintable()):
            raise self._error(
                f"gave the graph_name {name!r:.100}, which is not printable text"
            )
        if isinstance(node.partition, GraphPartition):
            node.partition.stated_name = name or ""
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
                    raise make_shape_error(self._choice.record, proven, shape, _HOOK)
                self.shapes[name] = shape
                continue
            raise self._error(f"gave the shape {shape!r:.80} for {name!r:.80}, {fault}")

    def _check_text(self, value: Any, field_name: str) -> str | None:
        text = to_plain(value)
        if text is not None and type(text) is not str:
            raise self._error(
                f"gave a {type(text).__name__} instead of a text as {field_name}"
            )
        if text is not None and text.encode(errors="ignore").decode() != text:
            raise self._error(
                f"gave {text!r:.80} as {field_name}, which UTF-8 cannot represent"
            )
        return text

    def _error(self, problem: str) -> PluginError:
        return contract_error(self._choice.record, _HOOK, problem)

    def _make_nodes(
        self, described: Sequence[EPContextNode], common: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Make the EPContext nodes and the payloads' entries; return the names of nodes
        that refer to a payload.

        `common` holds attributes of all nodes.
        """
        references: list[str] = []
        ep, writers = self._choice.name, self.payloads.writers
        embedded = any(writer.embedded for writer in writers.values())
        # A load finds a payload through nodes with main_context=1: the first of them
        # carries it where it is embedded.
        carriers = {
            id(d.payload): d
            for d in reversed(described)
            if d.payload is not None and d.main_context
        }
        users: dict[int, list[str]] = {
            id(d.payload): [] for d in described if d.payload is not None
        }
        make = partial(make_context_node, source=ep, embed_mode=embedded)
        templates: dict[tuple[int, str, bool, bytes | None], NodeProto] = {}
        forms: set[str] = set()
        carried: set[bytes | None] = set()
        for node in described:
            partition: Any = node.partition
            main, cache = bool(node.main_context), None
            if node.payload is not None:
                cache = writers[id(node.payload)].get_cache_value()
                if embedded and node is not carriers[id(node.payload)]:
                    main, cache = False, None
                if not main:
                    users[id(node.payload)].append(partition.node_name)
            # A graph that its EP named has to be found by just that name.
            is_named = partition.graph_name != partition.name
            if (
                is_named
                or strip_number(partition.name) not in forms
                or (main and cache not in carried)
            ):
                forms.add(strip_number(partition.name))
                carried.add(cache if main else None)
                self.to_read.append(partition.node_name)
            doc = node.doc_string or f"EPContext node for {ep}"
            if not main:
                references.append(partition.node_name)
            # Attributes are few, and an EP gives many nodes the same mapping.
            form = (id(node.attributes), doc, main, cache)
            if form not in templates:
                own = {**node.attributes, **common}
                templates[form] = make(
                    NodeProto(doc_string=doc), own, main_context=main, cache=cache
                )
            self.nodes[partition] = NodeDraft(templates[form], partition)
        for key, names in users.items():
            entry, carrier = (
                writers[key].finish(),
                cast("GraphPartition", carriers[key].partition),
            )
            name = carrier.node_name if entry.embedded else entry.name
            self.entries.append(
                replace(
                    entry, name=name, references=tuple(names) if len(users) > 1 else ()
                )
            )
        return tuple(references)


def write_all_payloads(
    last: Compile, outputs: Outputs, graphs: GraphsByModel
) -> dict[bytes, PayloadWriter]:
    """Have EPs write the payloads of all members of a share group.

    Args:
        last: the group's last member, whose EPs write; it need not have partitions of
            them.
        outputs: where payloads go.
        graphs: the partitions of all members.

    Returns:
        The finished payloads, by the `ep_cache_context` of their primaries.

    Raises:
        PluginError: an EP wrote nothing.
    """
    written: dict[bytes, PayloadWriter] = {}
    for ep, by_model in graphs.items():
        choice = last.work.providers.choices[ep]
        payloads = _make_payload_set(choice, outputs, tuple(map(tuple, by_model)))
        last.work.providers.instances.call(ep, _HOOK, writer=payloads.handle)
        for writer in payloads.writers.values():
            if not writer.size:
                raise contract_error(
                    choice.record,
                    _HOOK,
                    f"wrote nothing into the payload {writer.name!r}",
                )
            writer.finish()
            written[writer.get_cache_value()] = writer
    return written


def _make_payload_set(
    choice: ProviderChoice,
    outputs: Outputs,
    graphs: tuple[tuple[str, ...], ...],
    references: SourceReferences | None = None,
) -> PayloadSet:
    """Return the payload set of one EP."""
    return PayloadSet(
        choice.name,
        file_name=lambda name: outputs.destination.binary_name(
            choice.binary_suffix, name
        ),
        open_sink=outputs.open_payload if outputs.final else None,
        embedded=outputs.embedded,
        graphs_by_model=graphs,
        references=references,
    )


def _make_replacements(
    part: GraphAssignment,
    nodes: Mapping[GraphPartition, Replacement],
    existing: PassThrough,
) -> dict[int, Replacement]:
    """Return the replacements of one graph, by the first node of a group: EPContext
    nodes and rebuilt control flow.
    """
    replacements: dict[int, Replacement] = {
        p.node_indices[0]: nodes[p] for p in part.partitions
    }
    replacements.update(existing.nodes.get(part.graph.path, {}))
    for node in part.executed:
        protos = {name: GraphProto() for name in part.subgraphs[node]}
        for name, subgraph in part.subgraphs[node].items():
            own = _make_replacements(subgraph, nodes, existing)
            splice_graph(protos[name], subgraph.graph, subgraph.execution_order(), own)
        replacements[node] = replace_subgraphs(part.graph.nodes[node], protos)
    return replacements
