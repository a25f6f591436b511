"""`verify_model`: the checks in their order, and those that EPs make of their nodes and
payloads.

No instance is made for these. Then the rest of a load, where nothing was found wrong:
EPs load their nodes without a device, engines prepare the others. Nothing is run: steps
that never run replace the runs of EPs, and engines optimise nothing.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from epctx_core.context.manifest import NO_MANIFEST
from epctx_core.context.metadata import read_compatibility_info
from epctx_core.context.payload_reader import make_plugin_nodes
from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.errors import NotImplementedByProvider, convert_errors
from epctx_core.graph.mapping import OpenedFiles
from epctx_core.graph.model_io import describe_path, get_model_path, require_text_names
from epctx_core.options import SessionOptions
from epctx_core.plugin import ContextNode, Purpose
from epctx_core.registry import Registry, default_registry
from epctx_core.registry.instances import ProviderInstances
from epctx_core.sessions.compatibility import look_into
from epctx_core.sessions.load import load_nodes
from epctx_core.sessions.plan import StepSpec
from epctx_core.sessions.planner import Planner
from epctx_core.sessions.routing import accept, outdated_error
from epctx_core.sessions.source import READ_ATTEMPTS, require_one_state
from epctx_core.sessions.work import Work
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
    from epctx_core.graph.mapping import ModelInput
    from epctx_core.sessions.providers import ProviderChoice


@convert_errors("verifying the model")
def verify_model(
    path_or_bytes: ModelInput,
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

    Examples:
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
    path_or_bytes: ModelInput,
    session: SessionOptions,
    registry: Registry,
    files: OpenedFiles,
) -> VerifyReport:
    findings = Findings()
    subject: Subject | None = None
    payloads: list[PayloadReport] = []
    # As a load reads it all: any name in the model may not be UTF-8.
    with findings.collect("model-invalid"), require_text_names():
        work = Work(path_or_bytes, session, registry, session.providers or None)
        # A host plugin that cannot be had is no finding about the model.
        work.begin()
        subject = read_subject(work, findings, files)
        if subject is not None:
            with closing(work):
                payloads = _verify(subject)
                require_one_state(files, describe_path(subject.path))
    return VerifyReport(
        path=get_model_path(path_or_bytes),
        findings=findings.sorted(),
        nodes=len(subject.records) if subject is not None else 0,
        payloads=payloads,
    )


def _verify(subject: Subject) -> list[PayloadReport]:
    findings = subject.findings
    if not subject.records and "node-refused" not in findings.codes:
        findings.add(
            "no-context-nodes",
            "the model has no EPContext nodes: nothing is compiled.",
        )
    check_types(subject)
    check_dependencies(subject)
    route_nodes(subject)
    find_payloads(subject)
    check_references(subject)
    looked: dict[str, str] = {}
    has_source = False
    with findings.collect("source-refused"):
        # Weights that payloads left in the source model: each is checked against its
        # digest.
        for name in (subject.manifest or NO_MANIFEST).source_weights:
            subject.reader.source_tensor(name)
        has_source = True

    if has_source:
        looked = ask_providers(subject) | rehearse_load(subject)
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
    carriers: dict[PayloadReport, str] = {}
    for name, report in reports.items():
        carriers.setdefault(report, name)
    for report, node in carriers.items() if not subject.findings.has_errors else ():
        if not report.digests and report not in readers:
            subject.findings.add(
                "not-checked",
                f"no byte of the payload {report.name!r} was judged: nothing says its "
                "digest, and no EP here looked into it.",
                node=node,
                hint=_describe_reader(node, subject),
            )
    checked = [
        replace(report, looked_into_by=readers.get(report)) for report in carriers
    ]
    return [*checked, *subject.refused.values()]


def _describe_reader(node: str, subject: Subject) -> str:
    """Return how to get an EP that reads the payload of a node: a simulated one does
    not read a vendor's.
    """
    from epctx_core.registry.explaining import describe_installation

    record = next(record for record in subject.records if record.name == node)
    is_here = any(
        record in subject.work.nodes.get(choice.name, ())
        for choice in subject.work.choices
        if not choice.cls.simulated
    )
    remedy = "" if is_here else describe_installation(record.source)
    return remedy or "Verify it where the EP that made it is installed."


def route_nodes(subject: Subject) -> None:
    """Route the nodes to EPs as a load does, as far as the host's EPs are not broken.

    Raises:
        InvalidArgument: an option of an EP is wrong.
    """
    findings = subject.findings
    work = subject.work
    with findings.collect_of_plugin("plugin-broken"):
        work.choose(None)
        work.manifest = subject.manifest
        refused: set[str] = set()
        for record in subject.records:
            if record.source in refused:
                continue
            with findings.collect_of_plugin("plugin-broken", node=record.name):
                try:
                    work.route_node(record)
                    continue
                except NotImplementedByProvider as error:
                    findings.add_error(
                        "plugin-missing" if record.source else "source-missing", error
                    )
            # Each node without a source is listed.
            refused.update({record.source} - {""})


def ask_providers(subject: Subject) -> dict[str, str]:
    """Have each EP validate its compatibility information and check its payloads.

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
    for choice in subject.work.choices:
        if choice.name in subject.work.nodes:
            for info in infos.get(choice.name, ()):
                _validate(choice, info, subject)
            looked |= dict.fromkeys(_look_into(choice, subject), choice.record.origin)
    return looked


