"""Builds what a session runs: EPs, partitions or loaded nodes, CPU groups, and the plan over them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from epctx_core.context.manifest import ReplacedBinaryError, read_manifest
from epctx_core.context.receipts import DigestChecks
from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.errors import Fail, ModelRequiresCompilation, errors_typed
from epctx_core.graph.garbage import collection_paused
from epctx_core.options import GraphOptimizationLevel
from epctx_core.options.choices import CPU_EP
from epctx_core.plugin import EnginePolicy, Purpose
from epctx_core.sessions.assignment import Assignment, GraphAssignment, assign_nodes
from epctx_core.sessions.host import ModelMetadata, NodeArg, model_metadata, node_arg
from epctx_core.sessions.loading import Routing, context_folder, load_context_nodes
from epctx_core.sessions.plan import Planner
from epctx_core.sessions.providers import ProviderSession, choose_providers, kept_functions, private_workspace
from epctx_core.sessions.source import OpenModel, open_model

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.context.paths import ModelFolder
    from epctx_core.options import SessionConfig, SessionOptions
    from epctx_core.options.run import RunOptions
    from epctx_core.registry import Registry
    from epctx_core.registry.instances import ProviderInstances
    from epctx_core.sessions.inspection import OrtEpAssignedSubgraph
    from epctx_core.sessions.providers import ProviderChoice, WorkspaceOf

PlanRun = Callable[[Sequence[Any], "RunOptions | None"], list[Any]]
LOAD_ATTEMPTS = 5
"""How often a load starts again because the model's files were being replaced meanwhile."""


@dataclass(kw_only=True)
class SessionState:
    """What a session owns while it is open. The model itself is not among it.

    Attributes:
        inputs, outputs: the model's, in its order.
        defaults: inputs that the caller may leave out, with their values.
        run: runs the plan, between the run hooks of the EPs that have them; mostly none, and then it is the plan's.
        assigned: who runs which node, if the host wants to know.
    """

    metadata: ModelMetadata
    inputs: Sequence[NodeArg]
    outputs: Sequence[NodeArg]
    providers: ProviderSession
    run: PlanRun
    defaults: Mapping[str, np.ndarray]
    assigned: Sequence[OrtEpAssignedSubgraph] | None


def _with_run_hooks(run: PlanRun, instances: ProviderInstances) -> PlanRun:
    """Return a plan's `run` with the run hooks of EPs around it."""
    on_start, on_end = (
        [ep for ep in instances.names if instances.implements(ep, hook)]
        for hook in ("on_run_start", "on_run_end")
    )
    if not on_start and not on_end:
        return run

    def run_between_hooks(feeds: Sequence[Any], options: RunOptions | None) -> list[Any]:
        tag = options.tag if options is not None else ""
        with contextlib.ExitStack() as ends:
            # Every EP hears of the end, whatever the others or the run raise.
            for ep in on_end:
                ends.callback(instances.call, ep, "on_run_end", tag=tag)
            for ep in on_start:
                instances.call(ep, "on_run_start", tag=tag)
            return run(feeds, options)

    return run_between_hooks


@errors_typed("loading the model")
def build_session(
    path_or_bytes: str | os.PathLike[str] | bytes,
    session: SessionOptions,
    requested: Sequence[tuple[str, Mapping[str, object]]] | None,
    registry: Registry,
    exporter: Exporter | None = None,
) -> SessionState:
    """Read a model and make it ready to run; see `InferenceSession`.

    A context model whose files are being replaced while it is read is read again, so that a load
    gives the old model or the new one.

    Args:
        exporter: writes the context model of what the session compiles; None for nobody.
    """
    # What is wrong with the host's wishes is found before a model of any size is read.
    choose_providers(requested or (), session, registry, None)
    for attempt in range(LOAD_ATTEMPTS):
        model: OpenModel | None = None
        # Loading makes very many small objects; those that do not last are gone before it is over.
        with contextlib.ExitStack() as pause:
            try:
                with DigestChecks(session.cancellation) as checks:
                    model = open_model(
                        path_or_bytes,
                        session.config(),
                        lambda: kept_functions(
                            choose_providers(requested or (), session, registry, Purpose.RUN, tell=False)[0]
                        ),
                        checks,
                    )
                    # Compiling is an EP's business and may take long.
                    if model.context_nodes:
                        pause.enter_context(collection_paused(model.node_count))
                    return _build(model, session, requested, registry, exporter)
            except ReplacedBinaryError:
                if attempt == LOAD_ATTEMPTS - 1 or (model is not None and _is_unchanged(model)):
                    raise
    raise AssertionError("the last attempt returns or raises")


