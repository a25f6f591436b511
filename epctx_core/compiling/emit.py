"""Context model of a compile: EPs describe their nodes, which are checked and spliced
in, and the metadata is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from epctx_core.compiling.descriptions import (
    HOOK,
    Descriptions,
    check_graph_names,
    name_partitions,
    strip_number,
)
from epctx_core.compiling.initializers import check_size, place_initializers
from epctx_core.compiling.provenance import add_manifest, describe_providers
from epctx_core.context.dependencies import (
    CONTEXT_BINARY,
    EXTERNAL_WEIGHTS,
    SOURCE_MODEL,
    read_dependencies,
    write_dependencies,
)
from epctx_core.context.manifest import NO_MANIFEST, Manifest
from epctx_core.context.metadata import set_metadata
from epctx_core.context.node import make_context_node
from epctx_core.context.payload_writer import (
    Embeddable,
    PayloadSet,
    PayloadWriter,
    SerializedModel,
    embed,
)
from epctx_core.frozen import dataclass
from epctx_core.graph.splice import (
    SOURCE_NODES,
    NodeDraft,
    Replacement,
    declare_shapes,
    replace_subgraphs,
    splice,
    splice_graph,
)  # fmt: skip
from epctx_core.graph.weights import compute_digests_ahead
from epctx_core.plugin.protos import GraphProto, ModelProto, NodeProto
from epctx_core.registry.guard import blame

if TYPE_CHECKING:
    from epctx_core.compiling.destination import Outputs
    from epctx_core.compiling.pass_through import PassThrough
    from epctx_core.context.digests import PayloadEntry
    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.plugin import EPContextNode, TensorView
    from epctx_core.sessions.assignment import GraphAssignment
    from epctx_core.sessions.routing import ProviderChoice
    from epctx_core.sessions.stage_values import Assigned
    from epctx_core.sessions.stages import ModelFacts


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
        source_files: files of the source model that a load needs.
        left: weights that payloads leave there, by their names.
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
    source_files: tuple[str, ...]
    left: Mapping[str, TensorView]
    pending: tuple[str, ...]
    to_read: frozenset[str]

    def serialize(self) -> SerializedModel:
        """Return the bytes; the same model gives the same bytes.

        Raises:
            Fail: it is larger than a protobuf can be.
        """
        # To ask for the size alone would serialise it once more.
        data = embed(self.proto.SerializeToString(deterministic=True), self.contents)
        check_size(data.size)
        return data


def make_context_model(
    work: Assigned, existing: PassThrough, outputs: Outputs
) -> ContextModel:
    """Return the context model of a compile from its compiled partitions.

    Args:
        work: the partitions, compiled.
        existing: the EPContext nodes that the source has already.
        outputs: outputs for the payloads.

    Raises:
        PluginError: an EP describes its nodes wrongly.
        Fail, InvalidArgument: see `place_initializers`.
    """
    source = work.model.source
    parts = [
        _describe(work, choice, outputs)
        for choice in work.providers.choices.values()
        if work.assignment.of(choice.name)
    ]
    facts = _make_nodes(work, existing, parts)

    written: dict[bytes, PayloadWriter] = {}
    left: dict[str, TensorView] = {}
    contents = dict[bytes, Embeddable](existing.contents)
    for part in parts:
        left |= part.payloads.left
        for writer in part.payloads.writers.values():
            contents |= writer.get_embedded_bytes()
            written[writer.get_cache_value()] = writer

    proto = _place_nodes(work, existing, parts)

    entries = [entry for part in parts for entry in part.entries]
    # Without `final` nothing was written: an entry has only the payload's name.
    pending = () if outputs.final else tuple(entry.name for entry in entries)
    entries = [] if pending else entries

    destination = outputs.destination
    placed, initializers, named_files = place_initializers(
        proto, source.weights, destination.placement, outputs.create, destination.folder
    )

    if parts or existing.records:
        # Of other compilers' payloads only the model itself says what they left there.
        stated = read_dependencies(proto) if existing.records else None
        new = Manifest(
            source_digest=source.digest,
            providers={},
            payloads=[*existing.entries, *entries],
            parts=facts.parts,
            pending=pending,
        )
        needed = {
            SOURCE_MODEL: new.source_weights or SOURCE_MODEL in (stated or ()),
            EXTERNAL_WEIGHTS: initializers or named_files,
            CONTEXT_BINARY: not outputs.embedded,
        }
        write_dependencies(proto, filter(needed.get, needed))
        texts = {part.ep: part.descriptions.compatibility_info for part in parts}
        providers = describe_providers(proto, work, existing, texts)
        add_manifest(proto, work, existing, replace(new, providers=providers))
        for key, text in facts.metadata.items():
            set_metadata(proto, key, text)

    return ContextModel(
        proto=proto,
        payloads=(*existing.written, *entries),
        written=written,
        contents=contents | placed,
        initializers=initializers,
        named_files=named_files,
        source_files=tuple(facts.files),
        left=left,
        pending=pending,
        to_read=frozenset(name for part in parts for name in part.to_read),
    )


def _make_nodes(
    work: Assigned, existing: PassThrough, parts: Sequence[ProviderPart]
) -> ModelFacts:
    """Make the nodes of all EPs and write their payloads; return what features say
    about the model.
    """
    stated = existing.manifest or NO_MANIFEST
    left = {part.ep: part.payloads.left for part in parts}
    facts = work.stages.describe_model(work, work.model.source, stated, left)
    for part in parts:
        part.make_nodes(facts.attributes.get(part.ep, {}))
        part.make_entries(is_only=not existing.records)
    return facts


def _place_nodes(
    work: Assigned, existing: PassThrough, parts: Sequence[ProviderPart]
) -> ModelProto:
    """Return the model with EPContext nodes in the places of partitions, and the shapes
    that EPs compiled for.
    """
    main = work.assignment.main
    nodes: dict[GraphPartition, Replacement] = {}
    for part in parts:
        nodes |= part.nodes
    proto = splice(
        work.model.source.proto,
        main.graph,
        main.written_order(),
        _make_replacements(main, nodes, existing),
    )
    for part in parts:
        declare_shapes(proto.graph, part.descriptions.shapes)
    return proto


class ProviderPart:
    """Part of one EP in a context model: its nodes, and which of them carry or use each
    payload.

    Args:
        ep: its name.
        descriptions: what it says of its nodes.
        described: the same for each node, checked.

    Attributes:
        payloads: its payloads.
        nodes: partition to its EPContext node.
        entries: of the payloads; of several, each with the nodes that refer to it.
        to_read: see `ContextModel`.
    """

    def __init__(
        self,
        ep: str,
        descriptions: Descriptions,
        described: Sequence[EPContextNode],
    ) -> None:
        self.ep = ep
        self.descriptions = descriptions
        self._described = described
        self.payloads = descriptions.payloads
        self._writers = descriptions.payloads.writers
        self.nodes: dict[GraphPartition, Replacement] = {}
        self.entries: list[PayloadEntry] = []
        self.to_read: list[str] = []
        self._references: list[str] = []
        # Both by the payload's identity.
        self._carriers: dict[int, GraphPartition] = {}
        self._users: dict[int, list[str]] = {}
        self._templates: dict[
            tuple[int, str, bool, bytes | None], tuple[NodeProto, int]
        ] = {}
        self._forms: set[str] = set()
        self._carried: set[bytes | None] = set()

    def make_nodes(self, common: Mapping[str, str]) -> None:
        """Make the nodes of all partitions.

        Args:
            common: further attributes of each.
        """
        for description in self._described:
            self._add(description, common)

    def _add(self, description: EPContextNode, common: Mapping[str, str]) -> None:
        """Make the node of one partition."""
        partition: Any = description.partition
        main = bool(description.main_context)
        cache = None
        key = id(description.payload)
        if description.payload is not None:
            users = self._users.setdefault(key, [])
            cache = self._writers[key].get_cache_value()
            # A load finds a payload through nodes with main_context=1: the first of
            # them carries it where it is embedded.
            carries = main and self._carriers.setdefault(key, partition) is partition
            if self.payloads.embedded and not carries:
                main = False
                cache = None
            if not main:
                users.append(partition.node_name)

        if not main:
            self._references.append(partition.node_name)

        # A graph that its EP named has to be found by just that name.
        form = strip_number(partition.name)
        is_named = partition.graph_name != partition.name
        if is_named or form not in self._forms or (main and cache not in self._carried):
            self._forms.add(form)
            self._carried.add(cache if main else None)
            self.to_read.append(partition.node_name)
        template = self._find_template(description, common, main, cache)
        self.nodes[partition] = NodeDraft(*template, partition)

    def _find_template(
        self,
        description: EPContextNode,
        common: Mapping[str, str],
        main: bool,
        cache: bytes | None,
    ) -> tuple[NodeProto, int]:
        """Return the node without what differs between equal ones, and the index of its
        `partition_name`: attributes are few, and an EP gives many nodes the same
        mapping.
        """
        doc = description.doc_string or f"EPContext node for {self.ep}"
        key = (id(description.attributes), doc, main, cache)
        if key not in self._templates:
            template = make_context_node(
                NodeProto(doc_string=doc),
                {**description.attributes, **common},
                source=self.ep,
                main_context=main,
                embed_mode=self.payloads.embedded,
                cache=cache,
            )
            template.metadata_props.add(key=SOURCE_NODES)
            names = [attribute.name for attribute in template.attribute]
            self._templates[key] = template, names.index("partition_name")
        return self._templates[key]

    def make_entries(self, *, is_only: bool) -> None:
        """Make the entries of the payloads, with the nodes that refer to each where the
        model has several.

        Args:
            is_only: whether no other compile wrote payloads of the model.
        """
        for key, names in self._users.items():
            entry = self._writers[key].make_entry()
            name = self._carriers[key].node_name if entry.embedded else entry.name
            references = tuple(names) if len(self._users) > 1 else ()
            self.entries.append(replace(entry, name=name, references=references))
        if len(self.entries) == 1 and not is_only:
            references = tuple(self._references)
            self.entries = [replace(self.entries[0], references=references)]


def _describe(
    work: Assigned,
    choice: ProviderChoice,
    outputs: Outputs,
) -> ProviderPart:
    """Have an EP write its payloads and describe its nodes.

    Args:
        work: the partitions and the live EPs.
        choice: the EP.
        outputs: outputs for the payloads.
    """
    partitions = work.assignment.of(choice.name)
    before = outputs.earlier.get(choice.name, ())
    with compute_digests_ahead(
        weight for p in partitions for weight in p.weights.values()
    ):
        # A partition's name has the digests of its weights.
        graphs = (*map(tuple, before), tuple(p.name for p in partitions))
        leave = make_weight_filter(work)
        payloads = make_payload_set(choice, outputs, graphs, leave)
        descriptions = Descriptions(choice, partitions, payloads)
        with (
            work.providers.instances.calling(
                choice.name, HOOK, writer=payloads.handle
            ) as results,
            # Reading attributes and flags runs the EP's code.
            blame(choice.record, HOOK),
        ):
            described = descriptions.check(results)
        names = name_partitions(work.assignment, descriptions.graph_names)
        for partition in partitions:
            partition.given_names = names.get(partition)
        check_graph_names(work.model, choice, partitions, before)

    return ProviderPart(choice.name, descriptions, described)


def make_weight_filter(work: Assigned) -> Callable[[TensorView], str | None]:
    """Return a function that returns the name of a weight that payloads leave in the
    source model, None for any other.
    """
    return partial(work.stages.leave_weight, work, work.model.source)


def make_payload_set(
    choice: ProviderChoice,
    outputs: Outputs,
    graphs: tuple[tuple[str, ...], ...],
    leave: Callable[[TensorView], str | None],
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
        leave=leave,
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
        protos: dict[str, GraphProto] = {}
        for name, subgraph in part.subgraphs[node].items():
            inner = _make_replacements(subgraph, nodes, existing)
            protos[name] = proto = GraphProto()
            splice_graph(proto, subgraph.graph, subgraph.written_order(), inner)
        replacements[node] = replace_subgraphs(part.graph.nodes[node], protos)
    return replacements
