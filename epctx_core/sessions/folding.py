"""Folding of what a model computes from constants and static shapes: the results become
initializers before EPs are asked, which take no arithmetic on shapes.

onnxruntime does the same in its sessions (`ORT_ENABLE_BASIC`), of results of any size;
here no small computation becomes large weights. Engines compute the results. As there,
an If on a constant condition is replaced by the subgraph that runs.
"""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import chain, count
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from onnx import helper, numpy_helper

from epctx_core.engines.cpu_engine import blame_engine
from epctx_core.errors import EpctxError
from epctx_core.frozen import dataclass
from epctx_core.graph.extraction import NodeGroup
from epctx_core.graph.walks import (
    DEFAULT_DOMAINS,
    OVERRIDABLE_SINCE,
    copy_message,
    find_outer_names,
    iter_subgraphs,
    keep_messages,
    list_given_names,
    walk_graphs,
)
from epctx_core.graph.weights import INLINE_LIMIT
from epctx_core.plugin.protos import TensorProto

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto

    from epctx_core.engines.cpu_engine import CpuEngine
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.walks import SubgraphPath
    from epctx_core.sessions.source import OpenModel

    _Found: TypeAlias = "dict[SubgraphPath, tuple[_Foldable, dict[str, np.ndarray]]]"
    _Decided: TypeAlias = "dict[SubgraphPath, Mapping[str, str]]"

LARGEST_RESULT = 1 << 18
"""Bytes above which no result is folded: the points of a detector's grid fit in."""
_BUDGET = 1 << 28
"""Bytes that are read and made in all; a model may read one weight in many nodes."""
MOST_PASSES = 8
"""Times that a model is folded: folded values prove further shapes."""

_OF_SHAPES = ("Shape", "Size")
_KEPT = frozenset(
    """
    QuantizeLinear DequantizeLinear DynamicQuantizeLinear Bernoulli Dropout Multinomial
    RandomNormal RandomNormalLike RandomUniform RandomUniformLike
    """.split()  # noqa: SIM905 - as in `MOVING`
)
"""Operators of quantised groups, which stay whole, and those of which two runs differ.
"""


@dataclass(frozen=True, kw_only=True)
class _Foldable:
    """Nodes of a graph that give the same results in every run.

    Attributes:
        graph: the graph.
        nodes: those that compute with constants, in order.
        shapes: results of those that describe shapes, by name.
    """

    graph: GraphIndex
    nodes: Sequence[int]
    shapes: Mapping[str, np.ndarray]

    def compute(self, engine: CpuEngine) -> dict[str, np.ndarray]:
        """Return the results, as the engine computes them, that other nodes read.

        Raises:
            EpctxError: it fails; so would each run of the model.
        """
        values = dict(self.shapes)
        if self.nodes:
            group = NodeGroup(self.graph, self.nodes)
            weights = {name: view.array() for name, view in group.weights.items()}
            with blame_engine(engine.policy.engine):
                prepared = engine.prepare(group.model(), weights)
                results = prepared.run([values[name] for name in group.input_names])
            values |= zip(group.output_names, results, strict=True)
        return values

    def remove_from(self, graph: GraphProto) -> None:
        """Remove the nodes from a copy of the graph, in place."""
        results = chain.from_iterable(self.graph.outputs[i] for i in self.nodes)
        gone = {*self.shapes, *filter(None, results)}
        keep_messages(graph.node, lambda node: gone.isdisjoint(node.output))


def fold_once(
    model: OpenModel, engine: CpuEngine, *, decide: bool
) -> ModelProto | None:
    """Return a copy of a model without the nodes with the same results in every
    run; None where there is none.

    Args:
        model: the model.
        engine: computes the results.
        decide: whether subgraphs that always run replace their If.
    """
    if model.graph.ir_version < OVERRIDABLE_SINCE:
        return None  # Each initializer would have to be an input, too.
    budget = _BUDGET
    found: _Found = {}
    decided: _Decided = {}
    for graph in model.graph.walk():
        if decide and (branches := _find_decided(graph)):
            decided[graph.path] = branches
        foldable, budget = _find_foldable(graph, budget)
        if not (foldable.nodes or foldable.shapes):
            continue
        # What fails here fails in each run, which has the input to blame for it.
        with suppress(EpctxError):
            found[graph.path] = foldable, foldable.compute(engine)
    return _rewrite(model, found, decided) if found or decided else None


