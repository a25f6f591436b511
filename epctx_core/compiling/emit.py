"""Makes the context model: asks EPs for their nodes, checks them, splices them in, adds the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from onnx import NodeProto

from epctx_core.compiling.descriptions import Descriptions
from epctx_core.compiling.kernel_operators import staying_operators
from epctx_core.compiling.node_names import check_graph_names, form_of
from epctx_core.compiling.provenance import add_metadata
from epctx_core.compiling.writing.initializers import PlacedInitializers, place_initializers
from epctx_core.compiling.writing.size import check_size
from epctx_core.context.embedding import SerializedModel, embed
from epctx_core.context.initializers_file import Seal
from epctx_core.context.kernel_types import write_kernel_types
from epctx_core.context.named_files import SOURCE_MODEL, state_dependencies, stated_dependencies
from epctx_core.context.node import (
    ContextNodeDraft,
    ContextNodeMaker,
    make_context_node,
)
from epctx_core.context.payloads.writer import PayloadSet, PayloadWriter
from epctx_core.errors import NotImplementedByProvider
from epctx_core.graph.digests import digests_ahead
from epctx_core.graph.splice import splice, splice_body, with_bodies
from epctx_core.plugin.hookspecs import CONTEXT_HOOKS
from epctx_core.registry.guard import contract_broken
from epctx_core.sessions.weightless import SourceLedger

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core.compiling.compile import Compile
    from epctx_core.compiling.passthrough import KeptNodes
    from epctx_core.compiling.writing.outputs import Outputs
    from epctx_core.context.embedding import Embeddable
    from epctx_core.context.manifest import PayloadEntry
    from epctx_core.graph.splice import Replacement
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.plugin import EPContextNode, TensorView
    from epctx_core.sessions.assignment import GraphAssignment
    from epctx_core.sessions.providers import ProviderChoice, ProviderSession
    from epctx_core.sessions.source import OpenModel


GraphsByModel: TypeAlias = "Mapping[str, tuple[Mapping[str, str], ...]]"
"""EP type to its partitions in each model of a share group: their names, and those of their graphs in the payload."""

NO_GRAPHS: GraphsByModel = {}


@dataclass(frozen=True, kw_only=True)
class ContextModel:
    """A context model, not yet written.

    Attributes:
        proto: the model.
        payloads: one entry a payload; those not embedded were written to their sinks.
        written: what a primary's `ep_cache_context` says to what EPs wrote now.
        contents: what stands in `proto` for an embedded payload or a weight, and the bytes.
        initializers: what was written into the file for initializers, None for nothing.
        named_files: the files in which the host put initializers itself.
        kept_files: binaries of nodes that were there already, written or not.
        source_files: the source's files in which payloads leave weights.
        source_tensors: those weights, by their names there.
        pending: names of the payloads that its share group writes at its end.
        to_read: names of the nodes by which EPs read back what they wrote: a primary for each payload, and one node
            for each form of partition. A model of many equal layers has as many nodes of one form, which only
            their names tell apart; those whose graphs their EP named are all read. Nodes that were there already
            are none of them.
    """

    proto: ModelProto
    payloads: tuple[PayloadEntry, ...]
    written: Mapping[bytes, PayloadWriter]
    contents: Mapping[bytes, Embeddable]
    initializers: PayloadEntry | None
    named_files: tuple[str, ...]
    kept_files: tuple[str, ...] = ()
    source_files: tuple[str, ...] = ()
    source_tensors: Mapping[str, TensorView] = field(default_factory=dict)
    pending: tuple[str, ...] = ()
    to_read: frozenset[str] = frozenset()

    def serialized(self, *, embedded: bool) -> SerializedModel:
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
        """The root digest (hex) of each file that was written, as a load checks it; by the name of the file."""
        files = {entry.name: entry.root for entry in self.payloads if not entry.embedded}
        if self.initializers is not None:
            files[self.initializers.name] = Seal.of(self.initializers).digest
        return files


def check_can_export(providers: ProviderSession) -> None:
    """Raise NotImplementedByProvider if an EP can compile but not be saved."""
    for ep in providers.choices:
        # What runs by kernels alone leaves nothing to save.
        for hook in CONTEXT_HOOKS if providers.instances.implements(ep, "compile") else ():
            if not providers.instances.implements(ep, hook):
                raise NotImplementedByProvider(
                    f"{ep} runs models but cannot save what it compiled: it has no {hook} hook.",
                    ep=ep,
                    hint="Leave it out of the compile; it still runs in sessions.",
                )


def make_context_model(
    compile_: Compile, outputs: Outputs, kept: KeptNodes, earlier: GraphsByModel
) -> ContextModel:
    """Return the context model of a compile whose partitions were compiled.

    Args:
        compile_: the compile.
        outputs: where payloads go.
        kept: the EPContext nodes that the model had already.
        earlier: of its share group, the models before this one.

    Raises:
        PluginError: an EP describes its nodes wrongly.
        Fail, InvalidArgument: see `place_initializers`.
    """
    model, assignment, providers = compile_.model, compile_.assignment, compile_.providers
    nodes: dict[GraphPartition, Replacement] = {}
    entries: list[PayloadEntry] = []
    contents: dict[bytes, Embeddable] = dict(kept.contents)
    written: dict[bytes, PayloadWriter] = {}
    ledger = SourceLedger(providers.weightless, model.source)
    for ep, choice in providers.choices.items():
        partitions = assignment.of(ep)
        if not partitions:
            continue
        made, written_now, writers = _taken_down(
            choice, partitions, providers, outputs, ledger, earlier.get(ep, ())
        )
        check_graph_names(model, choice, partitions, earlier.get(ep, ()))
        nodes.update(made)
        entries += _with_references(written_now, made) if kept.exist else written_now
        contents |= {mark: view for w in writers for mark, view in w.embedded_bytes().items()}
        written.update((writer.contents(), writer) for writer in writers if outputs.final)
    proto = _spliced(model, assignment.main, nodes, kept)
    # Without `final` nothing was written: an entry has the payload's name and nothing else.
    pending = () if outputs.final else tuple(entry.name for entry in entries)
    placed = place_initializers(
        proto,
        model.source.weights,
        compile_.request.placement,
        outputs.open_initializers,
        outputs.destination.folder,
    )
    if nodes or kept.exist:
        _state_dependencies(proto, ledger, kept, placed, embedded=outputs.embedded)
        add_metadata(proto, compile_, [] if pending else entries, ledger, kept, pending)
        write_kernel_types(proto, staying_operators(assignment))
    return ContextModel(
        proto=proto,
        payloads=(*kept.written, *([] if pending else entries)),
        written=written,
        contents={**contents, **placed.contents},
        initializers=placed.entry,
        named_files=tuple(placed.named),
        kept_files=tuple(kept.files),
        source_files=ledger.files,
        source_tensors=ledger.tensors,
        pending=pending,
        to_read=frozenset(_names_to_read(nodes)),
    )


def _names_to_read(nodes: Mapping[GraphPartition, Replacement]) -> Iterator[str]:
    forms: set[str] = set()
    carried: set[bytes] = set()
    for partition, node in nodes.items():
        name, form = partition.name, form_of(partition.name)
        payload = _payload_of_primary(node) if isinstance(node, NodeProto) else b""
        # A graph that its EP named has to be found by just that name.
        if form not in forms or (payload and payload not in carried) or partition.graph_name != name:
            forms.add(form)
            carried.add(payload)
            yield name


def _payload_of_primary(node: NodeProto) -> bytes:
    """Return what a primary says of its payload; nothing for another node."""
    said = {a.name: a for a in node.attribute if a.name in {"main_context", "ep_cache_context"}}
    return said["ep_cache_context"].s if len(said) > 1 and said["main_context"].i else b""


def _state_dependencies(
    proto: ModelProto, ledger: SourceLedger, kept: KeptNodes, placed: PlacedInitializers, *, embedded: bool
) -> None:
    """Write what a context model needs besides its file, for all its nodes, those that pass through included."""
    # Payloads of others may have left weights in their source, too; the model says it, and nothing else does.
    source = kept.exist and SOURCE_MODEL in (stated_dependencies(proto) or ())
    source = source or bool(kept.manifest and kept.manifest.source_weights)
    state_dependencies(
        proto,
        source_model=source or bool(ledger.weights),
        external_weights=placed.entry is not None or bool(placed.named),
        context_binary=not embedded,
    )


def _taken_down(
    choice: ProviderChoice,
    partitions: Sequence[GraphPartition],
    providers: ProviderSession,
    outputs: Outputs,
    ledger: SourceLedger,
    earlier: tuple[Mapping[str, str], ...],
) -> tuple[dict[GraphPartition, Replacement], list[PayloadEntry], Iterable[PayloadWriter]]:
    """Have an EP write its payloads; return what stands for its partitions, the entries, and the writers."""
    ep = choice.name
    with digests_ahead(weight for p in partitions for weight in p.weights.values()):
        # A partition's name has the digests of its weights.
        graphs = (*map(tuple, earlier), tuple(p.name for p in partitions))
        payloads = _payload_set(choice, outputs, ledger, graphs)
        described = providers.instances.call(ep, "get_ep_context_nodes", writer=payloads.handle)
        ordered = Descriptions(choice, partitions, payloads).check(described)
        common = ledger.close_ep(payloads.references)
        made, entries = _context_nodes(ep, ordered, payloads.writers, common)
    return made, entries, payloads.writers.values()


def write_shared_payloads(
    choice: ProviderChoice,
    providers: ProviderSession,
    outputs: Outputs,
    graphs: tuple[Mapping[str, str], ...],
) -> list[PayloadWriter]:
    """Have an EP write what it keeps of all members of a share group; return the payloads, finished.

    Args:
        choice: the EP.
        providers: those of the group's last member, which need not have partitions of it.
        outputs: where payloads go.
        graphs: its partitions in each member.

    Raises:
        PluginError: the EP wrote nothing.
    """
    payloads = _payload_set(choice, outputs, None, tuple(map(tuple, graphs)))
    providers.instances.call(choice.name, "get_ep_context_nodes", writer=payloads.handle)
    for writer in payloads.writers.values():
        if not writer.size:
            raise contract_broken(
                choice.record, "get_ep_context_nodes", f"wrote nothing into the payload {writer.name!r}"
            )
        writer.finish()
    return list(payloads.writers.values())


def _payload_set(
    choice: ProviderChoice,
    outputs: Outputs,
    ledger: SourceLedger | None,
    graphs: tuple[tuple[str, ...], ...],
) -> PayloadSet:
    """Return what takes one EP's payloads."""
    return PayloadSet(
        choice.name,
        file_name=lambda name: outputs.payload_name(choice.binary_suffix, name),
        open_sink=outputs.open_payload if outputs.final else None,
        embedded=outputs.embedded,
        graphs_by_model=graphs,
        references=None if ledger is None else ledger.of_ep(),
    )


