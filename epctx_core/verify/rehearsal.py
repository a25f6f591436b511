"""The rest of a load, where nothing was found wrong: EPs load their nodes without a device, engines prepare the others.

Nothing is run: in place of what EPs would run stand steps that nobody takes, and engines optimise nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from epctx_core.engines import CpuEngine, EnginePolicy
from epctx_core.errors import NotImplementedByProvider
from epctx_core.graph.model_io import names_as_text
from epctx_core.plugin import Purpose
from epctx_core.sessions.assignment import assign_nodes
from epctx_core.sessions.loading import Routing, load_nodes
from epctx_core.sessions.plan import Planner, StepSpec
from epctx_core.sessions.providers import ProviderSession
from epctx_core.verify.providers import nodes_to_look_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.graph.index import GraphIndex
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.source import OpenModel
    from epctx_core.verify.payloads import FoundPayloads
    from epctx_core.verify.subject import Subject


def rehearse_load(subject: Subject, payloads: FoundPayloads, providers: ProviderSession) -> dict[str, str]:
    """Do what else a load does with a model, and note what it would stumble over.

    Args:
        subject: the model.
        payloads: those that were found.
        providers: gets the EPs, and closes them.

    Returns:
        A primary's name to who loaded it.

    Raises:
        InvalidArgument: an option of an EP is wrong.
        ModelLoadCanceled: the host asked to stop.
    """
    model, findings = subject.opened, subject.findings
    loaded: dict[str, str] = {}
    if model is None or findings.has_errors:
        return loaded
    engine = CpuEngine(EnginePolicy(prefer_latency=False))
    routing = _start(subject, model, engine, providers)
    for ep, choice in providers.choices.items():
        if routing is not None and ep in routing.nodes and not findings.has_errors:
            names = _load(ep, routing, payloads, providers, subject)
            loaded |= dict.fromkeys(names, choice.record.origin)
    if not findings.has_errors:
        _prepare(subject, model, engine, providers)
    return loaded


def _start(
    subject: Subject, model: OpenModel, engine: CpuEngine, providers: ProviderSession
) -> Routing | None:
    """Make an instance of each EP that a load would ask and that needs no device for it.

    Returns None if nobody takes a node, or an EP cannot do it on this machine: that is nothing of the file's.
    """
    with subject.findings.collected_of_plugin("plugin-broken"), suppress(NotImplementedByProvider):
        routing = Routing(
            subject.records,
            subject.session.providers or None,
            subject.session,
            subject.registry,
            Purpose.EXPORT,
            subject.manifest,
        )
        providers.start(
            [c for c in routing.choices if c.name in routing.settled and c.cls.loads_without_device],
            purpose=Purpose.EXPORT,
            model=model.identity,
            engine=engine,
        )
        return routing
    return None


def _load(
    ep: str, routing: Routing, payloads: FoundPayloads, providers: ProviderSession, subject: Subject
) -> list[str]:
    """Have an EP load its nodes, if all their payloads can be had; return the primaries that it loaded."""
    nodes = nodes_to_look_at(ep, routing.nodes[ep], payloads, subject)
    findings = subject.findings
    if len(nodes) < len(routing.nodes[ep]) or findings.is_unchecked(node.name for node in nodes):
        return []
    with findings.collected_of_plugin("container-refused", node=nodes[0].name), routing.naming_others():
        load_nodes(ep, nodes, payloads.reader, providers, Purpose.EXPORT)
        return [node.name for node in nodes if node.main_context]
    return []


def _prepare(subject: Subject, model: OpenModel, engine: CpuEngine, providers: ProviderSession) -> None:
    """Prepare what is left to the CPU EP, and plan all."""
    instances = providers.instances
    with subject.findings.collected_of_plugin("model-invalid"), names_as_text():
        assignment = assign_nodes(
            model,
            providers,
            kernels := [ep for ep in instances.names if instances.implements(ep, "get_kernel_registry")],
            kernels_only=kernels,
        )
        groups = [(part, part.cpu_groups()) for part in assignment.graphs]
        # No EP makes anything for this plan.
        planner = Planner(
            engine, ProviderSession(subject.session, subject.registry), _stand_ins(model, assignment), {}
        )
        for part, cpu in groups:
            planner.prepare(part, cpu)
            part.fix(cpu)
        planner.plan(assignment.main)


def _stand_ins(model: OpenModel, assignment: Assignment) -> dict[GraphIndex, dict[int, StepSpec]]:
    """Return steps in place of those that EPs would run: loaded nodes and kernels."""
    steps: dict[GraphIndex, dict[int, StepSpec]] = {part.graph: {} for part in assignment.graphs}
    for record in model.context_nodes:
        graph = model.graph_of(record)
        steps.setdefault(graph, {})[record.index] = _stand_in(graph, record.index)
    for part in assignment.graphs:
        for kernel in part.kernel_nodes:
            steps[part.graph][kernel.node] = _stand_in(part.graph, kernel.node)
        part.kernel_nodes.clear()
    return steps


def _stand_in(graph: GraphIndex, node: int) -> StepSpec:
    outputs = [name for name in graph.outputs[node] if name]
    return StepSpec(graph.node_name(node), "", _not_run, graph.inputs[node], outputs)


def _not_run(_inputs: Sequence[Any], _options: Any) -> NoReturn:
    raise AssertionError("a verification runs nothing")