def _rewrite(model: OpenModel, found: _Found, decided: _Decided) -> ModelProto:
    """Return a copy of a model with the results of nodes in place of them, and with the
    subgraphs that run in place of If nodes.

    Args:
        model: the model.
        found: nodes with their results, by graph.
        decided: what `_find_decided` returns, by graph.
    """
    proto: ModelProto = copy_message(model.source.proto)
    graphs = dict(walk_graphs(proto.graph))
    # A subgraph that is left out may be the last to read a value around it.
    read = {
        path: _list_reads(graph)
        for path, graph in graphs.items()
        if decided or path in found
    }
    # Few models have an If, fewer one that is decided.
    prefix = _choose_prefix(graphs.values()) if decided else ""
    # Subgraphs come before the graphs around them: the nodes of these are copied.
    for number, index in enumerate(model.graph.walk()):
        path = index.path
        if path not in read:
            continue
        graph = graphs[path]
        values: Mapping[str, np.ndarray] = {}
        if path in found:
            foldable, values = found[path]
            foldable.remove_from(graph)
        if path in decided:
            _splice_branches(graph, decided[path], f"{prefix}{number}/")
        _remove_unread(graph, read[path], values)
    return proto


def _find_decided(graph: GraphIndex) -> dict[str, str]:
    """Return the attribute with the subgraph that runs, by the first result of each If
    whose condition is a constant.
    """
    decided = {}
    for i, subgraphs in graph.subgraphs.items():
        name = graph.inputs[i][0]
        condition = graph.weights.get(name) if name in graph.constants else None
        if (
            graph.op_types[i] != "If"
            or condition is None
            or condition.elem_type != TensorProto.BOOL
            or condition.array().size != 1
        ):
            continue
        branch = "then_branch" if condition.array().item() else "else_branch"
        subgraph = subgraphs[branch]
        # What is wrong stays, and has its error; so does a subgraph in which a name
        # means another value than around it.
        if (
            graph.outputs[i][0]
            and not subgraph.graph.input
            and len(subgraph.graph.output) == len(graph.outputs[i])
            and _list_names(subgraph.graph).isdisjoint(subgraph.captured)
        ):
            decided[graph.outputs[i][0]] = branch
    return decided


def _list_names(graph: GraphProto) -> set[str]:
    """Return the names of the values that a graph and its subgraphs define."""
    return {
        name
        for _, each in walk_graphs(graph)
        for name in chain(list_given_names(each), *(node.output for node in each.node))
    }


def _list_reads(graph: GraphProto) -> set[str]:
    """Return the names that a graph's nodes, their subgraphs, and its results read."""
    return {
        *(value.name for value in graph.output),
        *chain.from_iterable(node.input for node in graph.node),
        *chain.from_iterable(find_outer_names(node) for node in graph.node),
    }


def _choose_prefix(graphs: Iterable[GraphProto]) -> str:
    """Return a short beginning that no name of a value or a node has."""
    heads = {
        name.partition("/")[0]
        for graph in graphs
        for name in chain(
            list_given_names(graph),
            *((node.name, *node.output) for node in graph.node),
        )
    }
    return next(f"if{i}/" for i in count() if f"if{i}" not in heads)


def _splice_branches(
    graph: GraphProto, branches: Mapping[str, str], prefix: str
) -> None:
    """Replace If nodes by the nodes of the subgraphs that run, in place.

    Args:
        graph: the graph.
        branches: as `_find_decided` returns them.
        prefix: begins no name of the model.
    """
    nodes: list[NodeProto] = []
    for number, node in enumerate(graph.node):
        branch = branches.get(node.output[0]) if node.output else None
        if branch is None:
            nodes.append(node)
            continue
        subgraph = next(a.g for a in node.attribute if a.name == branch)
        nodes += _rename_branch(subgraph, node.output, f"{prefix}{number}/")
        graph.initializer.extend(subgraph.initializer)
        graph.sparse_initializer.extend(subgraph.sparse_initializer)
        graph.value_info.extend(subgraph.value_info)
    del graph.node[:]
    graph.node.extend(nodes)


def _rename_branch(
    branch: GraphProto, results: Sequence[str], prefix: str
) -> list[NodeProto]:
    """Put a prefix before the names of a subgraph's values and nodes, in place; return
    its nodes, and those that give the results of the If their names.
    """
    new_names = {name: prefix + name for name in _list_names(branch) - {""}}
    outputs = {name for node in branch.node for name in node.output}
    copied = []
    for output, result in zip(branch.output, results, strict=True):
        if output.name in outputs and result:
            outputs.remove(output.name)  # It may be two results.
            new_names[output.name] = result
        elif result:
            copied.append((output.name, result))

    for _, graph in walk_graphs(branch):
        for node in graph.node:
            node.name = node.name and prefix + node.name
            node.input[:] = [new_names.get(name, name) for name in node.input]
            node.output[:] = [new_names.get(name, name) for name in node.output]
        sparse = (tensor.values for tensor in graph.sparse_initializer)
        for value in chain(
            graph.input, graph.output, graph.value_info, graph.initializer, sparse
        ):
            value.name = new_names.get(value.name, value.name)

    return [
        *branch.node,
        *(
            helper.make_node("Identity", [new_names.get(name, name)], [result])
            for name, result in copied
        ),
    ]


