"""Steps that few context models have: nodes in no partition, control flow around nodes
of an EP, results in memory of EPs.

An If, Loop or Scan whose subgraphs contain nodes of an EP is executed here, each
subgraph by a plan of its own, which takes its inputs and then the values of the
enclosing scopes that it reads. ONNX Runtime leaves such nodes whole to the CPU EP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from epctx_core.engines.control_flow import RunSubgraph, run_loop, run_scan, take_only
from epctx_core.errors import InvalidGraph
from epctx_core.frozen import dataclass
from epctx_core.graph.extraction import NodeGroup
from epctx_core.graph.index import SPECIAL, GraphIndex, decode_attribute
from epctx_core.options.choices import CPU_EP
from epctx_core.registry.guard import contract_error
from epctx_core.sessions.plan import (
    Plan,
    RunStep,
    StepSpec,
    drop_omitted_outputs,
)
from epctx_core.sessions.signature import describe_array

if TYPE_CHECKING:
    from epctx_core.engines.control_flow import Memory
    from epctx_core.engines.cpu_engine import CpuEngine
    from epctx_core.graph.type_table import TypeTable
    from epctx_core.options.run import RunOptions
    from epctx_core.plugin import TensorType
    from epctx_core.registry.instances import ProviderInstances
    from epctx_core.sessions.assignment import RefusalRecord


def cpu_step(
    engine: CpuEngine,
    prepared: dict[object, RunStep],
    graph: GraphIndex,
    nodes: Sequence[int],
) -> StepSpec:
    """Return the step of a group of nodes that are left to the CPU EP.

    Args:
        engine: prepares it.
        prepared: small groups that were prepared, by their forms; gets this one.
        graph: their graph.
        nodes: the group.

    Raises:
        NotImplementedByProvider: an operator that no engine has.
    """
    first = nodes[0]
    inputs: Sequence[str] = graph.inputs[first]
    outputs: Sequence[str] = graph.outputs[first]
    one = _form_of_one(graph, first) if len(nodes) == 1 else None
    run = prepared.get(one)
    if run is None:
        group = NodeGroup(graph, nodes)
        inputs = group.input_names
        outputs = group.output_names
        form = group.form

        # A form is valid within its graph only.
        run = None if form is None else prepared.get((graph, form))
        if run is None:
            run = engine.prepare_group(group.model(), group.weights).run
        if form is not None:
            prepared[graph, form] = run
            if one is not None:
                prepared[one] = run

    return StepSpec(
        graph.get_node_name(first),
        CPU_EP,
        run,
        inputs,
        outputs,
        allocates=engine.allocates,
        nodes=nodes,
    )


def list_refusals(
    refusals: Sequence[RefusalRecord],
    graph: GraphIndex,
    group: Sequence[int],
    named: str | None,
) -> str:
    """Return the reasons for which EPs left nodes of a group, as text for an error.

    Args:
        refusals: of the whole model.
        graph: the group's graph.
        group: the nodes.
        named: the name of the node that the error is about, if it is about one.
    """
    about = {i for i in group if graph.names[i] == named} or {*group}
    return "".join(
        f"; {each.ep} says: {each.reason}"
        for each in refusals
        if each.graph is graph and not about.isdisjoint(each.nodes)
    )


def _form_of_one(graph: GraphIndex, node: int) -> tuple[GraphIndex | int, ...] | None:
    """Return a key that equal nodes of a graph share, in less time than
    `NodeGroup.form`.

    Between an EP's partitions often stand very many single nodes of a few kinds. None
    for a node that reads a weight or one value twice, for one of whose results some are
    not read, and for one with attributes.
    """
    if graph.signatures[node] == SPECIAL:
        return None
    inputs = graph.inputs[node]
    outputs = graph.outputs[node]
    names = {*inputs, *outputs}
    if (
        len(names) < len(inputs) + len(outputs)
        or "" in names
        or not graph.constants.isdisjoint(names)
    ):
        return None

    consumers = graph.consumers
    results = graph.results
    if not all(name in consumers or name in results for name in outputs):
        return None

    # A table makes equal types one object.
    return (
        graph,
        graph.signatures[node],
        *(id(graph.types.get_proven(name)) for name in (*inputs, *outputs)),
    )


@dataclass(frozen=True, kw_only=True)
class SubgraphPlan:
    """A subgraph of a control-flow node, ready to run.

    Attributes:
        plan: its inputs are the subgraph's own, then the captured values.
        captured: the indices of the captured values among the node's inputs.
        input_types, output_types: those of the subgraph's own inputs and outputs.
    """

    plan: Plan
    captured: Sequence[int]
    input_types: Sequence[TensorType]
    output_types: Sequence[TensorType]

    def run(
        self,
        inputs: Sequence[Any],
        node_inputs: Sequence[Any],
        options: RunOptions | None,
    ) -> list[Any]:
        """Run the subgraph once."""
        return self.plan.run(
            [*inputs, *(node_inputs[index] for index in self.captured)], options
        )


def observe_step(
    spec: StepSpec, graph: GraphIndex, instances: ProviderInstances
) -> StepSpec:
    """Return a step of a graph with runs that host plugins observe."""
    run = spec.run
    facts = {"ep": spec.ep, "graph": graph.path, "nodes": spec.nodes}

    def observed(inputs: Sequence[Any], given: Any) -> Sequence[Any]:
        shapes = [getattr(value, "shape", None) for value in inputs]
        with instances.span(spec.name, "step", shapes=shapes, **facts):
            return run(inputs, given)

    return spec._replace(run=observed)


def control_flow_step(
    graph: GraphIndex, node: int, plans: Mapping[str, Plan]
) -> StepSpec:
    """Return the step of an If, Loop or Scan over plans of its subgraphs, by attribute.

    Raises:
        InvalidGraph: a subgraph does not have the inputs or outputs that its node
            needs.
    """
    explicit = graph.explicit_inputs[node]
    outer = tuple(dict.fromkeys(chain(*(plan.captured for plan in plans.values()))))
    inputs = len(explicit)
    indices = {name: index for index, name in enumerate(outer, inputs)}
    subgraphs = {}
    for name, plan in plans.items():
        index = graph.subgraphs[node][name]
        subgraphs[name] = SubgraphPlan(
            plan=plan,
            captured=[indices[captured] for captured in plan.captured],
            input_types=[index.types.get(value) for value in index.input_names],
            output_types=[index.types.get(value) for value in index.output_names],
        )

    proto = graph.nodes[node]
    called = graph.get_node_name(node)
    expected = len(graph.outputs[node])

    # An If's branches take nothing; a Loop's subgraph gives the condition, too.
    needs = {"If": (0, expected), "Loop": (inputs, expected + 1)}.get(
        proto.op_type, (inputs, expected)
    )
    for name, subgraph in subgraphs.items():
        sizes = len(subgraph.input_types), len(subgraph.output_types)
        if sizes != needs:
            raise InvalidGraph(
                f"the {name} of {called!r} has {sizes[0]} inputs and {sizes[1]} "
                f"outputs; its node needs {needs[0]} and {needs[1]}."
            )

    if proto.op_type == "If":
        run = _if(subgraphs["then_branch"], subgraphs["else_branch"])
    elif proto.op_type == "Loop":
        (repeated,) = subgraphs.values()
        types = repeated.input_types, repeated.output_types
        run = _repeat(repeated, lambda once, values: run_loop(once, values, *types))
    else:
        (repeated,) = subgraphs.values()
        attributes = {
            a.name: decode_attribute(a) for a in proto.attribute if a.name not in plans
        }
        run = _repeat(
            repeated,
            lambda once, values: run_scan(
                once, values, attributes, repeated.output_types
            ),
        )

    return drop_omitted_outputs(
        StepSpec(
            called,
            CPU_EP,
            run,
            (*explicit, *outer),
            graph.outputs[node],
            nested=True,
            in_place=False,
            nodes=(node,),
        )
    )


def _if(then_branch: SubgraphPlan, else_branch: SubgraphPlan) -> RunStep:
    def run(inputs: Sequence[Any], options: RunOptions | None) -> Sequence[Any]:
        branch = (
            then_branch if take_only(inputs[0], "the condition of If") else else_branch
        )
        return branch.run((), inputs, options)

    return run


def _repeat(
    subgraph: SubgraphPlan, run_all: Callable[[RunSubgraph, Sequence[Any]], list[Any]]
) -> RunStep:
    """Return the `run` of a Loop or a Scan: `run_all` takes the function that runs the
    subgraph once, and the inputs.
    """

    def run(inputs: Sequence[Any], options: RunOptions | None) -> Sequence[Any]:
        return run_all(
            lambda values: subgraph.run(values, inputs, options),
            inputs[: len(subgraph.input_types)],
        )

    return run


_Allocate: TypeAlias = "Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]"


def use_ep_memory(
    specs: list[StepSpec],
    types: TypeTable,
    instances: ProviderInstances,
    owners: Sequence[str],
) -> list[StepSpec]:
    """Have steps write into memory of the EP that runs them, or else of the first EP
    that reads their outputs.

    Only where all outputs of a step have known types and shapes: a step gets memory for
    all or for none.

    Args:
        specs: in execution order.
        types: those of their graph.
        instances: the live EPs.
        owners: those that have memory.
    """
    allocators = {ep: _allocator(instances, ep) for ep in owners}
    readers: dict[str, _Allocate] = {}
    for spec in reversed(specs):
        if spec.ep in allocators:
            readers.update(dict.fromkeys(spec.inputs, allocators[spec.ep]))
    return [_in_memory(spec, types, allocators.get(spec.ep), readers) for spec in specs]


def _allocator(instances: ProviderInstances, ep: str) -> _Allocate:
    """Return a function that asks an EP for memory and checks it."""
    record = instances.record(ep)

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        with instances.calling(ep, "allocate", shape=shape, dtype=dtype) as array:
            problem = ""
            if not isinstance(array, np.ndarray):
                problem = f"a {type(array).__name__}"
            elif array.dtype != dtype or array.shape != shape:
                problem = describe_array(array.dtype, array.shape)
            elif not array.flags.c_contiguous:
                problem = "memory that is not C-contiguous"
            elif not array.flags.writeable:
                problem = "read-only memory"
            if problem:
                asked = describe_array(dtype, shape)
                raise contract_error(
                    record, "allocate", f"was asked for {asked} and gave {problem}"
                )
        return array  # type: ignore[no-any-return]

    return allocate


def _in_memory(
    spec: StepSpec,
    types: TypeTable,
    allocate: _Allocate | None,
    readers: Mapping[str, _Allocate],
) -> StepSpec:
    owners = [allocate or readers.get(name) for name in spec.outputs]
    if not spec.in_place or not any(owners):
        return spec
    buffers: list[tuple[_Allocate, tuple[int, ...], np.dtype[Any]]] = []
    for owner, name in zip(owners, spec.outputs, strict=True):
        kind = types.get_proven(name)
        # Elements may be Python objects, which memory of an EP cannot contain.
        if (
            kind.shape is None
            or not kind.is_static
            or kind.dtype is None
            or kind.dtype.hasobject
        ):
            return spec
        shape = tuple(dim for dim in kind.shape if isinstance(dim, int))
        buffers.append((owner or np.empty, shape, kind.dtype))

    run = spec.run

    def run_into_memory(inputs: Sequence[Any], given: Memory | None) -> Sequence[Any]:
        return run(
            inputs,
            [
                make(shape, dtype) if array is None else array
                for array, (make, shape, dtype) in zip(
                    given or [None] * len(buffers), buffers, strict=True
                )
            ],
        )

    return spec._replace(run=run_into_memory)
