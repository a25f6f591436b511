"""Barriers between the nodes of an EP and those that it leaves to others.

For some EPs, onnxruntime moves convolutions and the like to channels-last before it
cuts the graph, and pushes the transpositions that this needs through other nodes,
whoever runs them. Values at the boundary of what the EP compiled are then none of the
model's. No transposition passes a sequence of tensors, so a sequence of one tensor
keeps the layout that the model has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from onnx import ModelProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from onnx import GraphProto, NodeProto

_SEQUENCES_SINCE = 11
"""First opset with SequenceConstruct and SequenceAt."""
_BEHIND = "epctx_barrier/"
_OUTSIDE = "epctx_outside/"
_FIRST = f"{_BEHIND}first"


class _Group(NamedTuple):
    """Nodes that can run together: those of the EP before, between or after the nodes
    that it leaves to others, or those others.
    """

    is_left: bool
    stage: int

    def is_behind(self, source: _Group) -> bool:
        """Return whether a value of a group has to pass a barrier on its way here."""
        return self.is_left != source.is_left or (
            not self.is_left and self.stage > source.stage
        )


def add_barriers(model: ModelProto, left: Collection[int]) -> ModelProto | None:
    """Return a copy of a model with a barrier behind each value that nodes of the EP
    and others exchange, or that nodes of the EP read after others ran.

    Values keep their names where the EP computes them, and where it gets them from
    others. `strip_barrier` gives the name in the model of what the EP gets from itself.

    Args:
        model: the model.
        left: numbers of the nodes of its main graph that the EP leaves to others.

    Returns:
        None where there is no such value, or the opset is too old for a barrier.
    """
    groups, sources = _group_nodes(model.graph, left)
    if not sources or not _has_sequences(model):
        return None

    separated = ModelProto()
    separated.CopyFrom(model)
    del separated.graph.node[:]
    for node, group in zip(model.graph.node, groups, strict=True):
        made = separated.graph.node.add()
        made.CopyFrom(node)
        if group is None:
            continue
        for position, name in enumerate(node.input):
            source = sources.get(name)
            # What others compute gets its name behind the barrier: they read it before.
            if source and (
                group.is_left or (not source.is_left and group.is_behind(source))
            ):
                made.input[position] = _BEHIND + name
        for position, name in enumerate(node.output):
            if name in sources:
                ends = [name, _BEHIND + name]
                if group.is_left:
                    made.output[position] = ends[1]
                    ends.reverse()
                separated.graph.node.extend(_make_barrier(*ends))

    _add_first(separated)
    return separated


def enclose(model: ModelProto, ends: Collection[str]) -> ModelProto:
    """Return a copy of a model with barriers at its inputs and outputs, but for some
    names; or the model, where there are no others, or its opset is too old for them.

    EPs may leave what quantises an input, or dequantises an output, to others, as if it
    were the boundary of the network.
    """
    graph = model.graph
    inputs = {value.name for value in graph.input} - set(ends)
    made = {name for node in graph.node for name in node.output}
    outputs = {value.name for value in graph.output if value.name in made} - set(ends)
    if not (inputs or outputs) or not _has_sequences(model):
        return model

    enclosed = ModelProto()
    enclosed.CopyFrom(model)
    del enclosed.graph.node[:]
    for name in sorted(inputs):
        enclosed.graph.node.extend(_make_barrier(_OUTSIDE + name, name))
    # Directly behind what makes it: the first reader keeps the name of a dequantised
    # value, and onnxruntime makes copies with other names for the rest.
    for node in graph.node:
        enclosed.graph.node.append(node)
        for name in node.output:
            if name in outputs:
                enclosed.graph.node.extend(_make_barrier(name, _OUTSIDE + name))
    for value in (*enclosed.graph.input, *enclosed.graph.output):
        if value.name in inputs | outputs:
            value.name = _OUTSIDE + value.name
    _add_first(enclosed)
    return enclosed


def strip_barrier(name: str) -> str:
    """Return the name in the model of a value behind a barrier, or any other name."""
    return name.removeprefix(_BEHIND)


def _group_nodes(
    graph: GraphProto, left: Collection[int]
) -> tuple[list[_Group | None], dict[str, _Group]]:
    """Return the group of each node, None for one that computes constants; and, for
    each value that needs a barrier, the group that computes it.

    Stages are the earliest possible ones, as onnxruntime's.
    """
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {value.name for value in graph.input} - constants
    groups: list[_Group | None] = []
    sources: dict[str, _Group] = {}
    passing: dict[str, _Group] = {}
    for number, node in enumerate(graph.node):
        before = {name: sources[name] for name in node.input if name in sources}
        if not before and inputs.isdisjoint(node.input):
            groups.append(None)
            continue

        # Each way from others back to the EP begins a stage.
        is_left = number in left
        stages = (each.stage + (each.is_left > is_left) for each in before.values())
        group = _Group(is_left=is_left, stage=max(stages, default=0))
        groups.append(group)
        passing.update(item for item in before.items() if group.is_behind(item[1]))
        sources.update((name, group) for name in node.output if name)
    return groups, passing


def _has_sequences(model: ModelProto) -> bool:
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    return bool(opsets.get("", 0) >= _SEQUENCES_SINCE)


def _add_first(model: ModelProto) -> None:
    if all(tensor.name != _FIRST for tensor in model.graph.initializer):
        first = numpy_helper.from_array(np.array(0, np.int64), _FIRST)
        model.graph.initializer.append(first)


def _make_barrier(source: str, target: str) -> Iterator[NodeProto]:
    sequence = f"{_BEHIND}sequence/{source}"
    yield helper.make_node("SequenceConstruct", [source], [sequence])
    yield helper.make_node("SequenceAt", [sequence, _FIRST], [target])
