"""The steps of a plan, one kind each.

A compiled partition, a loaded node, an EP's kernel, a CPU group, a control-flow node with plans for its bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from epctx_core.compile.providers import CPU_EP
from epctx_core.graph.canonical import plain_form
from epctx_core.graph.subgraph import Subgraph
from epctx_core.graph.view import Node, attribute_value
from epctx_core.runtime.control_flow import Body, make_control_flow
from epctx_core.runtime.plan import StepSpec

if TYPE_CHECKING:
    from epctx_core.compile.assign import KernelNode
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.kernels import CpuEngine
    from epctx_core.plugin import CompiledPartition
    from epctx_core.runtime.plan import Plan, RunStep


def partition_step(partition: GraphPartition, compiled: CompiledPartition) -> StepSpec:
    """Return the step of a partition that an EP compiled."""
    return StepSpec(
        name=repr(partition),
        ep=partition.ep,
        run=_run_of(compiled),
        inputs=partition.input_names,
        outputs=partition.output_names,
    )


def context_step(record: ContextNodeRecord, ep: str, loaded: CompiledPartition) -> StepSpec:
    """Return the step of an EPContext node that an EP loaded."""
    return _named(record.name, ep, _run_of(loaded), record.inputs, record.outputs)


def kernel_step(graph: GraphIndex, kernel: KernelNode) -> StepSpec:
    """Return the step of a node that an EP runs by one of its kernels."""
    compute = kernel.kernel.create(Node(graph, kernel.node))
    return _named(
        graph.node_name(kernel.node),
        kernel.ep,
        lambda inputs, _outputs: compute(inputs),
        graph.explicit_inputs[kernel.node],
        graph.outputs[kernel.node],
    )


@dataclass(frozen=True)
class BodyPlan:
    """A body's plan; it takes the body's inputs, then these values of the enclosing scopes."""

    plan: Plan
    captured: Sequence[str]


def control_flow_step(graph: GraphIndex, node: int, plans: Mapping[str, BodyPlan]) -> StepSpec:
    """Return the step of an If, Loop or Scan over plans of its bodies, by attribute.

    Raises:
        InvalidGraph: a body has not the inputs or outputs that its node needs.
    """
    explicit = graph.explicit_inputs[node]
    outer = tuple(dict.fromkeys(chain(*(body.captured for body in plans.values()))))
    places = {name: len(explicit) + place for place, name in enumerate(outer)}
    bodies = {}
    for name, body in plans.items():
        index = graph.bodies[node][name]
        bodies[name] = Body(
            plan=body.plan,
            captured=[places[captured] for captured in body.captured],
            input_types=[index.types.get(value) for value in index.input_names],
            output_types=[index.types.get(value) for value in index.output_names],
        )
    proto = graph.nodes[node]
    called = graph.node_name(node)
    run = make_control_flow(
        proto.op_type,
        called,
        explicit_inputs=len(explicit),
        outputs=len(graph.outputs[node]),
        attributes={a.name: attribute_value(a) for a in proto.attribute if a.name not in plans},
        bodies=bodies,
    )
    return _named(called, CPU_EP, run, (*explicit, *outer), graph.outputs[node], nested=True)


def _named(
    name: str, ep: str, run: RunStep, inputs: Sequence[str], outputs: Sequence[str], *, nested: bool = False
) -> StepSpec:
    """Return a step without the outputs that the model omits: a plan has no place for those."""
    if all(outputs):
        return StepSpec(name=name, ep=ep, run=run, inputs=inputs, outputs=outputs, nested=nested)
    kept = [place for place, output in enumerate(outputs) if output]

    def run_and_drop(values: Sequence[Any], options: Any) -> Sequence[Any]:
        results = run(values, options)
        return [results[place] for place in kept]

    wanted = [outputs[place] for place in kept]
    return StepSpec(name=name, ep=ep, run=run_and_drop, inputs=inputs, outputs=wanted, nested=nested)


class CpuSteps:
    """Makes the steps of the default CPU EP; small equal groups are prepared once.

    Args:
        engine: the session's.
    """

    def __init__(self, engine: CpuEngine) -> None:
        self._engine = engine
        self._known: dict[tuple[object, ...], RunStep] = {}

    def step(self, graph: GraphIndex, nodes: Sequence[int]) -> StepSpec:
        """Return the step of a group of left-over nodes.

        Raises:
            NotImplementedByProvider: an operator that no engine has.
        """
        piece = Subgraph(graph, nodes)
        form = plain_form(graph, nodes, piece.inputs, piece.outputs)
        run = self._known.get(form) if form is not None else None
        if run is None:
            run = self._engine.prepare_piece(piece.model(), piece.weights).run
            if form is not None:
                self._known[form] = run
        return StepSpec(
            name=graph.node_name(nodes[0]),
            ep=CPU_EP,
            run=run,
            inputs=piece.input_names,
            outputs=piece.output_names,
        )


def _run_of(compiled: CompiledPartition) -> RunStep:
    if compiled.run is None:
        raise AssertionError("check_compiled lets nothing without `run` through")
    return compiled.run
