"""An EP of the kit's own that has some nodes before the EP under the kit is asked. It compiles nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from epctx_core.plugin import ExecutionProvider, hookimpl, supported_partitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.plugin import CompiledPartition, ComputeCapability, GraphView, Partition, Refusal


class FirstComer(ExecutionProvider):
    """Takes nodes by their names; make one with `first_comer`."""

    name: ClassVar[str] = "EpctxConformanceFirstComer"
    vendor: ClassVar[str] = "epctx conformance kit"
    nodes: ClassVar[frozenset[str]] = frozenset()

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take the nodes."""
        return supported_partitions(graph, lambda node: node.name in self.nodes)

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Refuse: this EP is for assignments alone."""
        raise NotImplementedError(f"{len(partitions)} partitions of an EP that only takes nodes")


def first_comer(nodes: frozenset[str]) -> type[ExecutionProvider]:
    """Return an EP that takes the nodes of these names."""
    return type("FirstComerOfNodes", (FirstComer,), {"nodes": nodes})
