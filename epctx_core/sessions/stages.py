"""Decisions of the stages that features change, each as the core takes it, and the
table of features.

A feature that no option switches on is not imported: the stages then ask `CORE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, cast

from epctx_core.frozen import dataclass

if TYPE_CHECKING:
    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.options import SessionConfig
    from epctx_core.plugin import Cancellation, Purpose
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


CORE = Stages()
"""Stages without a feature."""


FEATURES = {
    "epctx_core.features.optional_eps:OptionalProviders": "optional_providers",
    "epctx_core.features.compile_failures:CompileFailures": "goes_on_to_next",
}
"""Table of features: the class of each, as `module:name`, and the option of
`SessionConfig` that is true where it is on. The first is called first, around the
others.
"""


def make_stages(config: SessionConfig) -> Stages:
    """Return the stages with the features that a host's options switch on."""
    if not config.entries:
        return CORE
    return _combine(
        tuple(place for place, option in FEATURES.items() if getattr(config, option))
    )


@cache
def _combine(places: tuple[str, ...]) -> Stages:
    if not places:
        return CORE
    layers = [resolve_name(place) for place in places]
    return cast("Stages", type("FeatureStages", (*layers, Stages), {})())
