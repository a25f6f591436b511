"""Load of a session: its model is read, its nodes are loaded by EPs, compiled or
prepared, and planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol, cast

from epctx_core.context.digests import DigestChecks
from epctx_core.context.manifest import MANIFEST, NO_MANIFEST
from epctx_core.context.metadata import get_metadata, read_compatibility_info
from epctx_core.context.paths import ModelFolder
from epctx_core.context.payload_reader import PayloadReader, Reading, make_plugin_nodes
from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.errors import InvalidArgument
from epctx_core.feature_table import METHODS
from epctx_core.file_names import is_folder_name
from epctx_core.frozen import dataclass
from epctx_core.options import DataReader, GraphOptimizationLevel, SessionConfig
from epctx_core.plugin import EnginePolicy, Purpose
from epctx_core.process import pause_collection
from epctx_core.sessions.assignment import check_allowed
from epctx_core.sessions.host import host_call
from epctx_core.sessions.plan import (
    PlanRun,
    RunStep,
    StepsByGraph,
    StepSpec,
    add_checks,
    add_run_hooks,
)
from epctx_core.sessions.planner import add_compiled, add_left_over, plan_graph
from epctx_core.sessions.providers import ProviderSession, make_private_workspace
from epctx_core.sessions.signature import describe_model, describe_value
from epctx_core.sessions.source import OpenModel, read_one_state, require_one_state
from epctx_core.sessions.stage_values import choose, find_contained

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np

    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.graph.mapping import OpenedFiles
    from epctx_core.graph.model_io import SourceModel
    from epctx_core.graph.partition import NodeGroups
    from epctx_core.plugin import (
        TensorView,
    )
    from epctx_core.sessions.assigned_nodes import OrtEpAssignedSubgraph
    from epctx_core.sessions.assignment import GraphAssignment
    from epctx_core.sessions.placement import Placement
    from epctx_core.sessions.providers import WorkspaceOf
    from epctx_core.sessions.signature import ModelMetadata, NodeArg
    from epctx_core.sessions.stage_values import (
        Assigned,
        Chosen,
        Opened,
        Routed,
        Started,
    )
    from epctx_core.sessions.stages import Request


@dataclass(kw_only=True)
class SessionState:
    """Resources of an open session; the model itself is not one of them.

    Attributes:
        inputs, outputs: the model's, in its order.
        run: runs the plan, between the run hooks of EPs that implement them.
        placement: the nodes of each EP, counted.
        engine: the engine that runs what no EP takes.
        defaults: inputs that the caller may leave out, with their values.
        assigned: the EP of each node, if the host asked for it.
    """

    metadata: ModelMetadata
    inputs: Sequence[NodeArg]
    outputs: Sequence[NodeArg]
    providers: ProviderSession
    run: PlanRun
    placement: Placement
    engine: CpuEngine
    defaults: Mapping[str, np.ndarray] = field(default_factory=dict)
    assigned: Sequence[OrtEpAssignedSubgraph] | None = None


class Exporter(Protocol):
    """Writer of the context model of what a session compiles; see `Compile`."""

    def settle(self, work: Opened) -> AbstractContextManager[WorkspaceOf]:
        """Settle where files go, before an EP is made."""

    def check_hooks(self, work: Started) -> None:
        """Refuse EPs that cannot save what they compile."""

    def check(self, work: Assigned) -> None:
        """Refuse an assignment that could not be written."""

    def write(self, work: Assigned) -> None:
        """Write all files."""


@host_call("loading the model")
def load_session(
    request: Request, exporter: Exporter | None = None, *, is_compiled: bool = False
) -> SessionState:
    """Read a model and make it ready to run; see `InferenceSession`.

    A context model is read again if its files are replaced while it is read, so
    that a load gives the old model or the new one.

    Args:
        request: the model and the host's options.
        exporter: writes the context model of what the session compiles, if it exports.
        is_compiled: whether the model was just compiled, so that no EP has anything
            left to compile.
    """

    def load(opened: OpenedFiles) -> SessionState:
        # Loading makes very many small objects; those that do not last are gone before
        # it is over.
        with ExitStack() as pause, DigestChecks(request.cancel) as checks:
            # Errors in the host's options are raised before a model of any size is
            # read.
            chosen = choose(request, None if exporter is None else Purpose.RUN)
            try:
                with chosen.providers.instances.span("read"):
                    source = chosen.read_source(opened, checks)
                    state = None if exporter else _find_whole(chosen, source)
                    if state is not None:
                        checks.finish()
                        return state
                    work = chosen.index_source(source, opened, checks)
                pause.enter_context(pause_collection(work.model.node_count))
                if not work.model.context_nodes:
                    # Compiling is an EP's business and may take long.
                    pause.close()
                return _build(work.route(), exporter, is_compiled=is_compiled)
            except BaseException:
                chosen.close()
                raise

    return read_one_state(load)


def _find_whole(work: Chosen, source: SourceModel) -> SessionState | None:
    """Return the session of a model that the engine runs whole; None where EPs, host
    plugins, or an option of the host ask for its nodes.
    """
    config = work.config
    work.cancel.raise_if_requested()
    if (
        work.choices
        or work.skipped
        or work.providers.instances.host_plugins
        or config.disable_cpu_ep_fallback
        or config.record_assignments
        or get_metadata(source.proto, MANIFEST) is not None
    ):
        return None

    # A load of a context model needs none of it.
    from epctx_core.sessions.whole import prepare_whole

    engine = CpuEngine(_make_policy(work, NO_MANIFEST))
    whole = prepare_whole(source, engine)
    if whole is None:
        return None
    plan, types, placement = whole
    graph = source.proto.graph
    return SessionState(
        metadata=describe_model(source.proto),
        inputs=[describe_value(value.name, types) for value in graph.input],
        outputs=[describe_value(value.name, types) for value in graph.output],
        providers=work.providers,
        run=plan.run,
        placement=placement,
        engine=engine,
    )


def _build(
    work: Routed, exporter: Exporter | None, *, is_compiled: bool
) -> SessionState:
    """Return the session of a model that was read."""
    if contained := find_contained(work, work.nodes, work.manifest):
        from epctx_core.sessions.isolation import load_contained

        return load_contained(work, contained)  # type: ignore[no-any-return]
    folder = find_context_folder(work.model, work.config, compiles=exporter is not None)
    work.check_compatibility(read_compatibility_info(work.model.source.proto))

    with ExitStack() as stack:
        workspaces: WorkspaceOf = make_private_workspace
        if exporter is not None:
            workspaces = stack.enter_context(exporter.settle(work))
        elif work.config.share_contexts:
            from epctx_core.sessions.shared_workspaces import load_workspaces

            workspaces = load_workspaces(work.nodes, folder, work.config, work.manifest)
        span = work.providers.instances.span
        with span("start"):
            engine = CpuEngine(_make_policy(work, work.manifest or NO_MANIFEST))
            started = work.start(engine, workspaces)
        if exporter is not None:
            exporter.check_hooks(started)
        if not work.model.context_nodes:
            level = GraphOptimizationLevel(work.session.graph_optimization_level)
            with span("optimise"):
                started = started.optimise(level)
        # EPs with nodes in the model decided what to compile when it was compiled.
        settled: Collection[str] = () if exporter else started.settled
        if is_compiled:
            settled = started.providers.choices
        with span("partition"):
            assigned = started.assign(settled)
        steps = prepare(assigned, folder, exporter)
        state = _make_plan(assigned, steps)
        assigned.model.checks.finish()
        return state


def _make_policy(work: Chosen, manifest: Manifest) -> EnginePolicy:
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
        custom_domains=manifest.custom_domains,
    )


def prepare(
    work: Assigned,
    folder: ModelFolder | None,
    exporter: Exporter | None = None,
    readers: Mapping[str, PayloadReader] | None = None,
) -> StepsByGraph:
    """Have EPs load and compile their nodes, and prepare those that are left to the CPU
    EP.

    Args:
        work: the nodes of each EP.
        folder: the folder of context binaries.
        exporter: see `load_session`.
        readers: EP name to the reader of its payloads, if they were read before.
    """
    groups = _divide(work, exporter)

    def divide_again() -> None:
        nonlocal groups
        groups = _divide(work, exporter)

    steps = prepare_claimed(work, folder, readers, divide_again)
    work.providers.cancel.raise_if_requested()
    with work.providers.instances.span("prepare"):
        add_left_over(steps, groups, work.assignment.refusals, work.engine)

    # Written last: a session that cannot be made leaves no files.
    if exporter is not None:
        work.model.checks.finish()
        exporter.write(work)
    for part, cpu in groups:
        part.fix(cpu)
    return steps


def prepare_claimed(
    work: Assigned,
    folder: ModelFolder | None,
    readers: Mapping[str, PayloadReader] | None,
    check: Callable[[], object],
) -> StepsByGraph:
    """Have EPs load and compile their nodes; the others are left to a host that owns
    the graph.

    Args:
        work: the nodes of each EP.
        folder: the folder of context binaries.
        readers: see `prepare`.
        check: see `Assigned.compile`.
    """
    span = work.providers.instances.span
    with span("load"):
        if readers is None:
            readers = _open_readers(work, folder) if work.nodes else {}
        steps = load_context_nodes(work, readers)
    require_one_state(work.model.opened, work.model.source.where)

    if work.assignment.claimed:
        with span("compile"):
            compiled = work.compile(check).compiled
            add_compiled(steps, compiled, work.providers.instances)
    return steps


def _divide(
    work: Assigned, exporter: Exporter | None
) -> Sequence[tuple[GraphAssignment, NodeGroups]]:
    """Return the groups of each graph that are left to the CPU EP, once the assignment
    is checked and the engine knows among how many pieces it is shared.
    """
    assignment = work.assignment
    model = work.model
    groups = [(part, part.cpu_groups()) for part in assignment.graphs]
    check_allowed(assignment, groups, model.source.where, work.config)
    if exporter is not None:
        exporter.check(work)
    elif work.providers.choices and (
        assignment.refusals or not any(assignment.main.is_assigned)
    ):
        # Loads of context models ask no EP.
        from epctx_core.sessions.claims import warn_of_unused_eps

        warn_of_unused_eps(assignment, model, work.providers.choices, work.nodes)

    # An engine spends memory by how many pieces share it.
    work.engine.policy.pieces = (
        len(assignment.claimed)
        + len(model.context_nodes)
        + sum(len(cpu) for _, cpu in groups)
    )
    return groups


def _make_plan(work: Assigned, steps: StepsByGraph) -> SessionState:
    """Return the session over what was prepared."""
    model = work.model
    instances = work.providers.instances
    with pause_collection(model.node_count), instances.span("plan"):
        plan = plan_graph(work.assignment.main, steps, instances)
        placement = work.describe_placement()
    assigned = None
    if work.config.record_assignments:
        from epctx_core.sessions.assigned_nodes import list_assigned_subgraphs

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
        placement=placement,
        engine=work.engine,
    )


_WEIGHTS_ONLY = (
    " 'session.model_external_initializers_file_folder_path' says where weights are, "
    "not context binaries."
)


def find_context_folder(
    model: OpenModel, config: SessionConfig, *, compiles: bool = False
) -> ModelFolder | None:
    """Return the folder of context binaries: that of `ep.context_file_path`, else the
    model's.

    For a compile that option says where the new model goes, so that a model out of a
    file has them beside it, and the host's callback is for loads. None for a model from
    bytes that needs none, or whose payloads the callback reads.

    Raises:
        InvalidArgument: a model from bytes that names files, without the option.
    """
    path = model.source.path
    if compiles and path is not None:
        return ModelFolder(path.parent, path)
    folder = find_folder(path, config)
    for node in model.context_nodes if folder is None else ():
        check_has_folder(
            node, replace(config, data_reader=None) if compiles else config
        )
    return folder


def find_folder(path: Path | None, config: SessionConfig) -> ModelFolder | None:
    """Return the folder of a model's context binaries; None for one from bytes, without
    the option.
    """
    option = config.context_file_path
    if option is not None:
        named = Path(option)
        return ModelFolder(named if is_folder_name(option) else named.parent)
    return None if path is None else ModelFolder(path.parent, path)


def check_has_folder(node: ContextNodeRecord, config: SessionConfig) -> None:
    """Raise InvalidArgument if a node of a model without a folder names a file that no
    callback reads.
    """
    if node.file_name is not None and config.data_reader is None:
        raise InvalidArgument(
            f"the model was given as bytes, and its EPContext node {node.name!r} "
            f"keeps its payload in the file {node.file_name!r}.",
            node=node.name,
            hint=(
                "Set the session option 'ep.context_file_path' to the path the model "
                "would have."
            )
            + (_WEIGHTS_ONLY if config.external_initializers_folder else ""),
        )


def make_tensor_source(
    records: Iterable[ContextNodeRecord],
    folder: ModelFolder | None,
    config: SessionConfig,
    manifest: Manifest | None,
) -> Callable[[str], TensorView]:
    """Return a function that finds a weight that payloads left in the source model; it
    opens files when it is called.
    """

    @cache
    def weights() -> Any:
        # Most payloads hold their weights themselves.
        return resolve_name(METHODS["source_tensor"])(
            records, manifest=manifest, folder=folder, config=config
        )

    return lambda name: weights().source_tensor(name)


def make_reading(
    model: OpenModel, config: SessionConfig, data_reader: DataReader | None = None
) -> Reading:
    """Return the options for reading a model's payloads; without a callback of the
    host, from files.
    """
    return Reading(
        map_binaries=config.map_binaries,
        verification=config.verification,
        data_reader=data_reader,
        checks=model.checks,
        opened=model.opened,
        model_digest=model.source.digest,
    )


def load_context_nodes(
    work: Started, readers: Mapping[str, PayloadReader]
) -> StepsByGraph:
    """Have each EP load its nodes.

    Args:
        work: the context model, with the checks of its payloads, which the caller waits
            for, and the live EPs.
        readers: EP name to the reader of its payloads.

    Returns:
        For each graph, the main one or a subgraph, a node's index to its step.

    Raises:
        InvalidGraph: a payload is missing or wrong.
        NotImplementedByProvider: a node is in a subgraph that a session cannot
            run.
        PluginError: an EP failed or broke the contract.
    """
    steps: StepsByGraph = {}
    model = work.model
    providers = work.providers
    nodes = work.nodes
    if not nodes:
        return steps
    manifest = work.manifest
    owners = {choice.name: choice.record for choice in work.choices}
    for ep, records in nodes.items():
        providers.cancel.raise_if_requested()
        graphs = {
            path: model.graph_of(record)
            for path, record in {r.path: r for r in records}.items()
        }
        views = make_plugin_nodes(records, model.types, ep, manifest)
        loaded = work.load_nodes(ep, views, readers[ep])
        readers[ep].check_unchanged()
        by_name = {record.name: record for record in records}
        for view, runnable in zip(views, loaded, strict=True):
            record = by_name[view.name]
            graph = graphs[record.path]
            step = StepSpec(
                record.name,
                ep,
                cast("RunStep", runnable.run),
                record.inputs,
                record.outputs,
                nodes=(record.index,),
            )
            # A verification goes on without the EPs that are missing.
            if ep in owners:
                step = add_checks(
                    step,
                    owners[ep],
                    f"the run of {record.name!r}",
                    graph.types,
                    is_loaded=True,
                )
            steps.setdefault(graph, {})[record.index] = step

    return steps


def _open_readers(
    work: Started, folder: ModelFolder | None
) -> dict[str, PayloadReader]:
    """Return a reader of its payloads for each EP; all are checked now, or begin to be,
    if the host wants that.
    """
    reading = make_reading(work.model, work.config, work.config.data_reader)
    source_tensor = make_tensor_source(
        work.model.context_nodes, folder, work.config, work.manifest
    )
    readers = {
        ep: PayloadReader(
            {record.name: record for record in records},
            folder=folder,
            manifest=work.manifest,
            scratch=work.providers.scratch,
            source_tensor=source_tensor,
            reading=Reading(
                **{
                    **vars(reading),
                    "early": not work.providers.choices[ep].cls.needs_verified_payloads,
                }
            ),
        )
        for ep, records in work.nodes.items()
    }
    for ep, reader in readers.items():
        reader.check_all(ep)
    return readers
