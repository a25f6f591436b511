"""Split of a group of nodes: operators that the fast engine lacks run on the slow one,
and nothing else does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epctx_core.engines.reference_engine import ReferenceEngine
from epctx_core.errors import InvalidGraph, NotImplementedByProvider
from epctx_core.graph.extraction import NodeGroup
from epctx_core.graph.index import GraphIndex
from epctx_core.graph.inference import infer_types, prove_wrong
from epctx_core.graph.model_io import SourceModel, check_model, get_structure
from epctx_core.graph.partition import Partitioner
from epctx_core.graph.tensor_bytes import make_dense
from epctx_core.graph.walks import ONNX_DOMAINS, copy_message, walk_nodes
from epctx_core.installing import install_engine_command
from epctx_core.plugin import write_in_place

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto

    from epctx_core.engines.control_flow import Arrays, Memory
    from epctx_core.plugin import BaseEngine
    from epctx_core.plugin.types import RunFunction

_LISTED = 20
"""Nodes of a group that the log names."""

_log = logging.getLogger("epctx.engines")


def prepare_in_parts(
    model: ModelProto,
    weights: Mapping[str, np.ndarray],
    first: BaseEngine,
    fast: Callable[[ModelProto], RunFunction],
    refusal: NotImplementedByProvider,
) -> RunFunction:
    """Prepare a group that an engine refused: as much as possible on that engine, and
    the rest on the reference; return the function that runs it.

    Args:
        model, weights: of the group; the weights are arrays for its detached
            initializers.
        first, fast: the engine, and a function that prepares a model on it.
        refusal: its refusal of the whole group.

    Raises:
        InvalidGraph: the model is wrong.
        NotImplementedByProvider: no engine can run it; it names the node.
    """
    model = check_group(model)
    if wrong := prove_wrong(model):
        raise InvalidGraph(f"a group of nodes is wrong: {wrong}") from refusal
    if isinstance(first, ReferenceEngine):
        raise _lacking_error(model, [first], refusal.message) from refusal
    reference = ReferenceEngine(first.policy)

    def slow(part: ModelProto, refusal: NotImplementedByProvider) -> RunFunction:
        try:
            run = reference.prepare(part, weights).run
        except NotImplementedByProvider as error:
            refusals = f"{refusal.message}; {error.message}"
            raise _lacking_error(part, [first, reference], refusals) from error
        nodes = _list_nodes(part)
        _log.info("%s runs %s: %s", reference.name, nodes, refusal.message)
        return run

    def either(part: ModelProto, *, is_fast: bool) -> RunFunction:
        if not is_fast:
            return slow(part, refusal)
        try:
            run = fast(part)
        except NotImplementedByProvider as error:
            return slow(part, error)
        _log.info("%s runs %s", first.name, _list_nodes(part))
        return run

    parts = split(model, first) if len(model.graph.node) > 1 else None
    if parts is None:
        whole = slow(model, refusal)
        _log.warning(
            "a group of nodes runs on %s, which is slow: %s",
            ReferenceEngine.name,
            refusal.message,
        )
        return whole

    # Only results of Constant nodes are weights here: other initializers are copied as
    # they are.
    runs = [
        (p, either(p.model(inline_weights=True), is_fast=is_fast))
        for p, is_fast in parts
    ]
    lacking = [
        node.op_type for part, is_fast in parts if not is_fast for node in part.nodes
    ]
    _log.warning(
        "%d of the %d nodes of a group run on %s, which is slow: %s",
        len(lacking), len(model.graph.node), ReferenceEngine.name,
        ", ".join(sorted(set(lacking))),
    )  # fmt: skip
    return run_in_order(model, runs)


def _lacking_error(
    model: ModelProto, engines: Sequence[BaseEngine], refusals: str
) -> NotImplementedByProvider:
    """Return the error for a model that no engine runs; it names the first node that,
    alone, is too much for all.
    """
    graph = _make_index(model, engines[0])
    lacking = (
        node
        for index, node in enumerate(graph.nodes)
        if not any(_has_kernel(graph, index, engine) for engine in engines)
    )
    node = next(lacking, None)
    what = _list_nodes(model)
    cure = f"install onnxruntime's kernels: {install_engine_command()}"
    if node is not None:
        standard = (*ONNX_DOMAINS, "com.microsoft")
        custom = (each for each in walk_nodes([node]) if each.domain not in standard)
        node = next(custom, node)
        what = f"node {node.name!r} ({node.domain or 'ai.onnx'}::{node.op_type})"
        library = engines[0].policy.custom_domains.get(node.domain, "")
        is_custom = node.domain not in standard
        if is_custom and (library or engines[0].runs_custom_ops):
            cure = f"register its library {library!r:.300}".removesuffix(" ''")
            cure += ": SessionOptions.register_custom_ops_library(path)"

    return NotImplementedByProvider(
        f"no engine can run {what}: {refusals}",
        node=None if node is None else node.name,
        hint=f"Add an EP that takes this operator, or {cure}.",
    )


def check_group(model: ModelProto) -> ModelProto:
    """Return a copy of a model that a third party gives, in the form that ONNX asks for
    (see `normalise`).

    Raises:
        InvalidGraph: the ONNX checker refuses it.
    """
    copy: ModelProto = copy_message(model)
    make_dense(copy.graph, copy.functions)
    check_model(SourceModel(proto=copy, weights={}, path=None))
    return copy


def _list_nodes(model: ModelProto) -> str:
    """Describe a group's nodes for the log."""
    nodes = [
        f"{node.op_type} {node.name!r}" if node.name else node.op_type
        for node in model.graph.node
    ]
    shown = nodes[:_LISTED] + ["…"] * (len(nodes) > _LISTED)
    s = "s" * (len(nodes) > 1)
    return f"{len(nodes):,} node{s} of the model ({', '.join(shown)})"


