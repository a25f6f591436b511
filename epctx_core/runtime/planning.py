"""The steps of a session's graphs as they become known, and the plan over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx

from epctx_core.errors import NotImplementedByProvider
from epctx_core.registry.guard import blame
from epctx_core.runtime.plan import Plan
from epctx_core.runtime.steps import (
    BodyPlan,
    CpuSteps,
    control_flow_step,
    kernel_step,
    partition_step,
)

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.compile.assign import GraphAssignment
    from epctx_core.compile.providers import ProviderSession
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.kernels import CpuEngine
    from epctx_core.plugin import CompiledPartition
    from epctx_core.runtime.plan import StepSpec


class Planner:
    """Collects steps by graph and by the first node that they stand for.

    Args:
        engine: prepares what is left to the CPU EP.
        providers: the live EPs.
        steps: those that are known already (loaded nodes).
    """

    def __init__(
        self,
        engine: CpuEngine,
        providers: ProviderSession,
        steps: Mapping[GraphIndex, Mapping[int, StepSpec]],
    ) -> None:
        self._providers = providers
        self._cpu = CpuSteps(engine)
        self._steps = {graph: dict(known) for graph, known in steps.items()}

    def add_compiled(self, compiled: Mapping[GraphPartition, CompiledPartition]) -> None:
        """Take what EPs compiled."""
        for partition, runnable in compiled.items():
            steps = self._steps.setdefault(partition.graph, {})
            steps[partition.node_indices[0]] = partition_step(partition, runnable)

    def prepare(self, part: GraphAssignment, cpu_groups: Sequence[Sequence[int]]) -> None:
        """Make what one graph needs besides partitions: EPs' kernels and groups for the CPU EP."""
        steps = self._steps.setdefault(part.graph, {})
        for kernel in part.kernel_nodes:
            with blame(self._providers.instances.record(kernel.ep), "KernelDef.create"):
                steps[kernel.node] = kernel_step(part.graph, kernel)
        for group in cpu_groups:
            steps[group[0]] = self._cpu.step(part.graph, group)

    def plan(self, part: GraphAssignment) -> BodyPlan:
        """Return the plan of a graph whose groups were all taken; those of the bodies in it are made first."""
        graph, steps = part.graph, self._steps[part.graph]
        for node in part.executed:
            plans = {name: self.plan(body) for name, body in part.bodies[node].items()}
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
