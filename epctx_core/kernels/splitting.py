"""A piece of a model in parts: what the fast engine lacks goes to a slow one, and nothing else does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from onnx import AttributeProto

from epctx_core.graph.bodies import bodies
from epctx_core.graph.index import GraphIndex
from epctx_core.graph.inference import infer_types
from epctx_core.graph.model_io import structure
from epctx_core.graph.partition import Partitioner
from epctx_core.graph.subgraph import Subgraph
from epctx_core.kernels.contrib_types import resolve_types
from epctx_core.kernels.in_place import write_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from onnx import ModelProto, NodeProto

    from epctx_core.kernels.engines import RunnableModel


_KNOWN: dict[tuple[Any, ...], bool] = {}
"""What a node is but for its names, to whether there is a kernel for it: the same for the whole process."""


class FastEngine(Protocol):
    """What splitting asks of the engine that is asked first."""

    def has_kernels(self, model: ModelProto) -> bool:
        """Whether all operators of a model have kernels for its types."""

    def can_pass(self, elem_type: int | None) -> bool:
        """Whether tensors of a type come in and go out."""


class Part:
    """Some nodes of a piece, as a model, and whether the fast engine runs them."""

    def __init__(self, graph: GraphIndex, nodes: Sequence[int], *, fast: bool) -> None:
        cut = Subgraph(graph, nodes)
        self.inputs, self.outputs = cut.input_names, cut.output_names
        # Only what Constant nodes give is a weight here: other initializers go in as they stand.
        self.model = cut.model(inline_weights=True)
        self.fast = fast


def split(model: ModelProto, engine: FastEngine) -> list[Part] | None:
    """Return the parts of a model in execution order, as few as there can be; None if it is one part.

    Args:
        model: detached weights stay as they are, in the parts too.
        engine: the fast one.
    """
    graph = _indexed(model)
    given = graph.constants & set(graph.output_names) - graph.producer.keys()
    slow = {i for i in range(len(graph.nodes)) if not _has_kernel(graph, i, engine)}
    if given or len(slow) == len(graph.nodes):
        return None
    while True:
        order, fast = _groups(graph, slow)
        parts = [Part(graph, group, fast=group[0] in fast) for group in order]
        stuck = _stuck(graph, order, fast, engine)
        if not stuck:
            break
        slow |= stuck
    return parts if len(parts) > 1 else None


def find_lacking(model: ModelProto, engines: Sequence[FastEngine]) -> NodeProto | None:
    """Return the first node that, alone, is one too many for every engine; None if each has one that runs it."""
    graph = _indexed(model)
    for index, node in enumerate(graph.nodes):
        if not any(_has_kernel(graph, index, engine) for engine in engines):
            return node
    return None


def _indexed(model: ModelProto) -> GraphIndex:
    # Without weights every initializer counts as special and goes into the parts as it stands.
    return GraphIndex(
        model.graph,
        types=infer_types(model, resolve_types),
        weights={},
        owner=model,
    )


def _groups(graph: GraphIndex, slow: set[int]) -> tuple[list[list[int]], set[int]]:
    """Return all nodes in groups in execution order, and the first nodes of those that are fast."""
    partitioner = Partitioner(graph.predecessors)
    fast = partitioner.group([[i] for i in range(len(graph.nodes)) if i not in slow])
    partitioner.take(fast)
    partitioner.take(partitioner.group([[i] for i in sorted(slow)]))
    return partitioner.execution_order(), {group[0] for group in fast}


def _stuck(graph: GraphIndex, order: Iterable[Sequence[int]], fast: set[int], engine: FastEngine) -> set[int]:
    """Return fast nodes at a boundary of their part that the engine cannot pass values over."""
    stuck: set[int] = set()
    for group in order:
        if group[0] not in fast:
            continue
        cut = Subgraph(graph, group)
        names = {
            name
            for name in (*cut.input_names, *cut.output_names)
            if not engine.can_pass(graph.types.get(name).elem_type)
        }
        if names:
            stuck.update(i for i in group if not names.isdisjoint((*graph.inputs[i], *graph.outputs[i])))
    return stuck


def _has_kernel(graph: GraphIndex, index: int, engine: FastEngine) -> bool:
    """Ask the engine for a node alone; once a process for equal operators on equal types."""
    node = graph.nodes[index]
    probe = structure(Subgraph(graph, [index]).model())
    if any(True for _ in bodies(node)) or probe.functions:
        return engine.has_kernels(probe)
    names = (*graph.inputs[index], *graph.outputs[index])
    # Kernels may also ask for certain attributes, or for inputs that are constant.
    key = (
        type(engine),
        graph.opset_imports.get(node.domain, 1),
        (node.domain, node.op_type),
        tuple((_kind(graph, name), name in graph.constants) for name in names),
        tuple(a.SerializeToString() for a in node.attribute if a.type != AttributeProto.TENSOR),
    )
    if key not in _KNOWN:
        _KNOWN[key] = engine.has_kernels(probe)
    return _KNOWN[key]


def _kind(graph: GraphIndex, name: str) -> int | bytes | None:
    """Return a tensor's element type, or all of another type."""
    elem_type = graph.types.get(name).elem_type if name else 0
    proto = graph.types.proto(name) if elem_type is None else None
    return elem_type if proto is None else proto.SerializeToString()


class SplitModel:
    """Parts that are run one after the other, with positional inputs and outputs.

    Args:
        model: the whole, for the names of its inputs and outputs.
        parts: in execution order.
        prepare: makes one part ready.
    """

    def __init__(
        self, model: ModelProto, parts: Sequence[Part], prepare: Callable[[Part], RunnableModel]
    ) -> None:
        self._inputs = [value.name for value in model.graph.input]
        self._outputs = [value.name for value in model.graph.output]
        self._steps = [
            (prepare(part).run, part.inputs, part.outputs, frees)
            for part, frees in zip(parts, _last_reads(parts, {*self._inputs, *self._outputs}), strict=True)
        ]

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> Sequence[np.ndarray]:
        """Run; inputs and results in the order of the model."""
        values: dict[str, Any] = dict(zip(self._inputs, inputs, strict=True))
        for run, reads, makes, frees in self._steps:
            values.update(zip(makes, run([values[name] for name in reads]), strict=True))
            for name in frees:
                del values[name]
        given = set(self._inputs)
        results = [values[name].copy() if name in given else values[name] for name in self._outputs]
        return results if outputs is None else write_in_place(results, outputs)


def _last_reads(parts: Sequence[Part], keep: set[str]) -> list[list[str]]:
    """Return for each part the values that no later one reads."""
    seen = set(keep)
    frees: list[list[str]] = []
    for part in reversed(parts):
        own = [name for name in dict.fromkeys((*part.inputs, *part.outputs)) if name not in seen]
        seen.update(own)
        frees.append(own)
    return frees[::-1]
