"""Decisions of the stages that features change, each as the core takes it.

A feature that nothing switches on is not imported: the stages then ask `CORE`. The
table of features is in `epctx_core.feature_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast

from epctx_core.context.manifest import NO_MANIFEST, Manifest
from epctx_core.feature_table import find_features
from epctx_core.frozen import dataclass

if TYPE_CHECKING:
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.graph.model_io import SourceModel
    from epctx_core.options import SessionConfig
    from epctx_core.plugin import Cancellation, ProviderContext, Purpose, TensorView
    from epctx_core.registry import PluginRecord, Registry
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.routing import (
        Outcome,
        ProviderRequest,
        SkippedProvider,
    )


@dataclass(frozen=True, kw_only=True)
class ProviderSearch:
    """Search for the EPs that a host asked for.

    Attributes:
        requested: their names, with options.
        config: the host's options.
        registry: the registry of EPs.
        outcomes: the result for each, once they were looked up.
    """

    requested: Sequence[ProviderRequest]
    config: SessionConfig
    registry: Registry
    outcomes: Sequence[Outcome] = ()


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
class DescribeJob:
    """Description of the context model that a compile writes.

    Attributes:
        config: the host's options.
        source: the model that is compiled.
        earlier: the manifest of the source, which says nothing if that is no context
            model.
        left: for each EP, the weights that its payloads leave in the source, by their
            names there; empty before it wrote them.
    """

    config: SessionConfig
    source: SourceModel
    earlier: Manifest = NO_MANIFEST
    left: Mapping[str, Mapping[str, TensorView]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts about a context model that features have.

    Attributes:
        parts: keys of its manifest.
        metadata: further entries of its metadata.
        attributes: EP name to attributes of its nodes.
        dependencies: what a load needs, in ONNX Runtime's words; see
            `epctx_core.context.dependencies`.
        files: files of the source model that a load needs.
    """

    parts: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    dependencies: Collection[str] = ()
    files: Sequence[str] = ()


class Stages:
    """Decisions of the stages, as the core takes them.

    A feature is a class that derives from this one; `super()` is the next feature, or
    the core.
    """

    def check_options(self, search: ProviderSearch) -> Sequence[str]:  # noqa: ARG002 - features need it
        """Refuse options, before any EP is looked up; return names of EPs that need
        not be installed.
        """
        return ()

    def find(self, search: ProviderSearch, name: str) -> PluginRecord | SkippedProvider:
        """Find one EP that the host asked for."""
        return search.registry.resolve(name)

    def admit(
        self,
        search: ProviderSearch,
        purpose: Purpose | None,  # noqa: ARG002 - features need it
    ) -> Sequence[Outcome]:
        """Return the EPs of a session for a purpose, None while it is not known.

        The core returns all: one that is not available fails when it is started.
        """
        return search.outcomes

    def compile(self, job: CompileJob) -> Sequence[str] | None:
        """Have an EP compile its partitions; return the EPs that are asked again, as
        nodes were released, or None.
        """
        job.compile(job.partitions)
        return None

    def make_context(
        self,
        context: ProviderContext,
        config: SessionConfig,  # noqa: ARG002 - features need it
    ) -> ProviderContext:
        """Return the context with which an EP's instance is made."""
        return context

    def leave_weight(
        self,
        job: DescribeJob,  # noqa: ARG002 - features need it
        weight: TensorView,  # noqa: ARG002
    ) -> str | None:
        """Return the name under which a load finds a weight in the source model; None
        for a weight that a payload has to contain.
        """
        return None

    def describe_model(self, job: DescribeJob) -> ModelFacts:  # noqa: ARG002 - features need it
        """Return facts about a context model whose payloads are written, and whose
        nodes are made after that.
        """
        return ModelFacts()

    def read_facts(
        self,
        manifest: Manifest,  # noqa: ARG002 - features need it
        nodes: Sequence[ContextNodeRecord],  # noqa: ARG002
    ) -> ModelFacts:
        """Return the facts that a context model states."""
        return ModelFacts()


CORE = Stages()
"""Stages without a feature."""


def make_stages(config: SessionConfig | None, marks: Collection[str] = ()) -> Stages:
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
