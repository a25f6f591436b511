"""Request of a host, and the decisions of its stages that features change, each as the
core takes it.

A feature that nothing switches on is not imported: the stages then ask `CORE`. The
table of features is in `epctx_core.feature_table`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast

from epctx_core.errors import Fail, InvalidArgument
from epctx_core.feature_table import find_features
from epctx_core.frozen import dataclass
from epctx_core.options.choices import CPU_EP
from epctx_core.registry.records import is_name_of
from epctx_core.sessions.host import CompileCancellation
from epctx_core.sessions.providers import Progress, ProviderSession, check_progress
from epctx_core.sessions.routing import SkippedProvider, accept, choose_provider

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.payload_writer import PayloadWriter
    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.graph.mapping import ModelInput, OpenedFiles
    from epctx_core.graph.model_io import SourceModel
    from epctx_core.options import SessionConfig, SessionOptions
    from epctx_core.plugin import (
        Cancellation,
        CompiledPartition,
        ContextNode,
        ProviderContext,
        Purpose,
        TensorView,
    )
    from epctx_core.registry import PluginRecord, Registry
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.routing import Outcome, ProviderChoice, ProviderRequest
    from epctx_core.sessions.source import OpenModel


_log = logging.getLogger("epctx.session")


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """Request of a host: a model, and what it is to be compiled or loaded with.

    Attributes:
        source: the model, a path or bytes.
        session: the host's options.
        config: the same, read.
        registry: the registry of EPs.
        requested: the EPs that the host named, with options; None to let the nodes'
            sources decide.
        progress: called with (stage, done, total); a total of 0 says that `done` are
            bytes written.
        cancel: the flag that EPs poll.
        stages: the decisions that features change.
        resources: what the stages open, until they are closed.
    """

    source: ModelInput
    session: SessionOptions
    config: SessionConfig
    registry: Registry
    requested: Sequence[ProviderRequest] | None
    progress: Progress
    cancel: CompileCancellation
    stages: Stages
    resources: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def from_options(
        cls,
        source: ModelInput,
        session: SessionOptions,
        registry: Registry,
        requested: Sequence[ProviderRequest] | None,
        progress: Progress = check_progress,
    ) -> Request:
        """Return the request of a host with these options."""
        config = session.config()
        return Request(
            source=source,
            session=session,
            config=config,
            registry=registry,
            requested=requested,
            progress=progress,
            cancel=CompileCancellation(session.cancellation),
            stages=make_stages(config),
        )

    def close(self) -> None:
        """Shut the EPs down; do nothing if there are none, or if that is done."""
        self.resources.close()

    def look_up(self) -> list[Outcome]:
        """Look up, import and check the EPs that the host named, in its order; the CPU
        EP is left out.

        Raises:
            InvalidArgument: no such EP, one asked for twice, or a wrong option.
            PluginError: a plugin is broken.
        """
        missing = self.stages.check_options(self)
        if self.session.provider_option_keys:
            # Few hosts name an EP's options there.
            from epctx_core.sessions.provider_options import refuse_unknown_entries

            refuse_unknown_entries(self.session, self.registry, missing)

        outcomes: list[Outcome] = []
        for name, options in self.requested or ():
            if is_name_of(name, CPU_EP):
                continue
            record = self.stages.find(self, name)
            if isinstance(record, SkippedProvider):
                outcomes.append(record)
                continue
            choice = choose_provider(
                record, options, self.session, self.registry, requested=name
            )
            if choice.name in [outcome.name for outcome in outcomes]:
                raise InvalidArgument(
                    f"{choice.name} was asked for twice.", ep=choice.name
                )
            outcomes.append(choice)
        return outcomes

    def make_providers(self) -> ProviderSession:
        """Return the place of the EPs' instances, with the host's plugins, which is
        closed with this request.

        Raises:
            EpctxError: a host plugin cannot be had; see `list_host_plugins`.
        """
        providers = ProviderSession(
            self.session,
            self.registry,
            progress=self.progress,
            cancel=self.cancel,
            config=self.config,
        )
        self.resources.callback(providers.close)
        return providers

    def read_model(self) -> OpenModel:
        """Read the model, check, type and index it, without any EP.

        Raises:
            EpctxError: see `read_source`, `index_source`.
        """
        # The EPs of a request are looked up without it.
        from epctx_core.sessions.source import (
            index_source,
            read_one_state,
            read_source,
            warn_of_declarations,
        )

        def read(opened: OpenedFiles) -> OpenModel:
            source = read_source(
                self.source, self.config, set, opened=opened, digested=False
            )
            model = index_source(source, self.config)
            warn_of_declarations(model)
            return model

        return read_one_state(read)


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """Compile of the partitions of one EP.

    Attributes:
        assignment: of the whole model; gets the results.
        partitions: those of the EP.
        compile: has the EP compile some of them.
        eps: all EPs of the session, in order of priority.
        cancel: the host's wish to stop.
    """

    assignment: Assignment
    partitions: Sequence[GraphPartition]
    compile: Callable[[Sequence[GraphPartition]], object]
    eps: Sequence[str]
    cancel: Cancellation


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts about a context model that features have.

    Attributes:
        parts: keys of its manifest.
        metadata: further entries of its metadata.
        attributes: EP name to attributes of its nodes.
        files: files of the source model that a load needs.
    """

    parts: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    files: Sequence[str] = ()


