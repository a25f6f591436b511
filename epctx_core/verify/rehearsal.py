"""The rest of a load, where nothing was found wrong: EPs load their nodes without a device, engines prepare the others.

Nothing is run: in place of what EPs would run stand steps that nobody takes, and engines optimise nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn

from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    NotImplementedByProvider,
)
from epctx_core.graph.model_io import names_as_text
from epctx_core.kernels import CpuEngine, EnginePolicy
from epctx_core.plugin import Purpose
from epctx_core.sessions.assignment import assign_nodes
from epctx_core.sessions.loading import Routing
from epctx_core.sessions.plan import Planner, StepSpec
from epctx_core.sessions.providers import ProviderSession, check_compiled
from epctx_core.verify.reading import known_payloads, nodes_to_look_at

if TYPE_CHECKING:
    from epctx_core.graph.index import GraphIndex
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.source import OpenModel
    from epctx_core.verify.findings import Findings
    from epctx_core.verify.payloads import FoundPayload
    from epctx_core.verify.subject import Subject


def rehearse_load(
    subject: Subject, payloads: Mapping[str, FoundPayload], findings: Findings
) -> dict[str, str]:
    """Do what else a load does with a model, and note what it would stumble over.

    Args:
        payloads: a primary's name to its payload.

    Returns:
        A primary's name to who loaded it.

    Raises:
        InvalidArgument: an option of an EP is wrong.
        ModelLoadCanceled: the host asked to stop.
    """
    model = subject.opened
    loaded: dict[str, str] = {}
    if model is None or findings.has_errors:
        return loaded
    engine = CpuEngine(EnginePolicy(prefer_latency=False))
    with closing(ProviderSession(subject.session, subject.registry)) as providers:
        routing = _start(subject, model, engine, providers, findings)
        for ep, choice in providers.choices.items():
            if routing is not None and ep in routing.nodes and not findings.has_errors:
                names = _load(ep, routing, subject, payloads, providers, findings)
                loaded |= dict.fromkeys(names, choice.record.origin)
        if not findings.has_errors:
            _prepare(subject, model, engine, providers, findings)
    return loaded


def _start(
    subject: Subject, model: OpenModel, engine: CpuEngine, providers: ProviderSession, findings: Findings
) -> Routing | None:
    """Make an instance of each EP that a load would ask and that needs no device for it.

    Returns None if nobody takes a node, or an EP cannot do it on this machine: that is nothing of the file's.
    """
    try:
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
    except (InvalidArgument, ModelLoadCanceled):
        raise
    except NotImplementedByProvider:
        return None
    except EpctxError as error:
        findings.add_error("plugin-broken", error)
        return None
    return routing


def _load(
    ep: str,
    routing: Routing,
    subject: Subject,
    payloads: Mapping[str, FoundPayload],
    providers: ProviderSession,
    findings: Findings,
) -> list[str]:
    """Have an EP load its nodes, if all their payloads can be had; return the primaries that it loaded."""
    nodes = nodes_to_look_at(ep, routing.nodes[ep], subject, payloads)
    if len(nodes) < len(routing.nodes[ep]) or findings.is_unchecked(node.name for node in nodes):
        return []
    try:
        with known_payloads(subject, payloads) as reader:
            loaded = providers.instances.call(ep, "load_context", nodes=nodes, reader=reader)
            providers.keep(loaded)
            check_compiled(
                ep, "load_context", loaded, [node.name for node in nodes], providers, Purpose.EXPORT
            )
        return [node.name for node in nodes if node.main_context]
    except (InvalidArgument, ModelLoadCanceled):
        raise
    except (InvalidGraph, InvalidProtobuf) as error:
        findings.add_error("container-refused", error, node=nodes[0].name)
    except NotImplementedByProvider as error:
        findings.add_error("kernel-missing", error, node=nodes[0].name)
    except EpctxError as error:
        findings.add_error("plugin-broken", error, node=nodes[0].name)
    return []


def _prepare(
    subject: Subject, model: OpenModel, engine: CpuEngine, providers: ProviderSession, findings: Findings
) -> None:
    """Prepare what is left to the CPU EP, and plan all."""
    instances = providers.instances
    try:
        with names_as_text():
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
    except (InvalidArgument, ModelLoadCanceled):
        raise
    except InvalidGraph as error:
        findings.add_error("model-invalid", error)
    except NotImplementedByProvider as error:
        findings.add_error("kernel-missing", error)
    except EpctxError as error:
        findings.add_error("plugin-broken", error)


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
