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
from epctx_core.sessions.boundary import ModelMetadata, NodeArg, model_metadata, node_arg
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
                    return _Builder(model, session, requested, registry, exporter).build()
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


class _Builder:
    """One session on its way."""

    def __init__(
        self,
        model: OpenModel,
        session: SessionOptions,
        requested: Sequence[tuple[str, Mapping[str, object]]] | None,
        registry: Registry,
        exporter: Exporter | None,
    ) -> None:
        self._model = model
        self._exporter = exporter
        self._checks = model.checks
        self._session = session
        self._config: SessionConfig = session.config()
        self._manifest = read_manifest(model.source.proto, self._config.input_budget.manifest_entries)
        loads = model.context_nodes and exporter is None
        self._purpose = Purpose.LOAD if loads else Purpose.RUN
        self._routing = Routing(
            model.context_nodes, requested, session, registry, self._purpose, self._manifest
        )
        self._providers = ProviderSession(session, registry)
        self._level = GraphOptimizationLevel(session.graph_optimization_level)
        shares, latency = self._config.share_contexts, self._config.prefer_latency
        self._engine = CpuEngine(
            EnginePolicy(
                engine=self._config.engine,
                intra_op_num_threads=session.intra_op_num_threads,
                # Prepacked weights are a copy of each session's own: in a share group only on request.
                prefer_latency=False if shares and latency is None else latency,
                optimizes=self._level > GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
            )
        )

    def build(self) -> SessionState:
        """Return the finished session, or close what was begun."""
        try:
            with contextlib.ExitStack() as stack:
                state = self._build(stack)
                self._checks.finish()
                return state
        except BaseException:
            self._providers.close()
            raise

    def _build(self, stack: contextlib.ExitStack) -> SessionState:
        nodes, exporter = self._model.context_nodes, self._exporter
        folder = context_folder(self._model, self._config, compiles=exporter is not None)
        self._routing.check_compatibility(
            self._model.source.proto, fail_on_suboptimal=self._config.fail_on_suboptimal
        )
        workspace_of: WorkspaceOf = private_workspace
        if exporter is not None:
            workspace_of = stack.enter_context(exporter.settled(self._model, self._routing.choices))
        elif self._config.share_contexts:
            from epctx_core.sessions.shared_workspaces import load_workspaces

            workspace_of = load_workspaces(self._routing.nodes, folder, self._config, self._manifest)
        self._providers.start(
            self._routing.choices,
            purpose=self._purpose,
            model=self._model.identity,
            engine=self._engine,
            workspace_of=workspace_of,
        )
        if exporter is not None:
            exporter.start(self._providers)
        if not nodes:
            from epctx_core.sessions.optimise import optimise_model

            self._model = optimise_model(self._model, self._providers, self._level)
        # EPs whose nodes are in the model decided what to compile when it was compiled: they are asked for kernels only.
        settled = self._routing.settled if exporter is None else ()
        instances = self._providers.instances
        eps = [
            ep
            for ep in instances.names
            if ep not in settled or instances.implements(ep, "get_kernel_registry")
        ]
        assignment = assign_nodes(self._model, self._providers, eps, kernels_only=settled)
        groups = [(part, part.cpu_groups()) for part in assignment.graphs]
        self._check_allowed(assignment, groups)
        if exporter is not None:
            exporter.check(self._model, assignment)
        self._engine.policy.pieces = (
            len(assignment.partitions) + len(nodes) + sum(len(cpu) for _, cpu in groups)
        )
        planner = self._planner(assignment, folder)
        for part, cpu in groups:
            planner.prepare(part, cpu)
        # Written last: a session that cannot be made leaves no files.
        if exporter is not None:
            self._checks.finish()
            exporter.write()
        for part, cpu in groups:
            part.fix(cpu)
        return self._finish(assignment, planner)

    def _planner(self, assignment: Assignment, folder: ModelFolder | None) -> Planner:
        """Have EPs load their nodes, then compile their partitions."""
        with self._routing.naming_others():
            loaded = load_context_nodes(
                self._model, self._routing.nodes, folder, self._providers, self._session, self._manifest
            )
        planner = Planner(self._engine, self._providers.instances, loaded, assignment.matchers)
        if assignment.partitions:
            from epctx_core.sessions.claims import compile_partitions

            planner.add_compiled(compile_partitions(assignment, self._providers, Purpose.RUN))
        self._providers.cancel.raise_if_requested()
        return planner

    def _check_allowed(
        self, assignment: Assignment, groups: Sequence[tuple[GraphAssignment, Sequence[Sequence[int]]]]
    ) -> None:
        """Raise if the host forbids compiling, or the CPU EP."""
        if self._config.disable_model_compile and assignment.partitions:
            first = assignment.partitions[0]
            raise ModelRequiresCompilation(
                f"{first.ep} would have to compile {len(first.node_indices)} nodes of "
                f"{self._model.source.where}, and session.disable_model_compile is set.",
                ep=first.ep,
                hint="Load the context model, or compile one first: epctx compile MODEL --ep ...",
            )
        # Control flow around an EP's work is the host's own doing and no fallback.
        left = [part.graph.nodes[i] for part, cpu in groups for group in cpu for i in group]
        if self._config.disable_cpu_ep_fallback and left:
            node = left[0]
            raise Fail(
                f"node {node.name!r} ({node.op_type}) and {len(left) - 1} more are left to the "
                "CPU EP, and session.disable_cpu_ep_fallback is set.",
                node=node.name,
                ep=CPU_EP,
                hint="Add an EP that takes them, or leave the option at 0.",
            )

    def _finish(self, assignment: Assignment, planner: Planner) -> SessionState:
        graph = self._model.graph
        instances = self._providers.instances
        with collection_paused(self._model.node_count):
            plan = planner.plan(assignment.main)
        types, assigned = self._model.types, None
        if self._config.record_assignments:
            from epctx_core.sessions.inspection import assigned_subgraphs

            assigned = assigned_subgraphs(assignment, instances.names, self._routing.nodes)
        return SessionState(
            metadata=model_metadata(self._model),
            inputs=[node_arg(name, types) for name in graph.input_names],
            outputs=[node_arg(name, types) for name in graph.output_names],
            providers=self._providers,
            run=_with_run_hooks(plan.run, instances),
            defaults={n: graph.weights[n].array() for n in graph.input_names if n in graph.weights},
            assigned=assigned,
        )
