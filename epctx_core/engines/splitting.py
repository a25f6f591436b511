"""A piece of a model in parts: what the fast engine lacks goes to a slow one, and nothing else does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx
from onnx import AttributeProto, ModelProto

from epctx_core.engines.cpu_engine import INSTALL
from epctx_core.engines.reference_engine import ReferenceEngine
from epctx_core.errors import InvalidGraph, NotImplementedByProvider
from epctx_core.graph.index import GraphIndex, bodies
from epctx_core.graph.inference import infer_types
from epctx_core.graph.model_io import SourceModel, check_model, structure
from epctx_core.graph.partition import Partitioner
from epctx_core.graph.subgraph import Subgraph
from epctx_core.graph.tensor_bytes import write_out_sparse
from epctx_core.plugin import write_in_place

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.plugin import BaseEngine, RunnableModel

_LISTED = 20
"""Nodes of a piece that the log names."""

_log = logging.getLogger("epctx.engines")

_MOST_KNOWN = 4096
_KNOWN: dict[tuple[Any, ...], bool] = {}
"""What a node is but for its names, to whether there is a kernel for it, for the whole process; at most `_MOST_KNOWN`."""


class Fallback:
    """Prepares a piece that the first engine refused, as much of it as can be on that engine and the rest on the other.

    Args:
        first: the engine.
        weights: arrays for the detached initializers.
        fast: prepares a model on the first engine.
        refusal: what it said of the whole piece.
    """

    def __init__(
        self,
        first: BaseEngine,
        weights: Mapping[str, np.ndarray],
        fast: Callable[[ModelProto], RunnableModel],
        refusal: NotImplementedByProvider,
    ) -> None:
        self._engines: list[BaseEngine] = [first]
        if not isinstance(first, ReferenceEngine):
            self._engines.append(ReferenceEngine(first.policy))
        self._weights, self._fast, self._refusal = weights, fast, refusal

    def prepare(self, model: ModelProto) -> RunnableModel:
        """Return the piece, ready to run.

        Raises:
            InvalidGraph: the piece is wrong.
            NotImplementedByProvider: no engine can run it; it names the node.
        """
        model = checked_piece(model)
        _check_types(model, self._refusal)
        first, *others = self._engines
        parts = split(model, first) if others and len(model.graph.node) > 1 else None
        if parts is not None:
            prepared = SplitModel(model, parts, self._part)
            slow = [node.op_type for part in parts if not part.fast for node in part.model.graph.node]
            _log.warning(
                "%d of the %d nodes of a piece of the model run on %s, which is slow: %s",
                len(slow),
                len(model.graph.node),
                others[0].name,
                ", ".join(sorted(set(slow))),
            )
            return prepared
        whole = self._on_another(model, self._refusal)
        _log.warning(
            "a piece of the model runs on %s, which is slow: %s", others[0].name, self._refusal.message
        )
        return whole

    def _part(self, part: Part) -> RunnableModel:
        refusal = self._refusal
        if part.fast:
            try:
                prepared = self._fast(part.model)
            except NotImplementedByProvider as error:
                refusal = error
            else:
                _log.info("%s runs %s", self._engines[0].name, _listed(part.model))
                return prepared
        return self._on_another(part.model, refusal)

    def _on_another(self, model: ModelProto, refusal: NotImplementedByProvider) -> RunnableModel:
        """Prepare on the other engine, if there is one."""
        refusals = [refusal]
        for engine in self._engines[1:]:
            try:
                prepared = engine.prepare(model, self._weights)
            except NotImplementedByProvider as error:
                refusals.append(error)
            else:
                _log.info("%s runs %s: %s", engine.name, _listed(model), refusal.message)
                return prepared
        # The first node that, alone, is one too many for every engine.
        graph = _indexed(model, self._engines[0])
        lacking = (
            node
            for index, node in enumerate(graph.nodes)
            if not any(_has_kernel(graph, index, engine) for engine in self._engines)
        )
        node = next(lacking, None)
        what = (
            _listed(model)
            if node is None
            else f"node {node.name!r} ({node.domain or 'ai.onnx'}::{node.op_type})"
        )
        raise NotImplementedByProvider(
            f"no engine can run {what}: {'; '.join(refusal.message for refusal in refusals)}",
            node=None if node is None else node.name,
            hint=f"Add an EP that takes this operator, or install onnxruntime's kernels: {INSTALL}.",
        )


def checked_piece(model: ModelProto) -> ModelProto:
    """Return a copy of a model that a third party gives, in the form that ONNX asks for (see `normalise`).

    Raises:
        InvalidGraph: the ONNX checker refuses it.
    """
    own = ModelProto()
    own.CopyFrom(model)
    write_out_sparse(own.graph, own.functions)
    check_model(SourceModel(proto=own, weights={}, path=None, digest=""))
    return own


def _listed(model: ModelProto) -> str:
    """Return a piece's nodes for the log."""
    nodes = [f"{node.op_type} {node.name!r}" if node.name else node.op_type for node in model.graph.node]
    more = f" and {len(nodes) - _LISTED:,} more" if len(nodes) > _LISTED else ""
    return f"{len(nodes):,} node{'s' * (len(nodes) > 1)} of the model ({', '.join(nodes[:_LISTED])}{more})"


