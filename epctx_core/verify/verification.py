"""`verify_model`: the checks in their order, and those that EPs make of their nodes and
payloads.

No instance is made for these. Then the rest of a load, where nothing was found wrong:
EPs load their nodes without a device, engines prepare the others. Nothing is run: steps
that never run replace the runs of EPs, and engines optimise nothing.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from epctx_core.context.decoding import read_kernel_types
from epctx_core.context.manifest import read_compatibility_info
from epctx_core.context.payload_reader import make_plugin_nodes
from epctx_core.context.scratch import PrivateWorkspace
from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.errors import NotImplementedByProvider, convert_errors
from epctx_core.graph.mapping import OpenedFiles
from epctx_core.graph.model_io import describe_path, require_text_names
from epctx_core.options import SessionOptions
from epctx_core.plugin import Compatibility, ContextNode, EnginePolicy, Purpose
from epctx_core.registry import Registry, default_registry
from epctx_core.registry.instances import ProviderInstances
from epctx_core.sessions.assignment import assign_nodes
from epctx_core.sessions.ep_queries import look_into
from epctx_core.sessions.loading import Routing, accept, load_nodes, suboptimal_error
from epctx_core.sessions.plan import Planner, StepSpec
from epctx_core.sessions.providers import ProviderChoice, ProviderSession
from epctx_core.sessions.source import READ_ATTEMPTS, require_one_state
from epctx_core.verify.findings import Findings, PayloadReport, VerifyReport
from epctx_core.verify.subject import (
    Subject,
    check_dependencies,
    check_references,
    check_types,
    find_payloads,
    read_subject,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.graph.index import GraphIndex
    from epctx_core.sessions.source import OpenModel


@convert_errors("verifying the model")
def verify_model(
    path_or_bytes: str | os.PathLike[str] | bytes,
    sess_options: SessionOptions | None = None,
    *,
    registry: Registry = default_registry,
) -> VerifyReport:
    """Check a context model and its payloads as far as no device is needed, and list
    all that is found.

    The model is read as a load would read it: the ONNX checker, the EPContext
    operator's rules, the files that nodes name. Every byte of every payload is checked
    against the manifest, in bounded memory. The EPs that would load the nodes validate
    their compatibility information and check their payloads. Where nothing is wrong so
    far, EPs that need no device for it load their nodes, and engines prepare the
    operators left over. Nothing is written or run.

    Args:
        path_or_bytes: the model.
        sess_options: as for a load: EP options, where files lie. None for the defaults.
        registry: where EPs are looked up.

    Raises:
        NoSuchFile: there is no such file.
        InvalidArgument: neither a path nor bytes, a folder, or a wrong option.

    Example:
        >>> report = verify_model("model_ctx.onnx")
        >>> report.ok, [finding.code for finding in report.findings]
        (True, [])
    """
    session = sess_options or SessionOptions()
    for _ in range(READ_ATTEMPTS):
        with OpenedFiles() as files:
            report = _verify_once(path_or_bytes, session, registry, files)
            # What is wrong may be so because another model was published meanwhile.
            if report.ok or not files.find_replaced():
                break
    return report


def _verify_once(
    path_or_bytes: str | os.PathLike[str] | bytes,
    session: SessionOptions,
    registry: Registry,
    files: OpenedFiles,
) -> VerifyReport:
    findings = Findings()
    subject: Subject | None = None
    payloads: list[PayloadReport] = []
    # As a load reads it all: any name in the model may not be UTF-8.
    with findings.collect("model-invalid"), require_text_names():
        subject = read_subject(path_or_bytes, session, registry, findings, files)
        if subject is not None:
            with closing(ProviderSession(session, registry)) as providers:
                payloads = _verify(subject, providers)
            require_one_state(files, describe_path(subject.path))
    return VerifyReport(
        path=None if isinstance(path_or_bytes, bytes) else Path(path_or_bytes),
        findings=findings.sorted(),
        nodes=len(subject.records) if subject is not None else 0,
        payloads=payloads,
    )


def _verify(subject: Subject, providers: ProviderSession) -> list[PayloadReport]:
    findings = subject.findings
    if not subject.records and "node-refused" not in findings.codes:
        text = "the model has no EPContext nodes that can be read: nothing is compiled."
        findings.add("no-context-nodes", text)
    check_types(subject)
    with findings.collect("kernel-types-damaged"):
        read_kernel_types(subject.proto)
    check_dependencies(subject)
    find_payloads(subject, providers.scratch)
    routing = route_nodes(subject)
    check_references(subject, routing)
    looked: dict[str, str] = {}
    has_source = False
    with findings.collect("source-refused"):
        # Weights that payloads left in the source model: each is checked against its
        # digest.
        for name in (
            subject.manifest.source_weights if subject.manifest is not None else ()
        ):
            subject.reader.source_tensor(name)
        has_source = True
    if has_source:
        if routing is not None:
            looked = ask_providers(subject, routing, providers)
        looked |= rehearse_load(subject, providers)
    return _make_reports(subject, looked)


def _make_reports(subject: Subject, looked: Mapping[str, str]) -> list[PayloadReport]:
    """Return the reports of payloads; without any error, note those that nobody
    checked.

    Args:
        subject: the model.
        looked: a primary's name to the EP's origin that checked its payload.
    """
    reports = subject.reports
    readers = {reports[name]: reader for name, reader in looked.items()}
    carriers = {report: name for name, report in reversed(list(reports.items()))}
    every = list(dict.fromkeys(reports.values()))
    for report in every if not subject.findings.has_errors else ():
        if not report.digests and report not in readers:
            subject.findings.add(
                "not-checked",
                f"no byte of the payload {report.name!r} was judged: nothing says its "
                "digest, and no EP here looked into it.",
                node=carriers[report],
                hint="Verify it where the EP that made it is installed.",
            )
    checked = [replace(report, looked_into_by=readers.get(report)) for report in every]
    return [*checked, *subject.refused.values()]


def route_nodes(subject: Subject) -> Routing | None:
    """Route the nodes to EPs as a load does; None if the host's EPs are broken.

    Raises:
        InvalidArgument: an option of an EP is wrong.
    """
    findings, requested = subject.findings, subject.session.providers or None
    with findings.collect_of_plugin("plugin-broken"):
        routing = Routing(
            [], requested, subject.session, subject.registry, None, subject.manifest
        )
        refused: set[str] = set()
        for record in subject.records:
            if record.source in refused:
                continue
            with findings.collect_of_plugin("plugin-broken", node=record.name):
                try:
                    routing.add(record)
                    continue
                except NotImplementedByProvider as error:
                    findings.add_error(
                        "plugin-missing" if record.source else "source-missing", error
                    )
            # Each node without a source is listed.
            refused.update({record.source} - {""})
        return routing
    return None


def ask_providers(
    subject: Subject, routing: Routing, providers: ProviderSession
) -> dict[str, str]:
    """Have each EP validate its compatibility information and check its payloads.

    Args:
        subject: the model.
        routing: the nodes of each EP.
        providers: knows what an EP gets.

    Returns:
        A primary's name to the EP's origin that checked its payload.

    Raises:
        InvalidArgument: an option of an EP is wrong.
        ModelLoadCanceled: the host asked to stop.
    """
    infos: Mapping[str, Sequence[str]] = {}
    with subject.findings.collect("compatibility-damaged"):
        infos = read_compatibility_info(subject.proto)
    looked: dict[str, str] = {}
    for choice in routing.choices:
        if choice.name in routing.nodes:
            for info in infos.get(choice.name, ()):
                _validate(choice, info, routing, subject)
            looked |= dict.fromkeys(
                _look_into(choice, routing, providers, subject), choice.record.origin
            )
    return looked


def _validate(
    choice: ProviderChoice, info: str, routing: Routing, subject: Subject
) -> None:
    """Note an EP's verdict on its compatibility information."""
    findings, first = subject.findings, routing.nodes[choice.name][0].name
    verdict = Compatibility.EP_SUPPORTED_OPTIMAL
    with (
        findings.collect_of_plugin("plugin-broken", node=first),
        findings.collect("compatibility-unsupported"),
        routing.hint_at_others(),
    ):
        verdict = accept(choice, info)
    if verdict == Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION:
        findings.add_error("compatibility-outdated", suboptimal_error(choice, info))


