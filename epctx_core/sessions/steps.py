"""The steps of a plan, one kind each.

A compiled partition, a loaded node, an EP's kernel, a CPU group, a control-flow node with plans for its bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from epctx_core.graph.subgraph import Subgraph
from epctx_core.graph.view import Node, attribute_value
from epctx_core.registry.guard import blame, contract_broken
from epctx_core.sessions.ep_calls import Boundary, checked, telling
from epctx_core.sessions.plan import StepSpec
from epctx_core.sessions.providers import CPU_EP

if TYPE_CHECKING:
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.inference import TypeTable
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.kernels import CpuEngine
    from epctx_core.plugin import CompiledPartition
    from epctx_core.registry.records import PluginRecord
    from epctx_core.sessions.assignment import KernelNode
    from epctx_core.sessions.plan import Plan, RunStep

    _FormOfOne = tuple[GraphIndex | int, ...]


def partition_step(partition: GraphPartition, compiled: CompiledPartition, owner: PluginRecord) -> StepSpec:
    """Return the step of a partition that an EP compiled."""
    name = repr(partition)
    boundary = Boundary.of(partition.graph.types, partition.input_names, partition.output_names)
    return StepSpec(
        name=name,
        ep=partition.ep,
        run=checked(_run_of(compiled), owner, f"the run of {name}", boundary),
        inputs=partition.input_names,
        outputs=partition.output_names,
    )


def context_step(
    record: ContextNodeRecord, types: TypeTable, loaded: CompiledPartition, owner: PluginRecord
) -> StepSpec:
    """Return the step of an EPContext node that an EP loaded; `types` are those of its graph."""
    boundary = Boundary.of(types, record.inputs, record.outputs)
    hook = f"the run of {record.name!r}"
    run = checked(_run_of(loaded), owner, hook, boundary, context_node=record.name)
    return _kept(StepSpec(record.name, owner.name, run, record.inputs, record.outputs))


def kernel_step(graph: GraphIndex, kernel: KernelNode, owner: PluginRecord) -> StepSpec:
    """Return the step of a node that an EP runs by one of its kernels.

    Raises:
        PluginError: what makes the kernel gives something that cannot be called.
    """
    definition, name = kernel.kernel, graph.node_name(kernel.node)
    with blame(owner, "KernelDef.create"):
        compute = definition.create(Node(graph, kernel.node))
    if not callable(compute):
        what = f"gave a {type(compute).__name__} instead of a kernel for {name!r}"
        raise contract_broken(owner, "KernelDef.create", what)
    run = checked(
        compute if definition.takes_outputs else lambda inputs, _outputs: compute(inputs),
        owner,
        f"the kernel {definition} of {name!r}",
        Boundary.of(graph.types, graph.inputs[kernel.node], graph.outputs[kernel.node]),
    )
    inputs, outputs = graph.inputs[kernel.node], graph.outputs[kernel.node]
    return _kept(StepSpec(name, kernel.ep, run, inputs, outputs, in_place=definition.takes_outputs))


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
    # Few models have control flow around an EP's work.
    from epctx_core.sessions.control_flow import Body, make_control_flow

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
    return _kept(
        StepSpec(called, CPU_EP, run, (*explicit, *outer), graph.outputs[node], nested=True, in_place=False)
    )


def _kept(step: StepSpec) -> StepSpec:
    """Return a step without the outputs that the model omits: a plan has no place for those."""
    if all(step.outputs):
        return step
    run = step.run
    kept = [place for place, output in enumerate(step.outputs) if output]

    def run_and_drop(values: Sequence[Any], options: Any) -> Sequence[Any]:
        results = run(values, options)
        return [results[place] for place in kept]

    return step._replace(run=run_and_drop, outputs=[step.outputs[place] for place in kept], in_place=False)


class CpuSteps:
    """Makes the steps of the default CPU EP; small equal groups are prepared once.

    Args:
        engine: the session's.
    """

    def __init__(self, engine: CpuEngine) -> None:
        self._engine = engine
        self._known: dict[tuple[GraphIndex, tuple[int, ...]], RunStep] = {}
        self._ones: dict[_FormOfOne | None, RunStep] = {}

    def step(self, graph: GraphIndex, nodes: Sequence[int]) -> StepSpec:
        """Return the step of a group of left-over nodes.

        Raises:
            NotImplementedByProvider: an operator that no engine has.
        """
        one = _form_of_one(graph, nodes[0]) if len(nodes) == 1 else None
        if one in self._ones:
            node = nodes[0]
            return StepSpec(
                graph.node_name(node), CPU_EP, self._ones[one], graph.inputs[node], graph.outputs[node]
            )
        spec, plain = self._piece(graph, nodes)
        if plain and one is not None:
            self._ones[one] = spec.run
        return spec

    def _piece(self, graph: GraphIndex, nodes: Sequence[int]) -> tuple[StepSpec, bool]:
        """Return the step, and whether operators, wiring and types are all that decides its work."""
        piece = Subgraph(graph, nodes)
        plain = piece.plain_form
        # A form means something within its graph.
        form = None if plain is None else (graph, plain)
        run = self._known.get(form) if form is not None else None
        if run is None:
            run = self._engine.prepare_piece(piece.model(), piece.weights).run
            if form is not None:
                self._known[form] = run
        name = graph.node_name(nodes[0])
        run = telling(run, Boundary.of(graph.types, (), piece.output_names))
        return StepSpec(name, CPU_EP, run, piece.input_names, piece.output_names), form is not None


def _form_of_one(graph: GraphIndex, node: int) -> _FormOfOne | None:
    """Return what tells a node from others of its graph, in less time still than `Subgraph.plain_form`.

    Between an EP's partitions often stand very many single nodes of a few kinds. None for a node that
    reads a weight or one value twice, and for one of whose results some are not read.
    """
    inputs, outputs = graph.inputs[node], graph.outputs[node]
    names = {*inputs, *outputs}
    if len(names) < len(inputs) + len(outputs) or "" in names or not graph.constants.isdisjoint(names):
        return None
    consumers, results = graph.consumers, graph.results
    if not all(name in consumers or name in results for name in outputs):
        return None
    # A table makes equal types one object. What is declared is told of, what is proven is computed with.
    types = [
        type_of(name) for type_of in (graph.types.get, graph.types.proven) for name in (*inputs, *outputs)
    ]
    return graph, graph.kinds[node], *map(id, types)


def _run_of(compiled: CompiledPartition) -> RunStep:
    if compiled.run is None:
        raise AssertionError("check_compiled lets nothing without `run` through")
    return compiled.run
