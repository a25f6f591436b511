"""`verify_model`: the checks in their order, and those that EPs make of their nodes and
payloads.

No instance is made for these. Then the rest of a load, where nothing was found wrong:
EPs load their nodes without a device, engines prepare the others. Nothing is run, and
engines optimise nothing.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from epctx_core.context.manifest import NO_MANIFEST
from epctx_core.context.metadata import read_compatibility_info
from epctx_core.context.payload_reader import make_plugin_nodes
from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.errors import (
    Fail,
    InvalidArgument,
    NotImplementedByProvider,
    PackageMissing,
    PluginError,
    convert_errors,
)
from epctx_core.graph.mapping import OpenedFiles
from epctx_core.graph.model_io import describe_path, get_model_path, require_text_names
from epctx_core.options import Isolation, SessionOptions
from epctx_core.plugin import CompiledPartition, ContextNode, Purpose
from epctx_core.registry import Registry, default_registry
from epctx_core.sessions.compatibility import look_into
from epctx_core.sessions.isolation import use_isolation
from epctx_core.sessions.load import prepare
from epctx_core.sessions.planner import plan_graph
from epctx_core.sessions.source import READ_ATTEMPTS, require_one_state
from epctx_core.sessions.stage_values import Routed, Started, find_contained
from epctx_core.sessions.stages import Request
from epctx_core.verify.findings import PayloadReport, VerifyReport
from epctx_core.verify.subject import make_subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.graph.mapping import ModelInput
    from epctx_core.sessions.routing import ProviderChoice
    from epctx_core.sessions.stage_values import Opened
    from epctx_core.verify.subject import Subject


@convert_errors("verifying the model")
def verify_model(
    path_or_bytes: ModelInput,
    sess_options: SessionOptions | None = None,
    *,
    registry: Registry = default_registry,
) -> VerifyReport:
    """Check a context model and its payloads as far as no device is needed, and list
    all that is found.

    The model is read as a load would read it: ONNX's form, the EPContext
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
    if session.config().isolation is not Isolation.NONE:
        return _verify_elsewhere(path_or_bytes, session, registry)
    for _ in range(READ_ATTEMPTS):
        with OpenedFiles() as files:
            report = _verify_once(path_or_bytes, session, registry, files)
            # What is wrong may be so because another model was published meanwhile.
            if report.ok or not files.find_replaced():
                break
    return report


def _verify_elsewhere(
    path_or_bytes: ModelInput,
    session: SessionOptions,
    registry: Registry,
    needed_by: str = "",
) -> VerifyReport:
    """Have another process verify a model; see `import_isolation`."""
    request = Request.from_options(
        path_or_bytes, session, registry, session.providers or None
    )
    arguments = {
        "path_or_bytes": path_or_bytes,
        "sess_options": session,
        "registry": registry,
    }
    with use_isolation(request.config, needed_by) as isolation:
        report: VerifyReport = isolation.call(
            request, verify_model, arguments, VerifyReport, {}
        )
    return report


def _verify_once(
    path_or_bytes: ModelInput,
    session: SessionOptions,
    registry: Registry,
    files: OpenedFiles,
) -> VerifyReport:
    payloads: list[PayloadReport] = []
    # A host plugin that cannot be had is no finding about the model.
    subject = make_subject(path_or_bytes, session, registry, files)
    findings = subject.findings
    # As a load reads it all: any name in the model may not be UTF-8.
    with findings.collect("model-invalid"), require_text_names():
        if subject.read():
            with closing(subject.request):
                payloads = _verify(subject)
                require_one_state(files, describe_path(subject.content.path))
    nodes = len(subject.records)
    # It and its request have each other: nothing of the model is to wait for the
    # collector.
    vars(subject).clear()
    return VerifyReport(
        path=get_model_path(path_or_bytes),
        findings=findings.sorted(),
        nodes=nodes,
        payloads=payloads,
    )