def _check_types(model: ModelProto, refusal: NotImplementedByProvider) -> None:
    """Raise InvalidGraph if inference proves that a refused model is wrong; declared lengths are hints and left out."""
    probe = ModelProto()
    probe.CopyFrom(structure(model))
    del probe.graph.value_info[:]
    for value in probe.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
    try:
        onnx.shape_inference.infer_shapes(probe, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError) as error:
        text = " ".join(str(error).split())
        raise InvalidGraph(f"a piece of the model is wrong: {text}") from refusal
    except RuntimeError:  # inference itself gave up, which proves nothing
        return


class Part:
    """Some nodes of a piece, as a model, and whether the fast engine runs them."""

    def __init__(self, graph: GraphIndex, nodes: Sequence[int], *, fast: bool) -> None:
        cut = Subgraph(graph, nodes)
        self.inputs, self.outputs = cut.input_names, cut.output_names
        # Only what Constant nodes give is a weight here: other initializers go in as they stand.
        self.model = cut.model(inline_weights=True)
        self.fast = fast


def split(model: ModelProto, engine: BaseEngine) -> list[Part] | None:
    """Return the parts of a model in execution order, as few as there can be; None if it is one part.

    Args:
        model: detached weights stay as they are, in the parts too.
        engine: the fast one.
    """
    graph = _indexed(model, engine)
    given = graph.constants & set(graph.output_names) - graph.producer.keys()
    slow = {i for i in range(len(graph.nodes)) if not _has_kernel(graph, i, engine)}
    if given or len(slow) == len(graph.nodes):
        return None
    while True:
        partitioner = Partitioner(graph.predecessors)
        groups = partitioner.group([[i] for i in range(len(graph.nodes)) if i not in slow])
        partitioner.take(groups)
        partitioner.take(partitioner.group([[i] for i in sorted(slow)]))
        order, fast = partitioner.execution_order(), {group[0] for group in groups}
        parts = [Part(graph, group, fast=group[0] in fast) for group in order]
        stuck = _stuck(graph, order, fast, engine)
        if not stuck:
            break
        slow |= stuck
    return parts if len(parts) > 1 else None


def _indexed(model: ModelProto, engine: BaseEngine) -> GraphIndex:
    # Without weights every initializer counts as special and goes into the parts as it stands.
    return GraphIndex(model.graph, types=infer_types(model, engine.resolve_types), weights={}, owner=model)


def _stuck(graph: GraphIndex, order: Iterable[Sequence[int]], fast: set[int], engine: BaseEngine) -> set[int]:
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


def _has_kernel(graph: GraphIndex, index: int, engine: BaseEngine) -> bool:
    """Ask the engine for a node alone; once a process for equal operators on equal types."""
    node = graph.nodes[index]
    probe = structure(Subgraph(graph, [index]).model())
    if any(True for _ in bodies(node)) or probe.functions:
        return engine.has_kernels(probe)
    names = (*graph.inputs[index], *graph.outputs[index])
    kinds: list[tuple[int | bytes | None, bool]] = []
    for name in names:  # by its element type, or all of another type
        elem_type = graph.types.get(name).elem_type if name else 0
        proto = graph.types.proto(name) if elem_type is None else None
        kinds.append((elem_type if proto is None else proto.SerializeToString(), name in graph.constants))
    # Kernels may also ask for certain attributes, or for inputs that are constant or have a known rank.
    key = (
        type(engine),
        graph.opset_imports.get(node.domain, 1),
        (node.domain, node.op_type),
        tuple(kinds),
        any(graph.types.get(name).shape is None for name in graph.inputs[index] if name),
        tuple(a.SerializeToString() for a in node.attribute if a.type != AttributeProto.TENSOR),
    )
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = engine.has_kernels(probe)
    return _KNOWN[key]


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
        self._steps: list[tuple[Callable[..., Any], Sequence[str], Sequence[str], Sequence[str]]] = []
        read_later = {*self._inputs, *self._outputs}
        for part in reversed(parts):
            frees = [n for n in dict.fromkeys((*part.inputs, *part.outputs)) if n not in read_later]
            read_later.update(frees)
            self._steps.insert(0, (prepare(part).run, part.inputs, part.outputs, frees))

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
