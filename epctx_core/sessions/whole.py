"""Models that an engine runs whole, as they are: those of which no EP is asked.

Nothing of them is typed or cut. The engine knows the types of the outputs.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from epctx_core.context.node import DOMAIN, OP_TYPE
from epctx_core.engines.cpu_engine import load_engine_class
from epctx_core.graph.index import check_names, find_constants
from epctx_core.graph.preconditions import check_preconditions
from epctx_core.graph.type_table import TypeTable
from epctx_core.graph.walks import (
    copy_message,
    shorten_domain,
    walk_graphs,
)
from epctx_core.graph.weights import compute_raw_size
from epctx_core.options.choices import CPU_EP
from epctx_core.plugin.protos import TensorProto
from epctx_core.sessions.placement import Placement, describe_counts
from epctx_core.sessions.plan import Plan, StepSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from onnx import ModelProto, NodeProto

    from epctx_core.engines.cpu_engine import CpuEngine
    from epctx_core.graph.model_io import SourceModel
    from epctx_core.graph.weights import Weight


def prepare_whole(
    source: SourceModel, engine: CpuEngine
) -> tuple[Plan, TypeTable, Placement] | None:
    """Have an engine prepare a model; return its plan, the types of its inputs and
    outputs, and the placement of its nodes.

    None for a model of which the core has to see more, and for one that the engine
    refuses: that has its error where the node is known.

    Raises:
        InvalidGraph: a node could end the process.
    """
    policy = engine.policy
    graph = source.proto.graph
    if not (policy.optimizes and load_engine_class(policy.engine).optimizes):
        return None
    # Nodes are looked at in this pass alone, if it finds no subgraphs.
    nodes = [*graph.node]
    counts = Counter([(node.domain, node.op_type) for node in nodes])
    operators = {(shorten_domain(domain), name) for domain, name in counts}
    read = {*chain.from_iterable([node.input[:] for node in nodes])}
    inputs = [value.name for value in graph.input]
    outputs = [value.name for value in graph.output]
    names = [*inputs, *[tensor.name for tensor in graph.initializer], *outputs]
    if (
        not operators
        or (DOMAIN, OP_TYPE) in operators
        # A session gives some values itself, as a default of an input and an output
        # that no node computes.
        or len({*names}) < len(names)
        or graph.sparse_initializer
        # It guards others: an engine would trust the length that is declared of an
        # output that a node reads, and those that subgraphs declare of their inputs
        # and outputs.
        or not read.isdisjoint(outputs)
        or any(path for path, _ in walk_graphs(graph, operators=operators))
        # An engine computes at least one output.
        or not outputs
    ):
        return None

    check_names(names, read, *[(node.name, *node.output[:]) for node in nodes])
    check_preconditions(source.proto, operators)
    # The engine would compute with lengths that a model declares of inner values, and
    # they may be wrong.
    model: ModelProto = copy_message(source.proto)
    del model.graph.value_info[:]
    prepared = engine.prepare_whole(model, source.weights)
    if prepared is None:
        return None

    runnable, results = prepared
    first = nodes[0]
    step = StepSpec(
        first.name or f"{first.op_type}_0",
        CPU_EP,
        runnable.run,
        inputs,
        outputs,
        allocates=engine.allocates,
        nodes=range(len(nodes)),
    )
    placement = _describe_placement(nodes, counts, read, source.weights)
    plan = Plan([step], inputs=inputs, outputs=outputs, constants={})
    # The engine repeats what the model declares of its outputs.
    types = TypeTable([*graph.input, *results], trusted=inputs)
    return plan, types, placement


def _describe_placement(
    nodes: Sequence[NodeProto],
    counts: Mapping[tuple[str, str], int],
    read: AbstractSet[str],
    weights: Mapping[str, Weight],
) -> Placement:
    """Return the placement of nodes that are all the engine's.

    Args:
        nodes: of the only graph.
        counts: the number of nodes by domain and operator.
        read: the names that they read.
        weights: the initializers.
    """
    sizes = {name: weight.nbytes for name, weight in weights.items()}
    for name, tensor in find_constants(nodes):
        if tensor.data_type != TensorProto.STRING:
            sizes[name] = compute_raw_size(tensor.data_type, (*tensor.dims,))

    row = describe_counts(counts, sum([sizes[name] for name in sizes.keys() & read]))
    return Placement(
        nodes=len(nodes),
        folded_nodes=0,
        inside_nodes=0,
        eps=[{"ep": CPU_EP, "provided_by": "engine", "simulated": False, **row}],
        left=[],
    )
