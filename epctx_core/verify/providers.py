"""What only EPs know: who takes which node, whether it still may, and what is in a payload. No instance is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from epctx_core.context.metadata import all_compatibility_info
from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NotImplementedByProvider,
)
from epctx_core.plugin import Compatibility
from epctx_core.registry.lookup import others_of
from epctx_core.sessions.compatibility import UNSUPPORTED_HINT, judge
from epctx_core.sessions.loading import Routing, look_into
from epctx_core.verify.reading import known_payloads, nodes_to_look_at, provider_context

if TYPE_CHECKING:
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.plugin import ContextNode, Finding
    from epctx_core.sessions.providers import ProviderChoice
    from epctx_core.verify.findings import Findings
    from epctx_core.verify.payloads import FoundPayload
    from epctx_core.verify.subject import Subject

_PLUGINS = "`epctx plugins list` shows every plugin and its state."


def ask_providers(
    subject: Subject, payloads: Mapping[str, FoundPayload], findings: Findings
) -> dict[str, str]:
    """Have each EP judge what it compiled, and look into its payloads.

    Args:
        payloads: a primary's name to its payload.

    Returns:
        A primary's name to who looked into its payload.

    Raises:
        InvalidArgument: an option of an EP is wrong.
    """
    looked: dict[str, str] = {}
    infos = _infos(subject, findings)
    for choice, records in _takers(subject, findings):
        for info in infos.get(choice.name, ()):
            _judge(choice, info, records[0], findings)
        for name in _look(choice, records, subject, payloads, findings):
            looked[name] = choice.record.origin
    return looked


def _takers(subject: Subject, findings: Findings) -> list[tuple[ProviderChoice, list[ContextNodeRecord]]]:
    """Return the EPs that load nodes of the model, with their nodes; decided as a load decides it."""
    by_source: dict[str, list[ContextNodeRecord]] = {}
    for record in subject.records:
        if record.source:
            by_source.setdefault(record.source, []).append(record)
    taken: dict[str, tuple[ProviderChoice, list[ContextNodeRecord]]] = {}
    for source, records in by_source.items():
        choice = _taker(source, records[0], subject, findings)
        if choice is not None:
            taken.setdefault(choice.name, (choice, []))[1].extend(records)
    return list(taken.values())


def _taker(
    source: str, record: ContextNodeRecord, subject: Subject, findings: Findings
) -> ProviderChoice | None:
    requested = subject.session.providers or None
    try:
        routing = Routing([record], requested, subject.session, subject.registry, None, subject.manifest)
    except NotImplementedByProvider as error:
        findings.add_error("plugin-missing", error)
        findings.add(
            "container-not-checked",
            f"payloads of the source {source!r} were not looked into: there is no plugin for it here.",
            node=record.name,
        )
        return None
    except InvalidArgument:
        raise
    except EpctxError as error:
        findings.add("plugin-broken", error.message, node=record.name, hint=error.hint or _PLUGINS)
        return None
    ep = next(iter(routing.nodes))
    return next(choice for choice in routing.choices if choice.name == ep)


def _infos(subject: Subject, findings: Findings) -> dict[str, list[str]]:
    try:
        return all_compatibility_info(subject.proto)
    except InvalidGraph as error:
        findings.add_error("compatibility-damaged", error)
        return {}


def _judge(choice: ProviderChoice, info: str, record: ContextNodeRecord, findings: Findings) -> None:
    """Note an EP's verdict on what it once wrote."""
    said = f"the model was compiled for {info!r:.300}"
    try:
        verdict = judge(choice, info)
    except InvalidArgument:
        raise
    except EpctxError as error:
        findings.add("plugin-broken", error.message, node=record.name, hint=error.hint or _PLUGINS)
        return
    if verdict == Compatibility.EP_UNSUPPORTED:
        findings.add(
            "compatibility-unsupported",
            f"{choice.name} does not support this compiled model: {said}.",
            hint=UNSUPPORTED_HINT,
        )
    elif verdict == Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION:
        findings.add(
            "compatibility-outdated",
            f"{choice.name} runs this compiled model less well than a new one: {said}.",
            hint="Compile the source model again.",
        )
    elif verdict == Compatibility.EP_NOT_APPLICABLE:
        findings.add(
            "compatibility-not-judged",
            f"{choice.record.label} does not judge what an EP of that name wrote: {said}.",
        )


def _look(
    choice: ProviderChoice,
    records: Sequence[ContextNodeRecord],
    subject: Subject,
    payloads: Mapping[str, FoundPayload],
    findings: Findings,
) -> list[str]:
    """Have an EP look into its payloads; return the primaries into whose payloads it looked."""
    try:
        nodes = nodes_to_look_at(choice.name, records, subject, payloads)
    except InvalidGraph as error:
        findings.add_error("model-invalid", error)
        return []
    primaries = [node.name for node in nodes if node.main_context]
    if not primaries:
        return []
    found = _answer(choice, nodes, subject, payloads, findings)
    made = subject.manifest.providers if subject.manifest is not None else {}
    maker = made.get(choice.name, {}).get("distribution")
    others = others_of(choice.record, subject.registry.records(), maker)
    for finding in found or ():
        refused = finding.code == "container-refused" and others
        findings.take(replace(finding, hint=f"{finding.hint}{others}".strip()) if refused else finding)
    if found is None or any(finding.node is None for finding in _unchecked(found)):
        return []
    blind = {payloads.get(finding.node or "") for finding in _unchecked(found)}
    return [name for name in primaries if payloads[name] not in blind]


def _unchecked(found: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.code == "container-not-checked"]


def _answer(
    choice: ProviderChoice,
    nodes: Sequence[ContextNode],
    subject: Subject,
    payloads: Mapping[str, FoundPayload],
    findings: Findings,
) -> Sequence[Finding] | None:
    """Return what an EP found; None if it did not look."""
    first = nodes[0].name
    with known_payloads(subject, payloads) as reader:
        try:
            answer = look_into(choice, provider_context(choice, subject), nodes, reader)
            if answer is not None:
                return answer
        except InvalidArgument:
            raise
        except (InvalidGraph, InvalidProtobuf) as error:
            # The latter is about a source model in which the payload left weights.
            findings.add_error("container-refused", error, node=first)
            return None
        except NotImplementedByProvider as error:
            findings.add_error("kernel-missing", error, node=first)
            return None
        except EpctxError as error:
            findings.add(
                "plugin-broken", error.message, node=error.node or first, hint=error.hint or _PLUGINS
            )
            return None
    if choice.cls.loads_without_device:
        # It loads them whole, later on.
        return None
    findings.add(
        "container-not-checked",
        f"{choice.record.label} has no check for payloads, so those of its nodes were not looked into.",
        node=first,
    )
    return None
