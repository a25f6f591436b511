"""Builds what a session runs: EPs, partitions or loaded nodes, CPU groups, and the plan over them."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx

from epctx_core.compile.destination import destination_of
from epctx_core.compile.emit import check_can_export
from epctx_core.compile.node_names import check_names
from epctx_core.compile.optimise import optimise_model
from epctx_core.compile.pipeline import assign_nodes, compile_partitions, write_context_model
from epctx_core.compile.providers import (
    CPU_EP,
    ProviderSession,
    kept_functions,
    requested_classes,
)
from epctx_core.compile.report import Stopwatch
from epctx_core.compile.source import OpenModel, open_model, refuse_compiled
from epctx_core.context.manifest import read_manifest
from epctx_core.context.reader import ReplacedBinaryError
from epctx_core.errors import Fail, ModelRequiresCompilation, NotImplementedByProvider
from epctx_core.graph.garbage import collection_paused
from epctx_core.kernels import CpuEngine, EnginePolicy
from epctx_core.options import GraphOptimizationLevel
from epctx_core.plugin import Purpose
from epctx_core.registry.guard import blame
from epctx_core.runtime.boundary import ModelMetadata, NodeArg, model_metadata, node_arg
from epctx_core.runtime.compatibility import check_compatibility
from epctx_core.runtime.loading import load_context_nodes
from epctx_core.runtime.plan import Plan, StepSpec
from epctx_core.runtime.routing import Routing
from epctx_core.runtime.steps import (
    BodyPlan,
    CpuSteps,
    control_flow_step,
    kernel_step,
    partition_step,
)

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.compile.assign import Assignment, GraphAssignment
    from epctx_core.compile.destination import Destination
    from epctx_core.graph.index import GraphIndex
    from epctx_core.options import RunOptions, SessionConfig, SessionOptions
    from epctx_core.registry import Registry

_log = logging.getLogger("epctx.session")
LOAD_ATTEMPTS = 5
"""How often a load starts again because the model's files were being replaced meanwhile."""


@dataclass(kw_only=True)
class SessionState:
    """What a session owns while it is open. The model itself is not among it.

    Attributes:
        inputs, outputs: the model's, in its order.
        defaults: inputs that the caller may leave out, with their values.
        on_start, on_end: the EPs with the hook of that name; mostly none, and then they cost nothing.
    """

    metadata: ModelMetadata
    inputs: Sequence[NodeArg]
    outputs: Sequence[NodeArg]
    providers: ProviderSession
    plan: Plan
    defaults: Mapping[str, np.ndarray]
    on_start: Sequence[str]
    on_end: Sequence[str]

    def run(self, feeds: Sequence[Any], options: RunOptions | None) -> list[Any]:
        """Run the plan, between the run hooks of the EPs that have them."""
        if not self.on_start and not self.on_end:
            return self.plan.run(feeds, options)
        tag = options.tag if options is not None else ""
        call = self.providers.instances.call
        with contextlib.ExitStack() as ends:
            # Every EP hears of the end, whatever the others or the run raise.
            for ep in self.on_end:
                ends.callback(call, ep, "on_run_end", tag=tag)
            for ep in self.on_start:
                call(ep, "on_run_start", tag=tag)
            return self.plan.run(feeds, options)

    def close(self) -> None:
        """Release everything; further calls do nothing."""
        self.providers.close()


def build_session(
    path_or_bytes: str | os.PathLike[str] | bytes,
    session: SessionOptions,
    requested: Sequence[tuple[str, Mapping[str, object]]] | None,
    registry: Registry,
) -> SessionState:
    """Read a model and make it ready to run; see `InferenceSession`.

    A context model whose files are being replaced while it is read is read again, so that a load
    gives the old model or the new one.
    """
    for attempt in range(LOAD_ATTEMPTS):
        with contextlib.ExitStack() as pause:
            # Loading makes very many small objects; those that do not last are gone before it is over.
            pause.enter_context(collection_paused())
            last = attempt == LOAD_ATTEMPTS - 1
            state = _attempt(path_or_bytes, session, requested, registry, compiling=pause.close, last=last)
        if state is not None:
            return state
    raise AssertionError("the last attempt returns or raises")


