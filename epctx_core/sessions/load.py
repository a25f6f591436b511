"""Building of a session: a model is read, its nodes are loaded, compiled or prepared,
and planned.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from epctx_core.context.digests import DigestChecks
from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.graph.garbage import pause_collection
from epctx_core.options import GraphOptimizationLevel
from epctx_core.plugin import EnginePolicy, Purpose
from epctx_core.sessions.assignment import check_allowed
from epctx_core.sessions.host import host_call
from epctx_core.sessions.loading import find_context_folder, load_context_nodes
from epctx_core.sessions.plan import PlanRun, add_run_hooks
from epctx_core.sessions.planner import Planner
from epctx_core.sessions.providers import ProviderSession, make_private_workspace
from epctx_core.sessions.signature import describe_model, describe_value
from epctx_core.sessions.source import read_one_state, require_one_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from epctx_core.context.paths import ModelFolder
    from epctx_core.graph.mapping import OpenedFiles
    from epctx_core.sessions.explanation import OrtEpAssignedSubgraph
    from epctx_core.sessions.providers import WorkspaceOf
    from epctx_core.sessions.signature import ModelMetadata, NodeArg
    from epctx_core.sessions.work import Work


@dataclass(kw_only=True)
class SessionState:
    """Resources of an open session; the model itself is not one of them.

    Attributes:
        inputs, outputs: the model's, in its order.
        defaults: inputs that the caller may leave out, with their values.
        run: runs the plan, between the run hooks of EPs that implement them.
        assigned: the EP of each node, if the host asked for it.
        engine: the engine that runs what no EP takes.
    """

    metadata: ModelMetadata
    inputs: Sequence[NodeArg]
    outputs: Sequence[NodeArg]
    providers: ProviderSession
    run: PlanRun
    defaults: Mapping[str, np.ndarray]
    assigned: Sequence[OrtEpAssignedSubgraph] | None
    engine: CpuEngine


class Exporter(Protocol):
    """Writer of the context model of what a session compiles; see `Compile`."""

    def settle(self) -> AbstractContextManager[WorkspaceOf]:
        """Settle where files go, before an EP is made."""

    def check_hooks(self) -> None:
        """Refuse EPs that cannot save what they compile."""

    def check(self) -> None:
        """Refuse an assignment that could not be written."""

    def write(self) -> None:
        """Write all files."""


@host_call("loading the model")
def load_session(work: Work, exporter: Exporter | None = None) -> SessionState:
    """Read a model and make it ready to run; see `InferenceSession`.

    A context model whose files are being replaced while it is read is read again, so
    that a load gives the old model or the new one.

    Args:
        work: the model and the host's options.
        exporter: writes the context model of what the session compiles, if it exports.
    """

    def load(opened: OpenedFiles) -> SessionState:
        # Loading makes very many small objects; those that do not last are gone before
        # it is over.
        with ExitStack() as pause, DigestChecks(work.cancel) as checks:
            # Errors in the host's options are raised before a model of any size is
            # read.
            work.choose(None if exporter is None else Purpose.RUN)
            try:
                model = work.open(opened, checks)
                # Compiling is an EP's business and may take long.
                if model.context_nodes:
                    pause.enter_context(pause_collection(model.node_count))
                return _build(work, exporter)
            except BaseException:
                work.close()
                raise

    return read_one_state(load)


def _build(work: Work, exporter: Exporter | None) -> SessionState:
    """Return the session of a model that was read."""
    work.route()
    folder = find_context_folder(work.model, work.config, compiles=exporter is not None)
    work.check_compatibility()

    with ExitStack() as stack:
        workspaces: WorkspaceOf = make_private_workspace
        if exporter is not None:
            workspaces = stack.enter_context(exporter.settle())
        elif work.config.share_contexts:
            from epctx_core.sessions.shared_workspaces import load_workspaces

            workspaces = load_workspaces(work.nodes, folder, work.config, work.manifest)
        work.start(
            CpuEngine(_make_policy(work)), workspaces, contained=work.find_contained()
        )
        if exporter is not None:
            exporter.check_hooks()
        planner = _prepare(work, folder, exporter)
        state = _plan(work, planner)
        work.model.checks.finish()
        return state


def _make_policy(work: Work) -> EnginePolicy:
    """Return the settings of the session's engine."""
    latency = work.config.prefer_latency
    return EnginePolicy(
        **work.config.engine_settings,
        intra_op_num_threads=work.session.intra_op_num_threads,
        # Prepacked weights are a copy of each session's own: in a share group only on
        # request.
        prefer_latency=False
        if work.config.share_contexts and latency is None
        else latency,
        optimizes=work.session.graph_optimization_level
        > GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        custom_domains=work.manifest.custom_domains if work.manifest else {},
    )


def _prepare(
    work: Work, folder: ModelFolder | None, exporter: Exporter | None
) -> Planner:
    """Assign the nodes of a model, have EPs load and compile theirs, and prepare those
    that are left to the CPU EP.
    """
    if not work.model.context_nodes:
        work.optimise(GraphOptimizationLevel(work.session.graph_optimization_level))
    model = work.model

    # EPs whose nodes are in the model decided what to compile when it was compiled.
    assignment = work.assign(work.settled if exporter is None else ())
    groups = [(part, part.cpu_groups()) for part in assignment.graphs]
    check_allowed(assignment, groups, model.source.where, work.config)
    if exporter is not None:
        exporter.check()

    # An engine spends memory by how many pieces share it.
    work.engine.policy.pieces = (
        len(assignment.partitions)
        + len(model.context_nodes)
        + sum(len(cpu) for _, cpu in groups)
    )
    with work.hint_at_others():
        loaded = load_context_nodes(work, folder)
    require_one_state(model.opened, model.source.where)

    planner = Planner(
        work.engine, work.providers.instances, loaded, assignment.matchers
    )
    if assignment.partitions:
        planner.add_compiled(work.compile().compiled)
    work.providers.cancel.raise_if_requested()
    for part, cpu in groups:
        planner.prepare(part, cpu)

    # Written last: a session that cannot be made leaves no files.
    if exporter is not None:
        model.checks.finish()
        exporter.write()
    for part, cpu in groups:
        part.fix(cpu)
    return planner


def _plan(work: Work, planner: Planner) -> SessionState:
    """Return the session over what was prepared."""
    model = work.model
    instances = work.providers.instances
    with pause_collection(model.node_count):
        plan = planner.plan(work.assignment.main)
    assigned = None
    if work.config.record_assignments:
        from epctx_core.sessions.explanation import list_assigned_subgraphs

        assigned = list_assigned_subgraphs(work.assignment, instances.names, work.nodes)
    graph = model.graph
    return SessionState(
        metadata=describe_model(model.source.proto),
        inputs=[describe_value(name, model.types) for name in graph.input_names],
        outputs=[describe_value(name, model.types) for name in graph.output_names],
        providers=work.providers,
        run=add_run_hooks(plan.run, instances),
        defaults={
            name: graph.weights[name].array()
            for name in graph.input_names
            if name in graph.weights
        },
        assigned=assigned,
        engine=work.engine,
    )
