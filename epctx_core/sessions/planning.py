"""The steps of a session's graphs as they become known, and the plan over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx

from epctx_core.errors import NotImplementedByProvider
from epctx_core.graph.view import Node
from epctx_core.kernels import RegistryLookup
from epctx_core.sessions.ep_calls import allocator, buffer, into_memory
from epctx_core.sessions.plan import Plan
from epctx_core.sessions.steps import (
    BodyPlan,
    CpuSteps,
    control_flow_step,
    kernel_step,
    partition_step,
)

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.kernels import CpuEngine, KernelMatcher
    from epctx_core.plugin import CompiledPartition
    from epctx_core.sessions.assignment import GraphAssignment
    from epctx_core.sessions.ep_calls import Allocate
    from epctx_core.sessions.plan import StepSpec
    from epctx_core.sessions.providers import ProviderSession


class Planner:
    """Collects steps by graph and by the first node that they stand for.

    Args:
        engine: prepares what is left to the CPU EP.
        providers: the live EPs.
        steps: those that are known already (loaded nodes).
        matchers: EP type to its kernels, for saying why none of them fits.
    """

    def __init__(
        self,
        engine: CpuEngine,
        providers: ProviderSession,
        steps: Mapping[GraphIndex, Mapping[int, StepSpec]],
        matchers: Mapping[str, KernelMatcher],
    ) -> None:
        self._instances = providers.instances
        self._matchers = matchers
        found = {ep: allocator(self._instances, ep) for ep in self._instances.names}
        self._allocators = {ep: allocate for ep, allocate in found.items() if allocate is not None}
        self._cpu = CpuSteps(engine)
        self._steps = {graph: dict(known) for graph, known in steps.items()}

    def add_compiled(self, compiled: Mapping[GraphPartition, CompiledPartition]) -> None:
        """Take what EPs compiled."""
        for partition, runnable in compiled.items():
            steps = self._steps.setdefault(partition.graph, {})
            owner = self._instances.record(partition.ep)
            steps[partition.node_indices[0]] = partition_step(partition, runnable, owner)

    def prepare(self, part: GraphAssignment, cpu_groups: Sequence[Sequence[int]]) -> None:
        """Make what one graph needs besides partitions: EPs' kernels and groups for the CPU EP."""
        steps = self._steps.setdefault(part.graph, {})
        for kernel in part.kernel_nodes:
            steps[kernel.node] = kernel_step(part.graph, kernel, self._instances.record(kernel.ep))
        for group in cpu_groups:
            try:
                steps[group[0]] = self._cpu.step(part.graph, group)
            except NotImplementedByProvider as error:
                why = self._why_no_kernel(part.graph, group, error.node)
                raise NotImplementedByProvider(
                    error.message + why, node=error.node, hint=error.hint
                ) from error

    def _why_no_kernel(self, graph: GraphIndex, group: Sequence[int], named: str | None) -> str:
        """Say why the kernels that EPs have for a node do not fit it; nothing where none has any."""
        lookups = {ep: RegistryLookup(matcher, graph.types) for ep, matcher in self._matchers.items()}
        nodes = [Node(graph, i) for i in group if graph.names[i] == named] or [Node(graph, i) for i in group]
        reasons = [
            f"; {self._instances.record(ep).label} has kernels of {node.op_type}, none fits: {reason}"
            for node in nodes
            for ep, lookup in lookups.items()
            if (reason := lookup.refusal(node)) is not None
        ]
        return "".join(reasons)

    def _in_memory_of_eps(self, specs: Sequence[StepSpec], graph: GraphIndex) -> Sequence[StepSpec]:
        """Have steps write into memory of the EP that runs them, or else of the first EP that reads what they make.

        Only where all outputs of a step have known types and shapes: a step gets memory for all or for none.
        """
        if not self._allocators:
            return specs
        readers: dict[str, Allocate] = {}
        for spec in reversed(specs):
            if spec.ep in self._allocators:
                readers.update(dict.fromkeys(spec.inputs, self._allocators[spec.ep]))
        return [self._in_memory(spec, graph, readers) for spec in specs]

    def _in_memory(self, spec: StepSpec, graph: GraphIndex, readers: Mapping[str, Allocate]) -> StepSpec:
        own = self._allocators.get(spec.ep)
        owners = [own or readers.get(name) for name in spec.outputs]
        if not spec.in_place or not any(owners):
            return spec
        types = [graph.types.proven(name) for name in spec.outputs]
        buffers = [made for pair in zip(owners, types, strict=True) if (made := buffer(*pair)) is not None]
        if len(buffers) < len(owners):
            return spec
        return spec._replace(run=into_memory(spec.run, buffers))

    def plan(self, part: GraphAssignment) -> BodyPlan:
        """Return the plan of a graph whose groups were all taken; those of the bodies in it are made first."""
        graph, steps = part.graph, self._steps[part.graph]
        for node in part.executed:
            plans = {name: self.plan(body) for name, body in part.bodies[node].items()}
            steps[node] = control_flow_step(graph, node, plans)
        firsts = [group[0] for group in part.partitioner.execution_order()]
        # A Constant node that no EP took is no step: what it gives is a constant of whatever reads it.
        made = [steps[i] for i in firsts if i in steps or i not in graph.node_constants]
        specs = self._in_memory_of_eps(made, graph)
        wanted = {name for spec in specs for name in spec.inputs} | set(graph.output_names)
        known = (wanted & graph.constants).difference(*[spec.outputs for spec in specs])
        captured = [name for name in graph.captured if name in wanted and name not in graph.constants]
        plan = Plan(
            specs,
            inputs=(*graph.input_names, *captured),
            outputs=graph.output_names,
            constants={name: _constant(graph, name) for name in sorted(known)},
        )
        return BodyPlan(plan, captured)


def _constant(graph: GraphIndex, name: str) -> np.ndarray:
    if name in graph.weights:
        return graph.weights[name].array()
    return onnx.numpy_helper.to_array(graph.special_tensors[name])