def _remove_unread(
    graph: GraphProto, before: set[str], values: Mapping[str, np.ndarray]
) -> None:
    """Remove nodes and initializers that nothing reads any more, and add initializers
    that something reads, in place.

    Args:
        graph: the graph.
        before: the names that were read in it.
        values: of removed nodes, by name.
    """
    read = {value.name for value in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(graph.node):
        if read.isdisjoint(node.output) and not before.isdisjoint(node.output):
            continue
        read.update(node.input, find_outer_names(node))
        kept.append(node)
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(reversed(kept))

    # One without its default would be an input that each run has to give.
    stay = {*read, *(value.name for value in graph.input)}
    keep_messages(graph.initializer, lambda tensor: tensor.name in stay)
    graph.initializer.extend(
        numpy_helper.from_array(value, name)
        for name, value in values.items()
        if name in read
    )


def _find_foldable(graph: GraphIndex, budget: int) -> tuple[_Foldable, int]:
    """Return the nodes of a graph that can be folded, and what is left of a budget of
    bytes.
    """
    holders = {*graph.holders}
    # An initializer is there from the beginning, and would hide or be hidden by a
    # value of that name in a subgraph before.
    inner = {
        name
        for i in holders
        for subgraph in iter_subgraphs(graph.nodes[i])
        for name in _list_names(subgraph)
    }
    known = {*graph.constants}.difference(graph.special_tensors)
    shapes: dict[str, np.ndarray] = {}
    nodes = []
    for i, (operator, inputs) in enumerate(
        zip(graph.op_types, graph.inputs, strict=True)
    ):
        is_of_shape = operator in _OF_SHAPES
        # Most nodes read a value that is not known.
        if not is_of_shape and not (inputs and inputs[0] in known):
            continue
        outputs = graph.outputs[i]
        if (
            graph.domains[i] not in DEFAULT_DOMAINS
            or operator in _KEPT
            or i in holders
            or not graph.results.isdisjoint(outputs)
            or not inner.isdisjoint(outputs)
        ):
            continue
        if is_of_shape:
            if (shape := _describe_shape(graph, i)) is not None:
                shapes[outputs[0]] = shape
                known.add(outputs[0])
            continue
        if not known.issuperset(filter(None, inputs)):
            continue
        cost = _measure(graph, inputs, outputs)
        if cost is not None and cost <= budget:
            budget -= cost
            known.update(outputs)
            nodes.append(i)
    return _Foldable(graph=graph, nodes=nodes, shapes=shapes), budget


def _describe_shape(graph: GraphIndex, node: int) -> np.ndarray | None:
    """Return the result of Shape or Size; None where it may differ between runs."""
    shape = graph.types.get_proven(graph.inputs[node][0]).shape
    if shape is None:
        return None
    ends = {attribute.name: attribute.i for attribute in graph.nodes[node].attribute}
    lengths = shape[ends.get("start") : ends.get("end")]
    if not all(isinstance(length, int) for length in lengths):
        return None
    result = np.array(lengths, np.int64)
    return np.array(result.prod()) if graph.op_types[node] == "Size" else result


def _measure(
    graph: GraphIndex, inputs: Collection[str], outputs: Collection[str]
) -> int | None:
    """Return the bytes that a node reads of large weights, and makes; None where it
    makes too many, or as many as it reads, or nobody knows.
    """
    result_bytes = 0
    for name in filter(None, outputs):
        type_ = graph.types.get_proven(name)
        lengths = [n for n in type_.shape or () if isinstance(n, int)]
        if not type_.is_static or type_.dtype is None or type_.dtype.kind not in "biuf":
            return None
        result_bytes += math.prod(lengths) * type_.dtype.itemsize
    sizes = [graph.weights[name].nbytes for name in inputs if name in graph.weights]
    large = [size for size in sizes if size > INLINE_LIMIT]
    # A weight that is rearranged is still a weight: it stays where it lies.
    if result_bytes > LARGEST_RESULT or any(2 * result_bytes > size for size in large):
        return None
    return result_bytes + sum(large)