def split(model: ModelProto, engine: BaseEngine) -> list[tuple[NodeGroup, bool]] | None:
    """Return the parts of a model in execution order, as few as there can be; None if
    it is one part.

    Args:
        model: detached weights stay as they are, in the parts too.
        engine: the fast one.

    Returns:
        Each part, and whether the fast engine runs it.
    """
    graph = _make_index(model, engine)
    constant = graph.constants & set(graph.output_names) - graph.producer.keys()
    slow = {i for i in range(len(graph.nodes)) if not _has_kernel(graph, i, engine)}
    if constant or len(slow) == len(graph.nodes):
        return None
    while True:
        partitioner = Partitioner(graph.predecessors)
        groups = partitioner.group(
            [[i] for i in range(len(graph.nodes)) if i not in slow]
        )
        partitioner.take(groups)
        partitioner.take(partitioner.group([[i] for i in sorted(slow)]))
        fast = {group[0] for group in groups}
        parts = [
            (NodeGroup(graph, group), group[0] in fast)
            for group in partitioner.execution_order()
        ]
        stuck = {
            i
            for part, is_fast in parts
            if is_fast
            for i in _find_stuck_nodes(part, engine)
        }
        if not stuck:
            return parts if len(parts) > 1 else None
        slow |= stuck


def _make_index(model: ModelProto, engine: BaseEngine) -> GraphIndex:
    # Without weights every initializer counts as special and is copied into the parts
    # as it is.
    return GraphIndex(
        model.graph,
        types=infer_types(model, engine.resolve_types),
        weights={},
        owner=model,
    )


def _find_stuck_nodes(part: NodeGroup, engine: BaseEngine) -> list[int]:
    """Return the nodes at a part's boundary that an engine cannot pass values over."""
    graph = part.graph
    values = (*part.inputs, *part.outputs)
    names = {
        value.name for value in values if not engine.can_pass(value.type.elem_type)
    }
    return [
        i
        for i in part.node_indices
        if not names.isdisjoint((*graph.inputs[i], *graph.outputs[i]))
    ]


def _has_kernel(graph: GraphIndex, index: int, engine: BaseEngine) -> bool:
    """Ask an engine for a node alone."""
    return engine.has_kernels(get_structure(NodeGroup(graph, [index]).model()))


def run_in_order(
    model: ModelProto, parts: Sequence[tuple[NodeGroup, RunFunction]]
) -> RunFunction:
    """Return a function that runs the parts of a model one after the other.

    Args:
        model: the whole, for the names of its inputs and outputs.
        parts: in execution order, each with the function that runs it.
    """
    input_names = [value.name for value in model.graph.input]
    output_names = [value.name for value in model.graph.output]
    steps: list[tuple[RunFunction, Sequence[str], Sequence[str], Sequence[str]]] = []
    read_later = {*input_names, *output_names}
    for part, run_part in reversed(parts):
        frees = {*part.input_names, *part.output_names} - read_later
        read_later |= frees
        steps.insert(0, (run_part, part.input_names, part.output_names, [*frees]))

    def run(inputs: Arrays, outputs: Memory | None = None) -> Arrays:
        values: dict[str, Any] = dict(zip(input_names, inputs, strict=True))
        for run_part, reads, makes, frees in steps:
            values.update(
                zip(
                    makes, run_part([values[name] for name in reads], None), strict=True
                )
            )
            for name in frees:
                del values[name]
        results = [
            values[name].copy() if name in input_names else values[name]
            for name in output_names
        ]
        return results if outputs is None else write_in_place(results, outputs)

    return run
