"""The stages that compiling and running share, between an open model and compiled partitions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epctx_core.graph.garbage import collection_resumed
from epctx_core.sessions.providers import check_compiled

if TYPE_CHECKING:
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.plugin import CompiledPartition, Purpose
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.providers import ProviderSession


@dataclass(kw_only=True)
class Stopwatch:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def compile_partitions(
    assignment: Assignment,
    providers: ProviderSession,
    purpose: Purpose,
    watch: Stopwatch,
) -> dict[GraphPartition, CompiledPartition]:
    """Have each EP compile its partitions; return what each became. Progress counts partitions.

    Raises:
        EPFail: an EP raised.
        PluginError: an EP gave back something else than one `CompiledPartition` for each partition.
        ModelLoadCanceled: the host asked to stop.
    """
    compiled: dict[GraphPartition, CompiledPartition] = {}
    with watch.stage("compile"):
        for ep in providers.choices:
            partitions = assignment.of(ep)
            if not partitions:
                continue
            providers.cancel.raise_if_requested()
            providers.progress("compile", len(compiled), len(assignment.partitions))
            with collection_resumed():
                result = providers.instances.call(ep, "compile", partitions=partitions)
            providers.keep(result)
            check_compiled(ep, "compile", result, partitions, providers, purpose)
            compiled.update(zip(partitions, result, strict=True))
            providers.progress("compile", len(compiled), len(assignment.partitions))
    providers.cancel.raise_if_requested()
    return compiled
