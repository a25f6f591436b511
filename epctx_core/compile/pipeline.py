"""The stages between a model and compiled partitions, and from there to written files.

Sessions and the compiler walk the same way; they differ in purpose, and in whether they write.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from epctx_core.compile.assignment.assign import Assignment, assign
from epctx_core.compile.assignment.limits import PartitionLimits
from epctx_core.compile.emit import ContextModel, GraphsByModel, make_context_model
from epctx_core.compile.providers import Progress, check_compiled, no_progress
from epctx_core.compile.read_back import read_back
from epctx_core.compile.report import OutputFile, Stopwatch, Written
from epctx_core.compile.writing.size import check_size
from epctx_core.context.embedding import SerializedModel, embed
from epctx_core.context.kernel_types import read_kernel_types
from epctx_core.context.receipts import model_receipt, note, note_published
from epctx_core.graph.garbage import collection_paused, collection_resumed

if TYPE_CHECKING:
    from epctx_core.compile.passthrough import PassThrough
    from epctx_core.compile.providers import ProviderSession
    from epctx_core.compile.source import OpenModel
    from epctx_core.compile.writing.initializers import InitializerPlacement
    from epctx_core.compile.writing.outputs import Outputs
    from epctx_core.graph.bodies import BodyPath
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.options import SessionOptions
    from epctx_core.plugin import CompiledPartition, Purpose


@collection_paused()
def assign_nodes(
    model: OpenModel,
    providers: ProviderSession,
    eps: Sequence[str],
    session: SessionOptions,
    watch: Stopwatch,
    *,
    kernels_only: Collection[str] = (),
) -> Assignment:
    """Ask the EPs for their claims; see `assign`. Existing EPContext nodes are nobody's to claim.

    Raises:
        PluginError: an EP's answer breaks the contract.
        InvalidGraph: the model's metadata about operators is damaged.
    """
    session.cancellation.raise_if_requested()
    reserved: dict[BodyPath, list[int]] = {}
    for record in model.context_nodes:
        reserved.setdefault(record.path, []).append(record.index)
    config = session.config()
    limits = PartitionLimits(min_nodes=config.partition_min_nodes, max_count=config.partition_max_count)
    with watch.stage("partition"):
        return assign(
            model.graph,
            providers.instances,
            eps,
            reserved=reserved,
            prefix=config.node_name_prefix,
            limits=limits,
            carried=read_kernel_types(model.source.proto),
            kernels_only=kernels_only,
        )


def compile_partitions(
    assignment: Assignment,
    providers: ProviderSession,
    session: SessionOptions,
    *,
    purpose: Purpose,
    watch: Stopwatch,
    progress: Progress = no_progress,
) -> dict[GraphPartition, CompiledPartition]:
    """Have each EP compile its partitions; return what each became. Progress counts partitions.

    Raises:
        EPFail: an EP raised.
        PluginError: an EP gave back something else than one `CompiledPartition` for each partition.
        ModelLoadCanceled: the host asked to stop.
    """
    compiled: dict[GraphPartition, CompiledPartition] = {}
    with watch.stage("compile"):
        for ep in providers.choices:
            partitions = assignment.of(ep)
            if not partitions:
                continue
            session.cancellation.raise_if_requested()
            progress("compile", len(compiled), len(assignment.partitions))
            with collection_resumed():
                result = providers.instances.call(ep, "compile", partitions=partitions)
            providers.keep(result)
            check_compiled(ep, "compile", result, partitions, providers, purpose)
            compiled.update(zip(partitions, result, strict=True))
            progress("compile", len(compiled), len(assignment.partitions))
    session.cancellation.raise_if_requested()
    return compiled


@collection_paused()
def write_context_model(
    model: OpenModel,
    assignment: Assignment,
    providers: ProviderSession,
    outputs: Outputs,
    placement: InitializerPlacement,
    existing: PassThrough,
    *,
    watch: Stopwatch,
    earlier: GraphsByModel | None = None,
) -> Written:
    """Write the context model and its files, all or none; say what was written. EPs read their payloads back.

    Args:
        earlier: see `make_context_model`.

    Raises:
        Fail: the model exists meanwhile, a file belongs to another model, the disk is full, a callback of
            the host's raised.
        PluginError: an EP describes its nodes wrongly, or does not read what it wrote.
        ModelLoadCanceled: the host asked to stop.
    """
    with outputs:
        with watch.stage("write"):
            kept = existing.keep(outputs.open_payload)
            context = make_context_model(
                model, assignment, providers, outputs, placement, kept, earlier or {}
            )
        with watch.stage("read_back"):
            names = {record.name for record in existing.records}
            read_back(
                context.proto, context.written, providers, kept=names, source_tensors=context.source_tensors
            )
        with watch.stage("write"):
            data = serialize(context, embedded=outputs.embedded)
            written = outputs.finish(data, context.named_files)
            note_published(outputs.states, context.digests)
            if written is not None and any(entry.embedded for entry in context.payloads):
                note([model_receipt(written.digest)])
    return what_was_written(context, outputs, existing, written)


def what_was_written(
    context: ContextModel, outputs: Outputs, existing: PassThrough, written: OutputFile | None
) -> Written:
    """Say what was written of one context model; `written` is its own file, if it has one."""
    payloads = tuple(
        OutputFile(path=e.name, bytes=e.size, digest=e.root) for e in context.payloads if not e.embedded
    )
    entry = context.initializers
    weights = [] if entry is None else [OutputFile(path=entry.name, bytes=entry.size, digest=entry.root)]
    return Written(
        payloads=payloads,
        others=(*weights, *([] if written is None else [written])),
        named_files=context.named_files,
        kept_nodes=tuple(record.name for record in existing.records),
        kept_files=context.kept_files,
        source_files=context.source_files,
        delivered=outputs.delivers,
        pending=context.pending,
    )


def serialize(context: ContextModel, *, embedded: bool) -> SerializedModel:
    """Return the bytes of a context model; the same model gives the same bytes.

    Raises:
        Fail: it is larger than a protobuf can be.
    """
    # To ask for the size alone would serialise it once more.
    data = embed(context.proto.SerializeToString(deterministic=True), context.contents)
    check_size(data.size, embedded=embedded)
    return data