def _attempt(
    path_or_bytes: str | os.PathLike[str] | bytes,
    session: SessionOptions,
    requested: Sequence[tuple[str, Mapping[str, object]]] | None,
    registry: Registry,
    *,
    compiling: Callable[[], None],
    last: bool,
) -> SessionState | None:
    """Return the session; None if the model's files were being replaced and this is not the last attempt."""
    model = open_model(
        path_or_bytes,
        session.config(),
        lambda: kept_functions(requested_classes(requested or (), registry)),
    )
    if not model.context_nodes:
        # That is an EP's business and may take long.
        compiling()
    try:
        return _Builder(model, session, requested, registry).build()
    except ReplacedBinaryError:
        if last or _is_unchanged(model):
            raise
    return None


def _is_unchanged(model: OpenModel) -> bool:
    """Whether a model's file still holds what was read: then its binary is wrong for good."""
    path = model.source.path
    try:
        return path is None or hashlib.sha256(path.read_bytes()).hexdigest() == model.source.digest
    except OSError:  # reading it again will say what is wrong with it
        return False


class _Builder:
    """One session on its way."""

    def __init__(
        self,
        model: OpenModel,
        session: SessionOptions,
        requested: Sequence[tuple[str, Mapping[str, object]]] | None,
        registry: Registry,
    ) -> None:
        self._model = model
        self._session = session
        self._registry = registry
        self._config: SessionConfig = session.config()
        self._manifest = read_manifest(model.source.proto)
        self._routing = Routing(model.context_nodes, requested, session, registry, self._manifest)
        self._providers = ProviderSession()
        self._steps: dict[GraphIndex, dict[int, StepSpec]] = {}
        self._level = GraphOptimizationLevel(session.graph_optimization_level)
        self._engine = CpuEngine(
            EnginePolicy(
                intra_op_num_threads=session.intra_op_num_threads,
                prefer_latency=self._config.prefer_latency,
                optimizes=self._level == GraphOptimizationLevel.ORT_ENABLE_ALL,
            )
        )
        self._cpu = CpuSteps(self._engine)
        self._watch = Stopwatch()

    def build(self) -> SessionState:
        """Return the finished session, or close what was begun."""
        try:
            return self._build()
        except BaseException:
            self._providers.close()
            raise

    def _build(self) -> SessionState:
        nodes = self._model.context_nodes
        for warning in check_compatibility(
            self._model.source.proto,
            self._routing.choices,
            fail_on_suboptimal=self._config.fail_on_suboptimal,
        ):
            _log.warning("%s", warning)
        self._providers.start(
            self._routing.choices,
            purpose=Purpose.LOAD if nodes else Purpose.RUN,
            model=self._model.identity,
            session=self._session,
            engine=self._engine,
            registry=self._registry,
        )
        if not nodes:
            self._model = optimise_model(self._model, self._providers, self._level)
        destination = self._destination()
        # An EP whose nodes are in the model decided what it takes when the model was compiled.
        free = [ep for ep in self._providers.choices if ep not in self._routing.nodes]
        assignment = assign_nodes(self._model, self._providers, free, self._session, self._watch)
        groups = [
            (part, part.partitioner.group([[node] for node in part.left_over()]))
            for part in assignment.graphs
        ]
        self._check_allowed(assignment, groups)
        if destination is not None:
            check_names(self._model, assignment)
        self._engine.policy.pieces = (
            len(assignment.partitions) + len(nodes) + sum(len(cpu) for _, cpu in groups)
        )
        self._steps = load_context_nodes(
            self._model, self._routing.nodes, self._providers, self._session, self._manifest
        )
        self._compile(assignment)
        for part, cpu in groups:
            self._prepare(part, cpu)
        # Written last: a session that cannot be made leaves no files.
        if destination is not None and assignment.partitions:
            write_context_model(
                self._model,
                assignment,
                self._providers,
                destination,
                embedded=self._config.embed,
                watch=self._watch,
            )
        for part, cpu in groups:
            part.partitioner.take(cpu)
        return self._finish(assignment)

    def _destination(self) -> Destination | None:
        """Return where the context model goes, checked before anything is compiled; None for nowhere."""
        if not self._config.context_enable:
            return None
        self._config.refuse_unsupported()
        refuse_compiled(self._model)
        source = self._model.source
        # The session-option route never replaces, as in ONNX Runtime.
        destination = destination_of(
            source.path, self._config.context_file_path, replace=False, reads=source.weights_files
        )
        choices = self._routing.choices
        check_can_export(self._providers)
        destination.check(
            {} if self._config.embed else {c.name: destination.binary_name(c.binary_suffix) for c in choices}
        )
        return destination

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

    def _compile(self, assignment: Assignment) -> None:
        compiled = compile_partitions(
            assignment, self._providers, self._session, purpose=Purpose.RUN, watch=self._watch
        )
        for partition, runnable in compiled.items():
            steps = self._steps.setdefault(partition.graph, {})
            steps[partition.node_indices[0]] = partition_step(partition, runnable)

    def _prepare(self, part: GraphAssignment, cpu_groups: Sequence[Sequence[int]]) -> None:
        """Make what one graph needs besides partitions: EPs' kernels and groups for the CPU EP."""
        steps = self._steps.setdefault(part.graph, {})
        for kernel in part.kernel_nodes:
            with blame(self._providers.instances.record(kernel.ep), "KernelDef.create"):
                steps[kernel.node] = kernel_step(part.graph, kernel)
        for group in cpu_groups:
            steps[group[0]] = self._cpu.step(part.graph, group)

    def _plan(self, part: GraphAssignment) -> BodyPlan:
        """Return the plan of a graph; those of the bodies in it are made first."""
        graph, steps = part.graph, self._steps[part.graph]
        for node in part.executed:
            plans = {name: self._plan(body) for name, body in part.bodies[node].items()}
            steps[node] = control_flow_step(graph, node, plans)
        specs = [steps[group[0]] for group in part.partitioner.execution_order()]
        wanted = {name for spec in specs for name in spec.inputs} | set(graph.output_names)
        captured = [name for name in graph.captured if name in wanted and name not in graph.constants]
        plan = Plan(
            specs,
            inputs=(*graph.input_names, *captured),
            outputs=graph.output_names,
            constants={name: _constant(graph, name) for name in sorted(wanted & graph.constants)},
        )
        return BodyPlan(plan, captured)

    @collection_paused()
    def _finish(self, assignment: Assignment) -> SessionState:
        graph = self._model.graph
        instances = self._providers.instances
        plan = self._plan(assignment.main).plan
        types = self._model.types
        return SessionState(
            metadata=model_metadata(self._model),
            inputs=[node_arg(name, types) for name in graph.input_names],
            outputs=[node_arg(name, types) for name in graph.output_names],
            providers=self._providers,
            plan=plan,
            defaults={n: graph.weights[n].array() for n in graph.input_names if n in graph.weights},
            on_start=[ep for ep in instances.names if instances.implements(ep, "on_run_start")],
            on_end=[ep for ep in instances.names if instances.implements(ep, "on_run_end")],
        )


def _constant(graph: GraphIndex, name: str) -> np.ndarray:
    if name in graph.weights:
        return graph.weights[name].array()
    tensor = graph.special_tensors[name]
    if isinstance(tensor, onnx.TensorProto):
        return onnx.numpy_helper.to_array(tensor)
    raise NotImplementedByProvider(
        f"the sparse initializer {name!r} crosses from the model into an EP or an output, which is not supported.",
        hint="Make it dense.",
    )