def _verify(subject: Subject) -> list[PayloadReport]:
    findings = subject.findings
    if not subject.records and "node-refused" not in findings.codes:
        findings.add(
            "no-context-nodes",
            "the model has no EPContext nodes: nothing is compiled.",
        )
    subject.check_types()
    subject.check_dependencies()
    if subject.is_chosen:
        with findings.collect_of_plugin("plugin-broken"):
            subject.route_nodes()
    subject.find_payloads()
    subject.check_references()
    with findings.collect("source-refused"):
        # Weights that payloads left in the source model: each is checked against its
        # digest.
        for name in (subject.manifest or NO_MANIFEST).source_weights:
            subject.reader.source_tensor(name)

    if subject.opened is not None:
        domains = (subject.manifest or NO_MANIFEST).custom_domains
        policy = subject.opened.model.policy
        subject.engine = CpuEngine(
            replace(policy, prefer_latency=False, custom_domains=domains)
        )
    if "source-refused" not in findings.codes:
        with findings.collect("compatibility-damaged"):
            infos = read_compatibility_info(subject.proto)
            subject.chosen.check_compatibility(infos)
        _look_into_payloads(subject)
    if subject.opened and subject.is_chosen and not findings.has_errors:
        _rehearse_load(subject.opened, subject)
    if not findings.has_errors:
        _note_unchecked(subject)
    return [*subject.reports.values()]


def _note_unchecked(subject: Subject) -> None:
    """Note the payloads that nobody checked."""
    carriers = {
        subject.keys[r.name]: r
        for r in reversed(subject.records)
        if r.name in subject.keys
    }
    for key, report in subject.reports.items():
        if key in carriers and not report.digests and report.looked_into_by is None:
            record = carriers[key]
            subject.findings.add(
                "not-checked",
                f"no byte of the payload {report.name!r} was judged: nothing says its "
                "digest, and no EP here looked into it.",
                node=record.name,
                hint=_describe_reader(record, subject),
            )


def _describe_reader(record: ContextNodeRecord, subject: Subject) -> str:
    """Return how to get an EP that reads the payload of a node: a simulated one does
    not read a vendor's.
    """
    from epctx_core.installing import describe_installation

    is_here = any(
        record in subject.nodes.get(choice.name, ())
        for choice in subject.chosen.choices
        if not choice.cls.simulated
    )
    remedy = "" if is_here else describe_installation(record.source)
    return remedy or "Verify it where the EP that made it is installed."


def _look_into_payloads(subject: Subject) -> None:
    """Have each EP look into its payloads, in another process if one without digests
    could end this one.
    """
    contained = find_contained(subject.chosen, subject.nodes, subject.manifest)
    if contained and _look_elsewhere(contained, subject):
        return
    for choice in subject.chosen.choices:
        # As in a load; the rehearsal passes over it, too.
        is_spared = contained and choice.cls.needs_verified_payloads
        if choice.name in subject.nodes and not is_spared:
            subject.note_reader(_look_into(choice, subject), choice)


def _look_elsewhere(ep: str, subject: Subject) -> bool:
    """Have another process verify the model, because a payload without digests could
    end this one, and note what it found; return False if there can be none.
    """
    findings = subject.findings
    request = subject.request
    node = subject.nodes[ep][0].name
    try:
        with findings.collect(
            "container-refused", {PluginError: "container-refused"}, node=node
        ):
            report = _verify_elsewhere(
                request.source,
                request.session,
                request.registry,
                f"a look of {ep} into payloads without digests",
            )
            for finding in report.findings:
                findings.take(finding)
            readers = {(p.name, p.embedded): p.looked_into_by for p in report.payloads}
            for key, payload in subject.reports.items():
                reader = readers.get((payload.name, payload.embedded))
                subject.reports[key] = replace(payload, looked_into_by=reader)
    except (Fail, InvalidArgument, PackageMissing) as error:
        findings.add(
            "container-not-checked",
            f"{ep} gets no payload without digests in this process, as one could "
            f"end it, and no other process can be used: {error.message}",
            node=node,
            hint=(
                "`epctx seal` adds digests to files that are right; "
                "ep.context_trust_unverified=1 does without them."
            ),
        )
        return False
    return True


