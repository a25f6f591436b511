"""Models that an engine runs whole, as they are: those of which no EP is asked.

Nothing of them is typed or cut. The engine knows the types of the outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.context.node import DOMAIN, OP_TYPE
from epctx_core.engines.cpu_engine import load_engine_class
from epctx_core.graph.index import GraphIndex
from epctx_core.graph.preconditions import check_preconditions
from epctx_core.graph.type_table import TypeTable
from epctx_core.graph.walks import (
    Operators,
    copy_message,
    list_operators,
    walk_graphs,
)
from epctx_core.options.choices import CPU_EP
from epctx_core.sessions.placement import Placement, count_nodes
from epctx_core.sessions.plan import Plan, StepSpec

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

    from epctx_core.engines.cpu_engine import CpuEngine
    from epctx_core.graph.model_io import SourceModel


def prepare_whole(
    source: SourceModel, engine: CpuEngine
) -> tuple[Plan, TypeTable] | None:
    """Have an engine prepare a model; return its plan, and the types of its inputs and
    outputs.

    None for a model of which the core has to see more, and for one that the engine
    refuses: that has its error where the node is known.

    Raises:
        InvalidGraph: a node could end the process.
    """
    policy = engine.policy
    graph = source.proto.graph
    operators = list_operators(graph)
    if (
        not operators
        or (DOMAIN, OP_TYPE) in operators
        or not (policy.optimizes and load_engine_class(policy.engine).optimizes)
        or _needs_session(graph, operators)
    ):
        return None

    check_preconditions(source.proto, operators)
    # The engine would compute with lengths that a model declares of inner values, and
    # they may be wrong.
    model: ModelProto = copy_message(source.proto)
    del model.graph.value_info[:]
    prepared = engine.prepare_whole(model, source.weights)
    if prepared is None:
        return None

    runnable, results = prepared
    inputs = [value.name for value in graph.input]
    outputs = [value.name for value in graph.output]
    first = graph.node[0]
    step = StepSpec(
        first.name or f"{first.op_type}_0",
        CPU_EP,
        runnable.run,
        inputs,
        outputs,
        allocates=engine.allocates,
        nodes=range(len(graph.node)),
    )
    plan = Plan([step], inputs=inputs, outputs=outputs, constants={})
    return plan, TypeTable([*graph.input, *results])


def _needs_session(graph: GraphProto, operators: Operators) -> bool:
    """Return whether a session gives some values itself, as a default of an input and
    an output that no node computes, or guards one: an engine would trust the length
    that is declared of an output that a node reads, and those that subgraphs declare of
    their inputs and outputs. An engine computes at least one output.
    """
    values = (*graph.input, *graph.initializer, *graph.output)
    names = {value.name for value in values}
    outputs = {value.name for value in graph.output}
    return (
        not outputs
        or len(names) < len(values)
        or len(graph.sparse_initializer) > 0
        or any(not outputs.isdisjoint(node.input) for node in graph.node)
        or any(path for path, _ in walk_graphs(graph, operators=operators))
    )


def describe_whole(source: SourceModel) -> Placement:
    """Return the placement of a model that an engine runs whole."""
    index = GraphIndex(
        source.proto.graph,
        types=TypeTable(),
        weights=source.weights,
        owner=source.proto,
    )
    counts = count_nodes({index: range(len(index.nodes))})
    return Placement(
        nodes=counts["nodes"],
        folded_nodes=0,
        inside_nodes=0,
        eps=[{"ep": CPU_EP, "provided_by": "engine", "simulated": False, **counts}],
        left=[],
    )
