"""What an EP is given to look into payloads: a context, its nodes, and bytes that were found before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from epctx_core.context.loaded import KnownPayloads, LoadedPayload
from epctx_core.context.payload_reader import plugin_nodes
from epctx_core.context.scratch import Scratch, scratch_folder
from epctx_core.context.workspace import PrivateWorkspace
from epctx_core.graph.model_io import names_as_text
from epctx_core.graph.type_table import types_of
from epctx_core.kernels import CpuEngine, EnginePolicy
from epctx_core.plugin import ModelIdentity, ProviderContext, Purpose
from epctx_core.sessions.loading import source_weights
from epctx_core.sessions.providers import ep_logger

if TYPE_CHECKING:
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.plugin import ContextNode
    from epctx_core.sessions.providers import ProviderChoice
    from epctx_core.verify.payloads import FoundPayload
    from epctx_core.verify.subject import Subject


@contextmanager
def known_payloads(subject: Subject, payloads: Mapping[str, FoundPayload]) -> Iterator[KnownPayloads]:
    """Give the payloads of a model, for the time in which an EP looks into them.

    Args:
        payloads: a primary's name to its payload.
    """
    source = source_weights(subject.records, subject.folder, subject.config, subject.manifest)
    with Scratch() as scratch:
        made = {
            found: LoadedPayload(
                found.name,
                found.view.toreadonly(),
                digest=found.digest,
                mapped=found.mapped,
                scratch=scratch,
                in_memory=found.received,
            )
            for found in payloads.values()
        }
        yield KnownPayloads({name: made[found] for name, found in payloads.items()}, source.tensor)


def provider_context(choice: ProviderChoice, subject: Subject) -> ProviderContext:
    """Return what an instance of an EP would get to load the model."""
    opened = subject.opened
    identity = ModelIdentity(
        name=subject.path.stem if subject.path else subject.proto.graph.name or "model",
        digest=opened.source.digest if opened else None,
        opset_imports={entry.domain: entry.version for entry in subject.proto.opset_import},
    )
    return ProviderContext(
        options=choice.options,
        session_config=subject.session.config_entries,
        purpose=Purpose.LOAD,
        target=None,
        model=opened.identity if opened else identity,
        logger=ep_logger(choice.name),
        cancel=subject.session.cancellation,
        progress=lambda _stage, _done, _total: None,
        scratch=scratch_folder,
        engine=CpuEngine(EnginePolicy(prefer_latency=False)),
        workspace=PrivateWorkspace(),
        intra_op_num_threads=subject.session.intra_op_num_threads,
    )


def nodes_to_look_at(
    ep: str,
    records: Sequence[ContextNodeRecord],
    subject: Subject,
    payloads: Mapping[str, FoundPayload],
) -> list[ContextNode]:
    """Return the nodes of an EP whose payloads can be looked into, as the EP gets them to load.

    A payload that is known to be another one than the model's would only be refused again.

    Raises:
        InvalidGraph: the model's types contradict each other.
    """
    if not any(record.main_context for record in records):
        return []
    with names_as_text():
        # Nothing is inferred for a model that a load refuses: inference takes a checked model for granted.
        types = subject.opened.types if subject.opened else types_of(subject.proto.graph)
        nodes = plugin_nodes(records, types, ep, subject.manifest)
    good = {
        node.name
        for node in nodes
        if node.main_context and (found := payloads.get(node.name)) is not None and found.sound
    }
    all_good = all(node.name in good for node in nodes if node.main_context)

    def is_readable(node: ContextNode) -> bool:
        owner = node if node.main_context else node.primary
        return all_good if owner is None else owner.name in good

    return [node for node in nodes if is_readable(node)]