def _with_references(
    entries: Sequence[PayloadEntry], nodes: Mapping[GraphPartition, Replacement]
) -> Sequence[PayloadEntry]:
    """Say of an EP's only payload which nodes refer to it: the model may have others of an earlier compile."""
    if len(entries) != 1:
        return entries
    names = tuple(p.name for p, node in nodes.items() if isinstance(node, ContextNodeDraft))
    return [replace(entries[0], references=names)]


def _spliced(
    model: OpenModel, main: GraphAssignment, nodes: Mapping[GraphPartition, Replacement], kept: KeptNodes
) -> ModelProto:
    """Return the model with EPContext nodes in the place of partitions."""
    order = main.partitioner.execution_order()
    return splice(model.source.proto, model.graph, order, _replacements(main, nodes, kept))


def _replacements(
    part: GraphAssignment, nodes: Mapping[GraphPartition, Replacement], kept: KeptNodes
) -> dict[int, Replacement]:
    """Return first node of a group to what takes its place in one graph: EPContext nodes, rebuilt control flow."""
    replacements: dict[int, Replacement] = {
        partition.node_indices[0]: nodes[partition] for partition in part.partitions
    }
    replacements.update(kept.nodes.get(part.graph.path, {}))
    for node in part.executed:
        bodies = {
            name: splice_body(
                body.graph, body.partitioner.execution_order(), _replacements(body, nodes, kept)
            )
            for name, body in part.bodies[node].items()
        }
        replacements[node] = with_bodies(part.graph.nodes[node], bodies)
    return replacements


