"""The stages from compiled partitions to written files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.compiling.emit import ContextModel, GraphsByModel, make_context_model
from epctx_core.compiling.read_back import read_back
from epctx_core.compiling.report import OutputFile, Written
from epctx_core.compiling.writing.size import check_size
from epctx_core.context.embedding import SerializedModel, embed
from epctx_core.context.receipts import model_receipt, note, note_published
from epctx_core.graph.garbage import collection_paused

if TYPE_CHECKING:
    from epctx_core.compiling.passthrough import PassThrough
    from epctx_core.compiling.writing.initializers import InitializerPlacement
    from epctx_core.compiling.writing.outputs import Outputs
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.providers import ProviderSession
    from epctx_core.sessions.source import OpenModel
    from epctx_core.sessions.stages import Stopwatch


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