def select_nodes(
    ep: str, records: Sequence[ContextNodeRecord], subject: Subject
) -> list[ContextNode]:
    """Return the nodes of an EP whose payloads can be looked into, as the EP gets them
    to load.

    A payload that is known to be another one than the model's would only be refused
    again.
    """
    nodes: list[ContextNode] = []
    if subject.opened is not None and any(record.main_context for record in records):
        with subject.findings.collect("model-invalid"), require_text_names():
            nodes = make_plugin_nodes(
                records, subject.opened.types, ep, subject.manifest
            )
    readable = subject.reports.keys()
    all_readable = all(node.name in readable for node in nodes if node.main_context)
    return [
        n
        for n in nodes
        if (all_readable if n.primary is None else n.primary.name in readable)
    ]


def _look_into(
    choice: ProviderChoice,
    routing: Routing,
    providers: ProviderSession,
    subject: Subject,
) -> list[str]:
    """Have an EP look into its payloads; return the primaries into whose payloads it
    looked.
    """
    findings = subject.findings
    if choice.name in routing.find_contained():
        # As in a load; the rehearsal passes over it, too.
        findings.add(
            "container-not-checked",
            f"{choice.record.label} gets no payload without digests in this process, "
            "as one could end it.",
            node=routing.nodes[choice.name][0].name,
            hint=(
                "`epctx seal` adds digests to files that are right; "
                "ep.context_trust_unverified=1 does without them."
            ),
        )
        return []
    nodes = select_nodes(choice.name, routing.nodes[choice.name], subject)
    primaries = [node.name for node in nodes if node.main_context]
    if not primaries or subject.opened is None:
        return []
    context = providers.context_of(
        choice,
        Purpose.LOAD,
        subject.opened.identity,
        CpuEngine(EnginePolicy(**subject.config.engine_settings, prefer_latency=False)),
        PrivateWorkspace(),
    )
    with (
        findings.collect_of_plugin("container-refused", node=nodes[0].name),
        routing.hint_at_others(),
    ):
        found = look_into(choice, context, nodes, subject.reader)
        if found is not None:
            others = routing.others_of(choice.record)
            for finding in found:
                more = others if finding.code == "container-refused" else ""
                findings.take(replace(finding, hint=f"{finding.hint}{more}".strip()))
            unchecked = {
                finding.node
                for finding in found
                if finding.code == "container-not-checked"
            }
            return [name for name in primaries if unchecked.isdisjoint({None, name})]
        # Where it needs no device it loads them whole, later on.
        if not choice.cls.loads_without_device:
            findings.add(
                "container-not-checked",
                f"{choice.record.label} has no check for payloads, so those of its "
                "nodes were not looked into.",
                node=nodes[0].name,
            )
    return []