def _validate(choice: ProviderChoice, info: str, subject: Subject) -> None:
    """Note an EP's verdict on its compatibility information."""
    findings = subject.findings
    work = subject.work
    first = work.nodes[choice.name][0].name
    with (
        findings.collect_of_plugin("plugin-broken", node=first),
        findings.collect("plugin-missing", (NotImplementedByProvider,)),
        findings.collect("compatibility-unsupported"),
        work.hint_at_others(),
    ):
        reason = accept(choice, info, work.registry)
        if reason:
            error = outdated_error(choice, reason)
            findings.add_error("compatibility-outdated", error)


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


def _look_into(choice: ProviderChoice, subject: Subject) -> list[str]:
    """Have an EP look into its payloads; return the primaries into whose payloads it
    looked.
    """
    findings = subject.findings
    work = subject.work
    if choice.name in work.find_contained():
        # As in a load; the rehearsal passes over it, too.
        findings.add(
            "container-not-checked",
            f"{choice.record.label} gets no payload without digests in this process, "
            "as one could end it.",
            node=work.nodes[choice.name][0].name,
            hint=(
                "`epctx seal` adds digests to files that are right; "
                "ep.context_trust_unverified=1 does without them."
            ),
        )
        return []

    nodes = select_nodes(choice.name, work.nodes[choice.name], subject)
    primaries = [node.name for node in nodes if node.main_context]
    if not primaries or subject.opened is None:
        return []
    context = work.providers.context_of(
        choice,
        Purpose.LOAD,
        subject.opened.identity,
        CpuEngine(replace(subject.opened.policy, prefer_latency=False)),
    )
    with (
        findings.collect_of_plugin("container-refused", node=nodes[0].name),
        work.hint_at_others(),
    ):
        reported = look_into(choice, context, nodes, subject.reader)
        if reported is not None:
            others = work.others_of(choice.record)
            for finding in reported:
                more = others if finding.code == "container-refused" else ""
                findings.take(replace(finding, hint=f"{finding.hint}{more}".strip()))
            unchecked = {
                finding.node
                for finding in reported
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


def rehearse_load(subject: Subject) -> dict[str, str]:
    """Do the rest of a load, and note why it would refuse the model.

    Args:
        subject: the model, whose work gets the EPs, and closes them.

    Returns:
        A primary's name to the EP's origin that loaded it.

    Raises:
        InvalidArgument: an option of an EP is wrong.
        ModelLoadCanceled: the host asked to stop.
    """
    work = subject.work
    findings = subject.findings
    if subject.opened is None or findings.has_errors:
        return {}
    work.model = subject.opened
    manifest = subject.manifest or NO_MANIFEST
    engine = CpuEngine(
        replace(
            work.model.policy,
            prefer_latency=False,
            custom_domains=manifest.custom_domains,
        )
    )
    loaded = _load_eps(subject, engine)
    if not findings.has_errors:
        _prepare(subject, engine)
    return loaded


def _load_eps(subject: Subject, engine: CpuEngine) -> dict[str, str]:
    """Have the EPs load their nodes that need no device for it; see `rehearse_load`."""
    work = subject.work
    findings = subject.findings
    loaded: dict[str, str] = {}
    contained = work.find_contained()
    is_started = False
    # An EP that cannot do it on this machine is not a fault of the file.
    with (
        findings.collect_of_plugin("plugin-broken"),
        suppress(NotImplementedByProvider),
    ):
        work.skip_unavailable(Purpose.EXPORT)
        work.add_keepers()
        work.choices = [
            choice
            for choice in work.choices
            if choice.name in work.settled and choice.cls.loads_without_device
        ]
        work.start(engine)
        is_started = True
    if not is_started:
        return loaded

    for ep, choice in work.providers.choices.items():
        if ep not in work.nodes or ep in contained or findings.has_errors:
            continue
        nodes = select_nodes(ep, work.nodes[ep], subject)
        # It loads all its nodes or none.
        if len(nodes) < len(work.nodes[ep]) or findings.is_unchecked(
            node.name for node in nodes
        ):
            continue
        with (
            findings.collect_of_plugin("container-refused", node=nodes[0].name),
            work.hint_at_others(),
        ):
            load_nodes(ep, nodes, subject.reader, work.providers, Purpose.EXPORT)
            loaded |= {
                node.name: choice.record.origin for node in nodes if node.main_context
            }

    return loaded


def _prepare(subject: Subject, engine: CpuEngine) -> None:
    """Prepare what is left to the CPU EP, and plan all."""
    work = subject.work
    model = subject.work.model
    with subject.findings.collect_of_plugin("model-invalid"), require_text_names():
        assignment = work.assign(settled=work.providers.instances.names)
        groups = [(part, part.cpu_groups()) for part in assignment.graphs]

        # Instead of the runs of EPs: loaded nodes, and those that stay in the model.
        steps = {
            part.graph: {
                p.node_indices[0]: _make_step(repr(p), p.input_names, p.output_names)
                for p in part.kept
            }
            for part in assignment.graphs
        }
        for record in model.context_nodes:
            graph = model.graph_of(record)
            steps.setdefault(graph, {})[record.index] = _make_step(
                record.name,
                graph.inputs[record.index],
                [name for name in graph.outputs[record.index] if name],
            )

        # No EP makes anything for this plan.
        planner = Planner(engine, ProviderInstances(), steps, assignment.refusals)
        for part, cpu in groups:
            planner.prepare(part, cpu)
            part.fix(cpu)
        planner.plan(assignment.main)


def _make_step(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> StepSpec:
    return StepSpec(name, "", _refuse_run, inputs, outputs)


def _refuse_run(_inputs: Sequence[Any], _options: Any) -> NoReturn:
    raise AssertionError("a verification runs nothing")