def _look_into(choice: ProviderChoice, subject: Subject) -> Sequence[ContextNode]:
    """Have an EP look into its payloads; return the nodes into whose payloads it
    looked.
    """
    findings = subject.findings
    label = choice.record.label
    nodes = _select_nodes(choice.name, subject)
    opened = subject.opened
    if opened is None or not any(node.main_context for node in nodes):
        return ()
    context = opened.make_context(
        choice, Purpose.LOAD, opened.model.identity, subject.engine
    )
    # Where it needs no device it loads them whole, later on.
    is_loaded = choice.cls.loads_without_device
    unchecked: set[str | None] = set()
    looked: Sequence[ContextNode] = ()
    with findings.collect_of_plugin("container-refused", node=nodes[0].name):
        reported = look_into(choice, context, nodes, subject.reader)
        for finding in reported or ():
            if finding.code == "container-not-checked":
                unchecked.add(finding.node)
            findings.take(finding)
        if reported is not None:
            looked = [n for n in nodes if unchecked.isdisjoint({None, n.name})]
        elif not is_loaded:
            findings.add(
                "container-not-checked",
                f"{label} has no check for payloads, so those of its nodes were not "
                "looked into.",
                node=nodes[0].name,
            )

    # It loads all its nodes or none.
    if (
        is_loaded
        and len(nodes) == len(subject.nodes[choice.name])
        and unchecked.isdisjoint(node.name for node in nodes)
    ):
        subject.loadable.add(choice.name)
    return looked


def _select_nodes(ep: str, subject: Subject) -> list[ContextNode]:
    """Return the nodes of an EP whose payloads can be looked into, as the EP gets them
    to load.

    A payload that is known to be another one than the model's would only be refused
    again.
    """
    records = subject.nodes[ep]
    nodes: list[ContextNode] = []
    opened = subject.opened
    if opened is not None and any(record.main_context for record in records):
        with subject.findings.collect("model-invalid"), require_text_names():
            nodes = make_plugin_nodes(records, opened.model.types, ep, subject.manifest)
    gone = {node.name for node in nodes if node.main_context}.difference(subject.keys)
    return [
        node
        for node in nodes
        if not gone or (node.primary is not None and node.primary.name not in gone)
    ]


def _rehearse_load(opened: Opened, subject: Subject) -> None:
    """Do the rest of a load, and note why it would refuse the model.

    Args:
        opened: the request of the load.
        subject: the model.

    Raises:
        InvalidArgument: an option of an EP is wrong.
        ModelLoadCanceled: the host asked to stop.
    """
    findings = subject.findings
    nodes = dict(subject.nodes)
    for source, records in subject.unrouted.items():
        # What no EP takes is in the plan all the same.
        nodes[source] = [*nodes.get(source, ()), *records]
    routed = Routed(
        **vars(opened),
        manifest=subject.manifest,
        nodes=nodes,
        keepers=subject.keepers,
    )
    choices = [
        choice
        for choice in routed.choices
        if choice.name in routed.settled and choice.cls.loads_without_device
    ]
    routed = replace(routed, choices=choices)
    with findings.collect_of_plugin("plugin-broken"):
        try:
            routed.start(subject.engine)
        except NotImplementedByProvider:
            # That an EP cannot do it on this machine is not a fault of the file.
            subject.loadable.clear()
    subject.loadable.difference_update(subject.unrouted)
    if not findings.has_errors:
        started = Started(**vars(routed), engine=subject.engine)
        readers = dict.fromkeys(routed.nodes, subject.reader)
        with findings.collect_of_plugin("model-invalid"), require_text_names():
            assigned = started.assign(routed.settled)
            # Of what EPs keep in the model, nothing is compiled.
            nothing = CompiledPartition(None)
            assigned.assignment.compiled |= dict.fromkeys(
                assigned.assignment.claimed, nothing
            )
            steps = prepare(assigned, subject.folder, readers=readers)
            instances = assigned.providers.instances
            plan_graph(assigned.assignment.main, steps, instances)