def _context_nodes(
    ep: str,
    described: Sequence[EPContextNode],
    writers: Mapping[int, PayloadWriter],
    common: Mapping[str, Any],
) -> tuple[dict[GraphPartition, Replacement], list[PayloadEntry]]:
    """Return a partition's EPContext node, and the entries of the payloads."""
    # A load finds a payload through nodes with main_context=1: the first of them carries it where it is embedded.
    carriers = {id(d.payload): d for d in reversed(described) if d.payload is not None and d.main_context}
    nodes: dict[GraphPartition, Replacement] = {}
    embedded = any(writer.embedded for writer in writers.values())
    maker = ContextNodeMaker(ep, embed_mode=embedded, common=common)
    standard_doc = f"EPContext node for {ep}"
    for description in described:
        partition: Any = description.partition
        main, cache = bool(description.main_context), None
        if description.payload is not None:
            cache = writers[id(description.payload)].contents()
            if embedded and description is not carriers[id(description.payload)]:
                main, cache = False, None
        doc = description.doc_string or standard_doc
        if not main and cache is None:
            nodes[partition] = maker.reference(partition, description.attributes, doc)
            continue
        nodes[partition] = make_context_node(
            NodeProto(
                name=partition.name,
                input=partition.input_names,
                output=partition.output_names,
                doc_string=doc,
            ),
            {**description.attributes, **common, "partition_name": partition.graph_name},
            source=ep,
            main_context=main,
            embed_mode=embedded,
            cache=cache,
        )
    return nodes, _payload_entries(described, writers, carriers)


def _payload_entries(
    described: Sequence[EPContextNode],
    writers: Mapping[int, PayloadWriter],
    carriers: Mapping[int, EPContextNode],
) -> list[PayloadEntry]:
    """Return the entries of one EP's payloads; of several, each with the nodes that refer to it."""
    nodes: dict[int, list[EPContextNode]] = {}
    for description in described:
        if description.payload is not None:
            nodes.setdefault(id(description.payload), []).append(description)
    entries = []
    for key, own in nodes.items():
        entry, carrier = writers[key].finish(), carriers[key]
        others = [
            d.partition.name for d in own if not d.main_context or (entry.embedded and d is not carrier)
        ]
        name = carrier.partition.name if entry.embedded else entry.name
        entries.append(replace(entry, name=name, references=tuple(others) if len(nodes) > 1 else ()))
    return entries
