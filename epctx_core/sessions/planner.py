"""Making of a session's plan: a step for each partition, loaded node, and group of
nodes that is left to the CPU EP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from epctx_core.errors import InvalidGraph, NotImplementedByProvider
from epctx_core.sessions.plan import (
    Plan,
    RunStep,
    StepsByGraph,
    StepSpec,
    add_checks,
    list_implementers,
)

if TYPE_CHECKING:
    from epctx_core.engines.cpu_engine import CpuEngine
    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.partition import NodeGroups
    from epctx_core.plugin import CompiledPartition
    from epctx_core.registry.instances import ProviderInstances
    from epctx_core.sessions.assignment import GraphAssignment, RefusalRecord


def add_compiled(
    steps: StepsByGraph,
    compiled: Mapping[GraphPartition, CompiledPartition],
    instances: ProviderInstances,
) -> None:
    """Add the steps of compiled partitions.

    Args:
        steps: by graph and by the first node that they represent; gets them.
        compiled: the partitions.
        instances: the live EPs.
    """
    for partition, runnable in compiled.items():
        owner = instances.record(partition.ep)
        name = shown = repr(partition)
        if partition.keeps_nodes:
            # Its nodes are in the model, and users know them.
            name = partition.graph.get_node_name(partition.node_indices[0])
            shown = repr(name)
        run = cast("RunStep", runnable.run)
        spec = StepSpec(
            name,
            partition.ep,
            run,
            partition.input_names,
            partition.output_names,
            nodes=partition.node_indices,
        )
        step = add_checks(spec, owner, f"the run of {shown}", partition.graph.types)
        steps.setdefault(partition.graph, {})[partition.node_indices[0]] = step


def add_left_over(
    steps: StepsByGraph,
    groups: Sequence[tuple[GraphAssignment, NodeGroups]],
    refusals: Sequence[RefusalRecord],
    engine: CpuEngine,
) -> None:
    """Add the steps of nodes that are left to the CPU EP.

    Args:
        steps: as for `add_compiled`.
        groups: the nodes of each graph.
        refusals: the reasons of EPs, for saying why none runs a node.
        engine: prepares them.

    Raises:
        NotImplementedByProvider: an operator that no engine has.
    """
    prepared: dict[object, RunStep] = {}
    for part, cpu_groups in groups:
        own = steps.setdefault(part.graph, {})
        if not cpu_groups:
            continue
        # Nothing is left over of most context models.
        from epctx_core.sessions.steps import cpu_step, list_refusals

        for group in cpu_groups:
            try:
                step = cpu_step(engine, prepared, part.graph, group)
            except NotImplementedByProvider as error:
                reasons = list_refusals(refusals, part.graph, group, error.node)
                raise NotImplementedByProvider(
                    error.message + reasons, node=error.node, hint=error.hint
                ) from error
            own[group[0]] = step


def plan_graph(
    part: GraphAssignment, steps: StepsByGraph, instances: ProviderInstances
) -> Plan:
    """Return the plan of a graph all of whose nodes have steps; those of the subgraphs
    in it are made first.
    """
    graph = part.graph
    own = steps[graph]
    for node in part.executed:
        # Few models have control flow around an EP's work.
        from epctx_core.sessions.steps import control_flow_step

        plans = {
            name: plan_graph(subgraph, steps, instances)
            for name, subgraph in part.subgraphs[node].items()
        }
        own[node] = control_flow_step(graph, node, plans)

    firsts = [group[0] for group in part.execution_order()]

    # A Constant node that no EP took is not a step: its output is a constant of its
    # readers.
    specs = [own[i] for i in firsts if i in own or i not in graph.node_constants]
    if owners := list_implementers(instances, "allocate"):
        from epctx_core.sessions.steps import use_ep_memory

        specs = use_ep_memory(specs, graph.types, instances, owners)

    if instances.is_observed:
        from epctx_core.sessions.steps import observe_step

        specs = [observe_step(spec, graph, instances) for spec in specs]

    needed = {name for spec in specs for name in spec.inputs} | set(graph.output_names)
    constants = (needed & graph.constants).difference(*[spec.outputs for spec in specs])
    return Plan(
        specs,
        inputs=graph.input_names,
        captured=[
            name
            for name in graph.captured
            if name in needed and name not in graph.constants
        ],
        outputs=graph.output_names,
        constants={name: _read_constant(graph, name) for name in sorted(constants)},
    )


def _read_constant(graph: GraphIndex, name: str) -> Any:
    if name in graph.weights:
        return graph.weights[name].array()
    # Text is no weight.
    from onnx import numpy_helper

    try:
        return numpy_helper.to_array(graph.special_tensors[name])
    except UnicodeDecodeError as error:
        raise InvalidGraph(
            f"initializer {name!r} has text that is not UTF-8."
        ) from error
