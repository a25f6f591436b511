"""One compile, from the source to the last file. What a host asked for is settled before (`compiler`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from epctx_core.compiling.emit import check_can_export
from epctx_core.compiling.node_names import check_names
from epctx_core.compiling.passthrough import PassThrough
from epctx_core.compiling.pipeline import write_context_model
from epctx_core.compiling.provenance import check_mix
from epctx_core.compiling.report import CompileReport, make_report
from epctx_core.compiling.sharing.member import CompiledMember
from epctx_core.compiling.sharing.open_groups import open_groups
from epctx_core.compiling.sharing.rules import check_member, check_shared_options
from epctx_core.compiling.writing.outputs import ModelSink, OpenDelivered, Outputs
from epctx_core.compiling.writing.size import check_weights_fit
from epctx_core.errors import Fail, errors_typed
from epctx_core.graph.garbage import collection_paused
from epctx_core.kernels import CpuEngine, EnginePolicy
from epctx_core.options import GraphOptimizationLevel, OrtCompileApiFlags, SessionOptions
from epctx_core.plugin import Purpose
from epctx_core.sessions.cancellation import CompileCancellation
from epctx_core.sessions.optimise import optimise_model
from epctx_core.sessions.providers import (
    Progress,
    ProviderChoice,
    ProviderSession,
    WorkspaceOf,
    choose_providers,
    kept_functions,
    private_workspace,
)
from epctx_core.sessions.source import OpenModel, open_model
from epctx_core.sessions.stages import Stopwatch, assign_nodes, compile_partitions

if TYPE_CHECKING:
    from epctx_core.compiling.sharing.group import Group
    from epctx_core.compiling.writing.destination import Destination
    from epctx_core.compiling.writing.initializers import InitializerPlacement
    from epctx_core.graph.digests import ExtentDigests
    from epctx_core.graph.model_io import SourceModel
    from epctx_core.registry import Registry
    from epctx_core.sessions.assignment import Assignment

FindDestination: TypeAlias = "Callable[[SourceModel | None, bool], Destination]"
"""`find(source, has_payloads)` says where what is compiled goes; None for a source that is not read yet."""


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """What a host asked for; `run` it once.

    Attributes:
        session: EPs and options.
        model: the source, a path or bytes.
        embedded: whether payloads are stored in the model.
        placement: where the initializers that stay go.
        flags: what is an error.
        level: how far the model is optimised before EPs see it.
        progress: called with (stage, done, total).
        registry: where EPs are looked up.
        deliver: opens what the host's write callback gets; None for files.
        digests: those of weights that were made before; None for none.
    """

    session: SessionOptions
    model: str | os.PathLike[str] | bytes
    embedded: bool
    placement: InitializerPlacement
    flags: OrtCompileApiFlags
    level: GraphOptimizationLevel
    progress: Progress
    registry: Registry
    deliver: OpenDelivered | None
    digests: ExtentDigests | None = None
    watch: Stopwatch = field(default_factory=Stopwatch, init=False)

    @errors_typed("compiling the model")
    @collection_paused()
    def run(self, find_destination: FindDestination, sink: ModelSink | None = None) -> CompileReport:
        """Compile; the model goes to the sink, or without one into the destination's file.

        Raises:
            EpctxError: see `ModelCompiler.compile_to_file`.
        """
        cancel = CompileCancellation(self.session.cancellation)
        if self.session.config().share_contexts:
            return self._run_in_open_group(find_destination, cancel, in_memory=sink is not None)
        with closing(ProviderSession()) as providers, cancel.by_interrupt():
            choices = self.choose(providers)
            find_destination(None, bool(choices)).check_place()
            model = self.open(choices)
            existing = PassThrough(model, self.session.config())
            outputs = Outputs(
                existing.plan(
                    find_destination(model.source, bool(choices or existing.records)),
                    embedded=self.embedded,
                    delivered=self.deliver is not None,
                ),
                embedded=self.embedded,
                cancel=cancel,
                model_sink=sink,
                open_delivered=self.deliver,
            )
            outputs.destination.check(_binaries(outputs, choices))
            model, assignment = self._prepare(model, existing, providers, choices, cancel)
            self.progress("write", 0, 1)
            written = write_context_model(
                model, assignment, providers, outputs, self.placement, existing, watch=self.watch
            )
            self.progress("write", 1, 1)
            return make_report(
                assignment,
                output=outputs.destination.path,
                written=written,
                timings=self.watch.seconds,
                providers=providers,
            )

    def _run_in_open_group(
        self, find_destination: FindDestination, cancel: CompileCancellation, *, in_memory: bool
    ) -> CompileReport:
        config = self.session.config()
        check_shared_options(
            config, embedded=self.embedded, delivered=self.deliver is not None, in_memory=in_memory
        )
        with closing(ProviderSession()) as providers, cancel.by_interrupt():
            choices = self.choose(providers)
            find_destination(None, bool(choices)).check_place()
            model = self.open(choices)
            wanted = find_destination(model.source, bool(choices))
            # Before it joins: a model that is refused must not begin a new group.
            check_member(model, wanted)
            with open_groups.get().joined(wanted, choices) as group:
                member = self.compile_member(group, model, wanted, providers, choices, cancel)
                self.progress("write", 0, 1)
                written = group.stop(member) if config.stop_sharing else group.publish(member)
                self.progress("write", 1, 1)
            return make_report(
                member.assignment,
                output=wanted.path,
                written=written,
                timings=self.watch.seconds,
                providers=providers,
            )

    def choose(self, providers: ProviderSession) -> list[ProviderChoice]:
        """Return the EPs to compile with; the provider session is told which optional ones were skipped."""
        choices, providers.skipped = choose_providers(
            self.session.providers, self.session, self.registry, Purpose.EXPORT
        )
        return choices

    def compile_member(
        self,
        group: Group,
        model: OpenModel,
        wanted: Destination,
        providers: ProviderSession,
        choices: list[ProviderChoice],
        cancel: CompileCancellation,
    ) -> CompiledMember:
        """Compile a model of a share group; who calls it has the group write it.

        Args:
            group: gives names and workspaces.
            model: the source, checked by `check_member`.
            wanted: where the context model goes.
            providers: get the EPs, and are closed by the caller when the model is written.
            choices: the EPs.
            cancel: the wish to stop.

        Raises:
            EpctxError: see `ModelCompiler.compile_to_file`.
        """
        group.share_digests(model)
        existing = PassThrough(model, self.session.config())
        model, assignment = self._prepare(model, existing, providers, choices, cancel, group.workspace_of)
        return CompiledMember(
            model=model,
            assignment=assignment,
            providers=providers,
            destination=wanted,
            placement=self.placement,
            existing=existing,
            cancel=cancel,
            watch=self.watch,
        )

    def _prepare(
        self,
        model: OpenModel,
        existing: PassThrough,
        providers: ProviderSession,
        choices: list[ProviderChoice],
        cancel: CompileCancellation,
        workspace_of: WorkspaceOf = private_workspace,
    ) -> tuple[OpenModel, Assignment]:
        """Return the model as EPs saw it and what they compiled of it."""
        self._start(model, providers, choices, cancel, workspace_of)
        with self.watch.stage("optimise"):
            model = optimise_model(model, providers, self.level)
        return model, self._compile(model, existing, providers)

    def open(self, choices: list[ProviderChoice]) -> OpenModel:
        """Read the source."""
        self.progress("read", 0, 1)
        with self.watch.stage("read"):
            model = open_model(
                self.model, self.session.config(), lambda: kept_functions(c.cls for c in choices)
            )
        if self.digests is not None:
            self.digests.share(model.source.weights.values())
        self.progress("read", 1, 1)
        return model

    def _start(
        self,
        model: OpenModel,
        providers: ProviderSession,
        choices: list[ProviderChoice],
        cancel: CompileCancellation,
        workspace_of: WorkspaceOf,
    ) -> None:
        providers.start(
            choices,
            purpose=Purpose.EXPORT,
            model=model.identity,
            session=self.session,
            engine=CpuEngine(EnginePolicy()),
            registry=self.registry,
            progress=self.progress,
            cancel=cancel,
            workspace_of=workspace_of,
        )
        check_can_export(providers)

    def _compile(self, model: OpenModel, existing: PassThrough, providers: ProviderSession) -> Assignment:
        self.progress("partition", 0, 1)
        assignment = assign_nodes(model, providers, list(providers.choices), self.session, self.watch)
        self.progress("partition", 1, 1)
        if not assignment.partitions and self.flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED:
            raise Fail(
                f"no node of {model.source.where} could be compiled by {', '.join(providers.choices) or 'any EP'}.",
                path=model.source.path,
                hint=_first_refusal(assignment) or "Add an EP to the session options.",
            )
        check_names(model, assignment)
        check_mix(model, existing.manifest, assignment, providers)
        check_weights_fit(assignment, self.placement, providers.weightless, embedded=self.embedded)
        compile_partitions(
            assignment,
            providers,
            self.session,
            purpose=Purpose.EXPORT,
            watch=self.watch,
            progress=self.progress,
        )
        return assignment


def _binaries(outputs: Outputs, choices: list[ProviderChoice]) -> dict[str, str]:
    """Return EP type to the binary that it will write."""
    if outputs.embedded or outputs.delivers:
        return {}
    return {c.name: outputs.payload_name(c.binary_suffix, None) for c in choices}


def _first_refusal(assignment: Assignment) -> str:
    refusal = next(iter(assignment.refusals), None)
    return f"{refusal.ep} says: {refusal.reason}." if refusal else ""