def rehearse_load(subject: Subject, providers: ProviderSession) -> dict[str, str]:
    """Do the rest of a load, and note why it would refuse the model.

    Args:
        subject: the model.
        providers: gets the EPs, and closes them.

    Returns:
        A primary's name to the EP's origin that loaded it.

    Raises:
        InvalidArgument: an option of an EP is wrong.
        ModelLoadCanceled: the host asked to stop.
    """
    model, findings = subject.opened, subject.findings
    loaded: dict[str, str] = {}
    if model is None or findings.has_errors:
        return loaded
    engine = CpuEngine(
        EnginePolicy(**subject.config.engine_settings, prefer_latency=False)
    )
    engine.policy.custom_domains = (
        subject.manifest.custom_domains if subject.manifest else {}
    )
    routing = _start_eps(subject, model, engine, providers)
    contained = routing.find_contained() if routing is not None else ()
    for ep, choice in providers.choices.items():
        if (
            routing is None
            or ep not in routing.nodes
            or ep in contained
            or findings.has_errors
        ):
            continue
        nodes = select_nodes(ep, routing.nodes[ep], subject)
        # It loads all its nodes or none.
        if len(nodes) < len(routing.nodes[ep]) or findings.is_unchecked(
            node.name for node in nodes
        ):
            continue
        with (
            findings.collect_of_plugin("container-refused", node=nodes[0].name),
            routing.hint_at_others(),
        ):
            load_nodes(ep, nodes, subject.reader, providers, Purpose.EXPORT)
            loaded |= {
                node.name: choice.record.origin for node in nodes if node.main_context
            }
    if not findings.has_errors:
        _prepare(subject, model, engine, providers)
    return loaded


def _start_eps(
    subject: Subject, model: OpenModel, engine: CpuEngine, providers: ProviderSession
) -> Routing | None:
    """Start the EPs that load without a device; return the routing, or None where an EP
    cannot be started.
    """
    requested = subject.session.providers or None

    # An EP that cannot do it on this machine is not a fault of the file.
    with (
        subject.findings.collect_of_plugin("plugin-broken"),
        suppress(NotImplementedByProvider),
    ):
        routing = Routing(
            subject.records,
            requested,
            subject.session,
            subject.registry,
            Purpose.EXPORT,
            subject.manifest,
        )
        providers.start(
            [
                c
                for c in routing.choices
                if c.name in routing.settled and c.cls.loads_without_device
            ],
            purpose=Purpose.EXPORT,
            model=model.identity,
            engine=engine,
        )
        return routing
    return None


def _prepare(
    subject: Subject, model: OpenModel, engine: CpuEngine, providers: ProviderSession
) -> None:
    """Prepare what is left to the CPU EP, and plan all."""
    instances = providers.instances
    with subject.findings.collect_of_plugin("model-invalid"), require_text_names():
        assignment = assign_nodes(
            model,
            providers,
            kernels := [
                ep
                for ep in instances.names
                if instances.implements(ep, "get_kernel_registry")
            ],
            kernels_only=kernels,
        )
        groups = [(part, part.cpu_groups()) for part in assignment.graphs]
        # Instead of the runs of EPs: loaded nodes and kernels.
        steps = {
            part.graph: {
                node: _make_step(part.graph, node) for node in part.kernel_nodes
            }
            for part in assignment.graphs
        }
        for record in model.context_nodes:
            graph = model.graph_of(record)
            steps.setdefault(graph, {})[record.index] = _make_step(graph, record.index)
        # No EP makes anything for this plan.
        planner = Planner(engine, ProviderInstances(), steps, {})
        for part, cpu in groups:
            part.kernel_nodes.clear()
            planner.prepare(part, cpu)
            part.fix(cpu)
        planner.plan(assignment.main)


def _make_step(graph: GraphIndex, node: int) -> StepSpec:
    outputs = [name for name in graph.outputs[node] if name]
    return StepSpec(
        graph.get_node_name(node), "", _refuse_run, graph.inputs[node], outputs
    )


def _refuse_run(_inputs: Sequence[Any], _options: Any) -> NoReturn:
    raise AssertionError("a verification runs nothing")
