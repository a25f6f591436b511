"""The steps of a plan, one kind each: a compiled partition, a loaded node, an EP's kernel, a CPU group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epctx_core.compile.providers import CPU_EP
from epctx_core.graph.subgraph import Subgraph
from epctx_core.graph.view import Node
from epctx_core.runtime.plan import StepSpec

if TYPE_CHECKING:
    from epctx_core.compile.assign import KernelNode
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.kernels import CpuEngine
    from epctx_core.plugin import CompiledPartition
    from epctx_core.runtime.plan import RunStep


@dataclass(frozen=True)
class PreparedStep:
    """A step, and the runnable behind it that wants to be closed."""

    spec: StepSpec
    runnable: CompiledPartition | None = None


def partition_step(partition: GraphPartition, compiled: CompiledPartition) -> PreparedStep:
    """Return the step of a partition that an EP compiled."""
    spec = StepSpec(
        name=repr(partition),
        ep=partition.ep,
        run=_run_of(compiled),
        inputs=partition.input_names,
        outputs=partition.output_names,
    )
    return PreparedStep(spec, compiled)


def context_step(record: ContextNodeRecord, ep: str, loaded: CompiledPartition) -> PreparedStep:
    """Return the step of an EPContext node that an EP loaded."""
    spec = StepSpec(
        name=record.name, ep=ep, run=_run_of(loaded), inputs=record.inputs, outputs=record.outputs
    )
    return PreparedStep(spec, loaded)


def kernel_step(graph: GraphIndex, kernel: KernelNode) -> PreparedStep:
    """Return the step of a node that an EP runs by one of its kernels."""
    compute = kernel.kernel.create(Node(graph, kernel.node))
    spec = StepSpec(
        name=node_name(graph, kernel.node),
        ep=kernel.ep,
        run=lambda inputs, _outputs: compute(inputs),
        inputs=graph.explicit_inputs[kernel.node],
        outputs=graph.outputs[kernel.node],
    )
    return PreparedStep(spec)


def cpu_step(graph: GraphIndex, nodes: Sequence[int], engine: CpuEngine) -> PreparedStep:
    """Prepare a group of left-over nodes on the default CPU EP.

    Raises:
        NotImplementedByProvider: an operator that no engine has.
    """
    piece = Subgraph(graph, nodes)
    weights = {name: weight.array() for name, weight in piece.weights.items()}
    spec = StepSpec(
        name=node_name(graph, nodes[0]),
        ep=CPU_EP,
        run=engine.prepare(piece.model(), weights).run,
        inputs=piece.input_names,
        outputs=piece.output_names,
    )
    return PreparedStep(spec)


def node_name(graph: GraphIndex, index: int) -> str:
    """Return a node's name; one without a name is called by operator and place."""
    return graph.nodes[index].name or f"{graph.nodes[index].op_type}_{index}"


def _run_of(compiled: CompiledPartition) -> RunStep:
    if compiled.run is None:
        raise AssertionError("check_compiled lets nothing without `run` through")
    return compiled.run