def _is_unchanged(model: OpenModel) -> bool:
    """Whether a model's file still holds what was read: then its binary is wrong for good."""
    path = model.source.path
    try:
        return path is None or hashlib.sha256(path.read_bytes()).hexdigest() == model.source.digest
    except OSError:  # reading it again will say what is wrong with it
        return False


class Exporter(Protocol):
    """Writes the context model of a session beside making it; called in the order of its methods."""

    def settled(
        self, model: OpenModel, choices: Sequence[ProviderChoice]
    ) -> contextlib.AbstractContextManager[WorkspaceOf]:
        """Settle where everything goes; what is entered ends when the session is made or has failed.

        Gives what the session's EPs share with others.
        """

    def start(self, providers: ProviderSession) -> None:
        """Take the live EPs, before they are asked for anything; raise if one cannot save what it compiles."""

    def check(self, model: OpenModel, assignment: Assignment) -> None:
        """Take the model as EPs see it, and an assignment; raise if what they compile could not be written."""

    def write(self) -> object:
        """Write the context model."""


def _build(
    model: OpenModel,
    session: SessionOptions,
    requested: Sequence[tuple[str, Mapping[str, object]]] | None,
    registry: Registry,
    exporter: Exporter | None,
) -> SessionState:
    """Return the session of a model that was read, or close what was begun."""
    config, checks = session.config(), model.checks
    manifest = read_manifest(model.source.proto, config.input_budget.manifest_entries)
    purpose = Purpose.LOAD if model.context_nodes and exporter is None else Purpose.RUN
    routing = Routing(model.context_nodes, requested, session, registry, purpose, manifest)
    providers = ProviderSession(session, registry)
    try:
        with contextlib.ExitStack() as stack:
            folder = context_folder(model, config, compiles=exporter is not None)
            routing.check_compatibility(model.source.proto, fail_on_suboptimal=config.fail_on_suboptimal)
            workspace_of: WorkspaceOf = private_workspace
            if exporter is not None:
                workspace_of = stack.enter_context(exporter.settled(model, routing.choices))
            elif config.share_contexts:
                from epctx_core.sessions.shared_workspaces import load_workspaces

                workspace_of = load_workspaces(routing.nodes, folder, config, manifest)
            engine = _engine_of(session)
            providers.start(
                routing.choices,
                purpose=purpose,
                model=model.identity,
                engine=engine,
                workspace_of=workspace_of,
            )
            if exporter is not None:
                exporter.start(providers)
            state = _plan(model, routing, folder, providers, engine, exporter)
            checks.finish()
            return state
    except BaseException:
        providers.close()
        raise


def _engine_of(session: SessionOptions) -> CpuEngine:
    config = session.config()
    shares, latency = config.share_contexts, config.prefer_latency
    return CpuEngine(
        EnginePolicy(
            engine=config.engine,
            intra_op_num_threads=session.intra_op_num_threads,
            # Prepacked weights are a copy of each session's own: in a share group only on request.
            prefer_latency=False if shares and latency is None else latency,
            optimizes=session.graph_optimization_level > GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        )
    )


