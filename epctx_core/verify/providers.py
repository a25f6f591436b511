"""What only EPs know: who takes which node, whether it still may, and what is in a payload. No instance is made."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from epctx_core.context.metadata import all_compatibility_info
from epctx_core.context.payload_reader import plugin_nodes
from epctx_core.context.workspace import PrivateWorkspace
from epctx_core.engines import CpuEngine, EnginePolicy
from epctx_core.errors import NotImplementedByProvider
from epctx_core.graph.model_io import names_as_text
from epctx_core.graph.type_table import types_of
from epctx_core.plugin import Compatibility, Purpose
from epctx_core.sessions.compatibility import accept, suboptimal
from epctx_core.sessions.ep_queries import look_into
from epctx_core.sessions.loading import Routing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.plugin import ContextNode
    from epctx_core.sessions.providers import ProviderChoice, ProviderSession
    from epctx_core.verify.payloads import FoundPayloads
    from epctx_core.verify.subject import Subject


def route_nodes(subject: Subject) -> Routing | None:
    """Return who loads the nodes, as a load decides it, as far as somebody does; None if the host's EPs are broken.

    Raises:
        InvalidArgument: an option of an EP is wrong.
    """
    findings, requested = subject.findings, subject.session.providers or None
    with findings.collected_of_plugin("plugin-broken"):
        routing = Routing([], requested, subject.session, subject.registry, None, subject.manifest)
        refused: set[str] = set()
        for record in subject.records:
            if record.source not in refused:
                with findings.collected_of_plugin("plugin-broken", node=record.name):
                    if _add(record, routing, subject):
                        continue
                # Each node that does not say its source is told.
                refused.update({record.source} - {""})
        return routing
    return None


def _add(record: ContextNodeRecord, routing: Routing, subject: Subject) -> bool:
    """Give a node to the EP that takes it; return whether there is one."""
    try:
        routing.add(record)
    except NotImplementedByProvider as error:
        subject.findings.add_error("plugin-missing" if record.source else "source-missing", error)
        if record.source:
            subject.findings.add(
                "container-not-checked",
                f"payloads of the source {record.source!r} were not looked into: there is no plugin for it here.",
                node=record.name,
            )
        return False
    return True


def ask_providers(
    subject: Subject, routing: Routing, payloads: FoundPayloads, providers: ProviderSession
) -> dict[str, str]:
    """Have each EP judge what it compiled, and look into its payloads.

    Args:
        subject: the model.
        routing: who takes which node.
        payloads: those that were found.
        providers: knows what an EP gets.

    Returns:
        A primary's name to who looked into its payload.

    Raises:
        InvalidArgument: an option of an EP is wrong.
        ModelLoadCanceled: the host asked to stop.
    """
    infos: Mapping[str, Sequence[str]] = {}
    with subject.findings.collected("compatibility-damaged"):
        infos = all_compatibility_info(subject.proto)
    looked: dict[str, str] = {}
    for choice in routing.choices:
        if choice.name in routing.nodes:
            for info in infos.get(choice.name, ()):
                _judge(choice, info, routing, subject)
            for name in _look(choice, routing, payloads, providers, subject):
                looked[name] = choice.record.origin
    return looked


def _judge(choice: ProviderChoice, info: str, routing: Routing, subject: Subject) -> None:
    """Note an EP's verdict on what it once wrote."""
    findings, first = subject.findings, routing.nodes[choice.name][0].name
    verdict = Compatibility.EP_SUPPORTED_OPTIMAL
    with (
        findings.collected_of_plugin("plugin-broken", node=first),
        findings.collected("compatibility-unsupported"),
        routing.naming_others(),
    ):
        verdict = accept(choice, info)
    if verdict == Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION:
        findings.add_error("compatibility-outdated", suboptimal(choice, info))
    elif verdict == Compatibility.EP_NOT_APPLICABLE:
        findings.add(
            "compatibility-not-judged",
            f"{choice.record.label} does not judge what an EP of that name wrote: the model was compiled for "
            f"{info!r:.300}.",
        )


def nodes_to_look_at(
    ep: str, records: Sequence[ContextNodeRecord], payloads: FoundPayloads, subject: Subject
) -> list[ContextNode]:
    """Return the nodes of an EP whose payloads can be looked into, as the EP gets them to load.

    A payload that is known to be another one than the model's would only be refused again.
    """
    nodes: list[ContextNode] = []
    if any(record.main_context for record in records):
        with subject.findings.collected("model-invalid"), names_as_text():
            # Nothing is inferred for a model that a load refuses: inference takes a checked model for granted.
            types = subject.opened.types if subject.opened else types_of(subject.proto.graph)
            nodes = plugin_nodes(records, types, ep, subject.manifest)
    all_sound = all(node.name in payloads.sound for node in nodes if node.main_context)

    def is_readable(node: ContextNode) -> bool:
        owner = node if node.main_context else node.primary
        return all_sound if owner is None else owner.name in payloads.sound

    return [node for node in nodes if is_readable(node)]


def _look(
    choice: ProviderChoice,
    routing: Routing,
    payloads: FoundPayloads,
    providers: ProviderSession,
    subject: Subject,
) -> list[str]:
    """Have an EP look into its payloads; return the primaries into whose payloads it looked."""
    findings = subject.findings
    nodes = nodes_to_look_at(choice.name, routing.nodes[choice.name], payloads, subject)
    primaries = [node.name for node in nodes if node.main_context]
    if not primaries:
        return []
    context = providers.context_of(
        choice,
        Purpose.LOAD,
        subject.identity,
        CpuEngine(EnginePolicy(prefer_latency=False)),
        PrivateWorkspace(),
    )
    with findings.collected_of_plugin("container-refused", node=nodes[0].name), routing.naming_others():
        found = look_into(choice, context, nodes, payloads.reader)
        if found is not None:
            others = routing.others_of(choice.record)
            for finding in found:
                refused = finding.code == "container-refused" and others
                findings.take(
                    replace(finding, hint=f"{finding.hint}{others}".strip()) if refused else finding
                )
            unchecked = {finding.node for finding in found if finding.code == "container-not-checked"}
            blind = {payloads.reports.get(node or "") for node in unchecked}
            return [
                name for name in primaries if None not in unchecked and payloads.reports[name] not in blind
            ]
        # Where it needs no device it loads them whole, later on.
        if not choice.cls.loads_without_device:
            findings.add(
                "container-not-checked",
                f"{choice.record.label} has no check for payloads, so those of its nodes were not looked into.",
                node=nodes[0].name,
            )
    return []