class Stages:
    """Decisions of the stages, as the core takes them.

    A feature is a class that derives from this one; `super()` is the next feature, or
    the core.
    """

    def check_options(self, request: Request) -> Sequence[str]:  # noqa: ARG002 - features need it
        """Refuse options, before any EP is looked up; return names of EPs that need
        not be installed.
        """
        return ()

    def find(self, request: Request, name: str) -> PluginRecord | SkippedProvider:
        """Find one EP that the host asked for."""
        return request.registry.resolve(name)

    def admit(
        self,
        request: Request,  # noqa: ARG002 - features need it
        outcomes: Sequence[Outcome],
        purpose: Purpose | None,  # noqa: ARG002
    ) -> Sequence[Outcome]:
        """Return the EPs of a session for a purpose, None while it is not known, of
        those that were looked up.

        The core returns all: one that is not available fails when it is started.
        """
        return outcomes

    def route(
        self, node: ContextNodeRecord, find: Callable[[ContextNodeRecord], str]
    ) -> str | None:
        """Return the EP that takes the first EPContext node of a source; None for a
        verification that goes on without one.
        """
        return find(node)

    def validate(self, request: Request, choice: ProviderChoice, info: str) -> None:
        """Have an EP validate its text about the model; log a warning where it
        recommends to compile again.
        """
        reason = accept(choice, info, request.registry)
        if reason and request.config.fail_on_suboptimal:
            hint = "Compile the source model again."
            raise Fail(reason, ep=choice.name, hint=hint)
        if reason:
            _log.warning("%s", reason)

    def load(
        self,
        ep: str,  # noqa: ARG002 - a verification needs it
        nodes: Sequence[ContextNode],  # noqa: ARG002
        load: Callable[[], Sequence[CompiledPartition]],
    ) -> Sequence[CompiledPartition]:
        """Have an EP load its nodes."""
        return load()

    def compile(self, job: CompileJob) -> Sequence[str] | None:
        """Have an EP compile its partitions; return the EPs that are asked again, as
        nodes were released, or None.
        """
        job.compile(job.partitions)
        return None

    def make_context(
        self,
        request: Request,  # noqa: ARG002 - features need it
        choice: ProviderChoice,  # noqa: ARG002
        context: ProviderContext,
    ) -> ProviderContext:
        """Return the context with which an EP's instance is made."""
        return context

    def leave_weight(
        self,
        request: Request,  # noqa: ARG002 - features need it
        source: SourceModel,  # noqa: ARG002
        weight: TensorView,  # noqa: ARG002
    ) -> str | None:
        """Return the name under which a load finds a weight in the source model; None
        for a weight that a payload has to contain.
        """
        return None

    def describe_model(
        self,
        request: Request,  # noqa: ARG002 - features need it
        source: SourceModel,  # noqa: ARG002
        earlier: Manifest,  # noqa: ARG002
        left: Mapping[str, Mapping[str, TensorView]],  # noqa: ARG002
    ) -> ModelFacts:
        """Return facts about a context model with written payloads; its nodes are
        made after that.

        Args:
            request: the host's.
            source: the model that is compiled.
            earlier: its manifest, which says nothing if it is no context model.
            left: EP name to the weights that its payloads leave in the source, by their
                names there.
        """
        return ModelFacts()

    def check_compiled(
        self, assignment: Assignment, names: Collection[str], providers: ProviderSession
    ) -> None:
        """Check what EPs compiled, before their payloads are read.

        Args:
            assignment: the compiled partitions.
            names: names of the nodes to check; see `ContextModel.to_read`.
            providers: the live EPs.
        """

    def check_written(
        self,
        proto: ModelProto,
        names: Collection[str],
        written: Mapping[bytes, PayloadWriter],
        providers: ProviderSession,
        left: Mapping[str, TensorView],
    ) -> None:
        """Check a context model that is written and not yet published.

        Args:
            proto: the model with its manifest, embedded payloads not yet inserted.
            names: as for `check_compiled`.
            written: `ep_cache_context` of a primary to its payload, which is finished.
            providers: the live EPs.
            left: weights that payloads left in the source model, by their names there.
        """

    def read_facts(
        self,
        manifest: Manifest,  # noqa: ARG002 - features need it
        nodes: Sequence[ContextNodeRecord],  # noqa: ARG002
    ) -> ModelFacts:
        """Return the facts that a context model states."""
        return ModelFacts()


CORE = Stages()
"""Stages without a feature."""


def make_stages(config: SessionConfig, marks: Collection[str] = ()) -> Stages:
    """Return the stages with the features that a host's options, or marks of a model,
    switch on.
    """
    return _combine(find_features(config, marks))


@cache
def _combine(places: tuple[str, ...]) -> Stages:
    if not places:
        return CORE
    layers = [resolve_name(place) for place in places]
    return cast("Stages", type("FeatureStages", (*layers, Stages), {})())
