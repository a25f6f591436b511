"""Loading: a context model's EPContext nodes become steps, each by the EP that its source names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.context.payloads.reader import PayloadReader, plugin_nodes
from epctx_core.errors import InvalidGraph
from epctx_core.graph.garbage import collection_paused
from epctx_core.options import Verification
from epctx_core.plugin import CONTAINER_CODES, Finding, Purpose
from epctx_core.registry.guard import blame, contract_broken, plain
from epctx_core.sessions.payload_sources import reading_of, source_weights
from epctx_core.sessions.providers import check_compiled
from epctx_core.sessions.steps import context_step

if TYPE_CHECKING:
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.paths import ModelFolder
    from epctx_core.graph.bodies import BodyPath
    from epctx_core.graph.index import GraphIndex
    from epctx_core.options import SessionConfig, SessionOptions
    from epctx_core.plugin import ContextNode, ContextReader, ProviderContext
    from epctx_core.sessions.plan import StepSpec
    from epctx_core.sessions.providers import ProviderChoice, ProviderSession
    from epctx_core.sessions.source import OpenModel

LOOK = "verify_payloads"


@collection_paused()
def load_context_nodes(
    model: OpenModel,
    nodes: Mapping[str, Sequence[ContextNodeRecord]],
    folder: ModelFolder | None,
    providers: ProviderSession,
    session: SessionOptions,
    manifest: Manifest | None,
) -> dict[GraphIndex, dict[int, StepSpec]]:
    """Have each EP load its nodes.

    Args:
        model: the context model, with the checks of its payloads, which the caller waits for.
        nodes: EP type to its nodes.
        folder: where their binaries lie.
        providers: the live EPs.
        session: the session's options.
        manifest: what the model says about its payloads, if it does.

    Returns:
        For each graph, the main one or a body, a node's place in it to its step.

    Raises:
        InvalidGraph: a payload is missing or wrong.
        NotImplementedByProvider: a node is in a body that a session cannot run.
        PluginError: an EP failed or broke the contract.
    """
    steps: dict[GraphIndex, dict[int, StepSpec]] = {}
    if not nodes:
        return steps
    named = {ep: _by_name(records) for ep, records in nodes.items()}
    readers = _readers(model, named, folder, session.config(), providers, manifest)
    for ep, records in nodes.items():
        session.cancellation.raise_if_requested()
        by_name, reader = named[ep], readers[ep]
        owner = providers.instances.record(ep)
        graphs: dict[BodyPath, GraphIndex] = {}
        for record in records:
            if record.path not in graphs:
                graph = graphs[record.path] = model.graph_of(record)
                steps.setdefault(graph, {})
        views = plugin_nodes(records, model.types, ep, manifest)
        loaded = providers.instances.call(ep, "load_context", nodes=views, reader=reader)
        providers.keep(loaded)
        check_compiled(ep, "load_context", loaded, [view.name for view in views], providers, Purpose.LOAD)
        for view, runnable in zip(views, loaded, strict=True):
            record = by_name[view.name]
            graph = graphs[record.path]
            steps[graph][record.index] = context_step(record, graph.types, runnable, owner)
    return steps


def _readers(
    model: OpenModel,
    nodes: Mapping[str, Mapping[str, ContextNodeRecord]],
    folder: ModelFolder | None,
    config: SessionConfig,
    providers: ProviderSession,
    manifest: Manifest | None,
) -> dict[str, PayloadReader]:
    """Return for each EP what finds its payloads; all are checked now, or begin to be, if the host wants that."""
    every = [record for records in nodes.values() for record in records.values()]
    reading = reading_of(model, config, config.data_reader)
    source = source_weights(every, folder, config, manifest)
    readers = {
        ep: PayloadReader(
            records,
            folder=folder,
            manifest=manifest,
            scratch=providers.scratch,
            source=source,
            reading=reading,
        )
        for ep, records in nodes.items()
    }
    for ep, reader in readers.items():
        if config.verification is Verification.FULL:
            reader.load_all()
        elif config.verification is Verification.ONCE:
            reader.begin_checks(ep)
    return readers


def _by_name(records: Sequence[ContextNodeRecord]) -> dict[str, ContextNodeRecord]:
    """Return records by their names, by which EPs speak of them.

    Raises:
        InvalidGraph: two have the same.
    """
    by_name: dict[str, ContextNodeRecord] = {}
    for record in records:
        if record.name in by_name:
            raise InvalidGraph(
                f"two EPContext nodes are called {record.name!r}.",
                node=record.name,
                hint="Give one of the models its own ep.context_node_name_prefix before they are joined.",
            )
        by_name[record.name] = record
    return by_name


def look_into(
    choice: ProviderChoice, context: ProviderContext, nodes: Sequence[ContextNode], reader: ContextReader
) -> Sequence[Finding] | None:
    """Have an EP look into its payloads; return what it found, None if it cannot look.

    Raises:
        PluginError: it raised, or its answer is not what the contract asks for.
        EpctxError: it raised this one.
    """
    with blame(choice.record, LOOK):
        answer = plain(choice.cls.verify_payloads(context, nodes, reader))
        if answer is None:
            return None
        if type(answer) is not list or not all(isinstance(item, Finding) for item in answer):
            raise contract_broken(choice.record, LOOK, f"gave {answer!r:.80} instead of a list of Finding")
        for finding in answer:
            if finding.code not in CONTAINER_CODES:
                raise contract_broken(choice.record, LOOK, f"gave the code {finding.code!r:.80}")
        return answer
