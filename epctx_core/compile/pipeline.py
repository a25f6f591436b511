"""The stages between a model and compiled partitions, and from there to written files.

Sessions and the compiler walk the same way; they differ in purpose, and in whether they write.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from epctx_core.compile.assign import Assignment, assign
from epctx_core.compile.emit import ContextModel, make_context_model
from epctx_core.compile.limits import PartitionLimits
from epctx_core.compile.report import OutputFile, Stopwatch
from epctx_core.context.embedding import embed
from epctx_core.errors import Fail
from epctx_core.graph.garbage import collection_paused, collection_resumed
from epctx_core.plugin import CompiledPartition, Purpose
from epctx_core.publish import Publication
from epctx_core.registry.guard import contract_broken

if TYPE_CHECKING:
    from epctx_core.compile.destination import Destination
    from epctx_core.compile.providers import ProviderSession
    from epctx_core.compile.source import OpenModel
    from epctx_core.graph.bodies import BodyPath
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.options import SessionOptions

PROTOBUF_LIMIT = (2 << 30) - 1
"""Bytes above which a protobuf cannot be written."""


@collection_paused()
def assign_nodes(
    model: OpenModel,
    providers: ProviderSession,
    eps: Sequence[str],
    session: SessionOptions,
    watch: Stopwatch,
) -> Assignment:
    """Ask the EPs for their claims; see `assign`. Existing EPContext nodes are nobody's to claim."""
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
        )


def compile_partitions(
    assignment: Assignment,
    providers: ProviderSession,
    session: SessionOptions,
    *,
    purpose: Purpose,
    watch: Stopwatch,
) -> dict[GraphPartition, CompiledPartition]:
    """Have each EP compile its partitions; return what each became.

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
            with collection_resumed():
                result = providers.instances.call(ep, "compile", partitions=partitions)
            providers.keep(result)
            check_compiled(ep, "compile", result, partitions, providers, purpose)
            compiled.update(zip(partitions, result, strict=True))
    session.cancellation.raise_if_requested()
    return compiled


def check_compiled(
    ep: str,
    hook: str,
    result: Sequence[Any],
    wanted: Sequence[object],
    providers: ProviderSession,
    purpose: Purpose,
) -> None:
    """Raise PluginError unless an EP gave one runnable for each of what it was given."""
    record = providers.choices[ep].record
    what = None
    if len(result) != len(wanted):
        what = f"gave {len(result)} results for {len(wanted)}: {', '.join(map(str, wanted[:3]))}"
    else:
        for name, item in zip(wanted, result, strict=True):
            if not isinstance(item, CompiledPartition):
                what = f"gave a {type(item).__name__} instead of a CompiledPartition for {name}"
            elif item.run is None and purpose is not Purpose.EXPORT:
                what = f"gave a CompiledPartition without `run` for {name}, outside of purpose EXPORT"
    if what is not None:
        raise contract_broken(record, hook, what)


@collection_paused()
def write_context_model(
    model: OpenModel,
    assignment: Assignment,
    providers: ProviderSession,
    destination: Destination,
    *,
    embedded: bool,
    watch: Stopwatch,
) -> list[OutputFile]:
    """Write the context model and its binaries, all or none; return what was written, binaries first.

    Raises:
        Fail: the model exists meanwhile, a binary belongs to another model, the disk is full.
        PluginError: an EP describes its nodes wrongly.
    """
    binaries: list[str] = []
    with watch.stage("write"), Publication(destination.folder) as publication:
        destination.check_model()

        def open_file(name: str) -> BinaryIO:
            destination.check_binary(name)
            binaries.append(name)
            return publication.create(name)

        context = make_context_model(
            model,
            assignment,
            providers,
            file_name=destination.binary_name,
            open_file=open_file,
            open_memory=lambda _name: io.BytesIO(),
            embedded=embedded,
        )
        data = serialize(context, embedded=embedded)
        digest = hashlib.sha256()
        with publication.create(destination.path.name) as file:
            for piece in data:
                digest.update(piece)
                file.write(piece)
        publication.commit(binaries=binaries, models=[destination.path.name], replace=destination.replace)
    files = [OutputFile(path=e.name, bytes=e.size, digest=e.root) for e in context.payloads if not e.embedded]
    size = sum(map(len, data))
    return [*files, OutputFile(path=destination.path.name, bytes=size, digest=digest.hexdigest())]


def serialize(context: ContextModel, *, embedded: bool) -> list[memoryview]:
    """Return the bytes of a context model in pieces; the same model gives the same bytes.

    Raises:
        Fail: it is larger than a protobuf can be.
    """
    # To ask for the size alone would serialise it once more.
    data = context.proto.SerializeToString(deterministic=True)
    size = len(data) + sum(map(len, context.embedded.values()))
    if size > PROTOBUF_LIMIT:
        raise Fail(
            f"the context model would have {size:,} bytes; a protobuf holds at most {PROTOBUF_LIMIT:,}.",
            hint="Set ep.context_embed_mode=0, so that payloads go into a file of their own."
            if embedded
            else "Its left-over weights alone are too large; have an EP take more of the model.",
        )
    return embed(data, context.embedded)
