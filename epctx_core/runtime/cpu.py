"""The default CPU EP: left-over nodes, grouped by level, each group prepared on an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epctx_core.compile.providers import CPU_EP
from epctx_core.graph.subgraph import Subgraph
from epctx_core.runtime.plan import StepSpec

if TYPE_CHECKING:
    from epctx_core.graph.index import GraphIndex
    from epctx_core.kernels import CpuEngine


def cpu_step(graph: GraphIndex, nodes: Sequence[int], engine: CpuEngine) -> StepSpec:
    """Prepare a group of nodes.

    Raises:
        NotImplementedByProvider: an operator that no engine has.
    """
    piece = Subgraph(graph, nodes)
    weights = {name: weight.array() for name, weight in piece.weights.items()}
    prepared = engine.prepare(piece.model(), weights)
    first = graph.nodes[nodes[0]]
    return StepSpec(
        name=first.name or f"{first.op_type}_{nodes[0]}",
        ep=CPU_EP,
        run=prepared.run,
        inputs=piece.input_names,
        outputs=piece.output_names,
    )