def _plan(
    model: OpenModel,
    routing: Routing,
    folder: ModelFolder | None,
    providers: ProviderSession,
    engine: CpuEngine,
    exporter: Exporter | None,
) -> SessionState:
    """Assign the nodes of a model, have EPs load and compile theirs, and make the plan."""
    session, instances, checks = providers.session, providers.instances, model.checks
    config = session.config()
    if not model.context_nodes:
        from epctx_core.sessions.optimise import optimise_model

        model = optimise_model(model, providers, GraphOptimizationLevel(session.graph_optimization_level))
    # EPs whose nodes are in the model decided what to compile when it was compiled: they are asked for kernels only.
    settled = routing.settled if exporter is None else ()
    eps = [
        ep for ep in instances.names if ep not in settled or instances.implements(ep, "get_kernel_registry")
    ]
    assignment = assign_nodes(model, providers, eps, kernels_only=settled)
    groups = [(part, part.cpu_groups()) for part in assignment.graphs]
    _check_allowed(model.source.where, config, assignment, groups)
    if exporter is not None:
        exporter.check(model, assignment)
    engine.policy.pieces = (
        len(assignment.partitions) + len(model.context_nodes) + sum(len(cpu) for _, cpu in groups)
    )
    with routing.naming_others():
        loaded = load_context_nodes(model, routing.nodes, folder, providers, routing.manifest)
    planner = Planner(engine, instances, loaded, assignment.matchers)
    if assignment.partitions:
        from epctx_core.sessions.claims import compile_partitions

        planner.add_compiled(compile_partitions(assignment, providers, Purpose.RUN))
    providers.cancel.raise_if_requested()
    for part, cpu in groups:
        planner.prepare(part, cpu)
    # Written last: a session that cannot be made leaves no files.
    if exporter is not None:
        checks.finish()
        exporter.write()
    for part, cpu in groups:
        part.fix(cpu)
    return _state_of(model, routing, assignment, planner, providers)


def _check_allowed(
    where: str,
    config: SessionConfig,
    assignment: Assignment,
    groups: Sequence[tuple[GraphAssignment, Sequence[Sequence[int]]]],
) -> None:
    """Raise if the host forbids compiling, or the CPU EP."""
    if config.disable_model_compile and assignment.partitions:
        first = assignment.partitions[0]
        raise ModelRequiresCompilation(
            f"{first.ep} would have to compile {len(first.node_indices)} nodes of {where}, and "
            "session.disable_model_compile is set.",
            ep=first.ep,
            hint="Load the context model, or compile one first: epctx compile MODEL --ep ...",
        )
    # Control flow around an EP's work is the host's own doing and no fallback.
    left = [part.graph.nodes[i] for part, cpu in groups for group in cpu for i in group]
    if config.disable_cpu_ep_fallback and left:
        node = left[0]
        raise Fail(
            f"node {node.name!r} ({node.op_type}) and {len(left) - 1} more are left to the "
            "CPU EP, and session.disable_cpu_ep_fallback is set.",
            node=node.name,
            ep=CPU_EP,
            hint="Add an EP that takes them, or leave the option at 0.",
        )


def _state_of(
    model: OpenModel, routing: Routing, assignment: Assignment, planner: Planner, providers: ProviderSession
) -> SessionState:
    graph, instances = model.graph, providers.instances
    with collection_paused(model.node_count):
        plan = planner.plan(assignment.main)
    assigned = None
    if providers.session.config().record_assignments:
        from epctx_core.sessions.inspection import assigned_subgraphs

        assigned = assigned_subgraphs(assignment, instances.names, routing.nodes)
    return SessionState(
        metadata=model_metadata(model.source.proto),
        inputs=[node_arg(name, model.types) for name in graph.input_names],
        outputs=[node_arg(name, model.types) for name in graph.output_names],
        providers=providers,
        run=_with_run_hooks(plan.run, instances),
        defaults={n: graph.weights[n].array() for n in graph.input_names if n in graph.weights},
        assigned=assigned,
    )
