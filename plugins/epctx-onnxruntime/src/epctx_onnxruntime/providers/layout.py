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
    from collections.abc import Collection, Iterator, Sequence

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
    groups = _number_groups(model.graph, left)
    sources = _find_passing(model.graph.node, groups)
    if not sources or not _has_sequences(model):
        return None

    own = ModelProto()
    own.CopyFrom(model)
    del own.graph.node[:]
    for node, group in zip(model.graph.node, groups, strict=True):
        made = own.graph.node.add()
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
                own.graph.node.extend(_make_barrier(*ends))

    _add_first(own)
    return own


def enclose(model: ModelProto, ends: Collection[str]) -> ModelProto:
    """Return a copy of a model with barriers at its inputs and outputs, but for some
    names; or the model, where there are no others, or its opset is too old for them.

    EPs may leave what quantizes an input, or dequantizes an output, to others, as if it
    were the boundary of the network.
    """
    graph = model.graph
    inputs = {value.name for value in graph.input} - set(ends)
    outputs = {value.name for value in graph.output} - set(ends)
    if not (inputs or outputs) or not _has_sequences(model):
        return model

    own = ModelProto()
    own.CopyFrom(model)
    del own.graph.node[:]
    for name in sorted(inputs):
        own.graph.node.extend(_make_barrier(_OUTSIDE + name, name))
    own.graph.node.extend(graph.node)
    for name in sorted(outputs):
        own.graph.node.extend(_make_barrier(name, _OUTSIDE + name))
    for value in (*own.graph.input, *own.graph.output):
        if value.name in inputs | outputs:
            value.name = _OUTSIDE + value.name
    _add_first(own)
    return own


def strip_barrier(name: str) -> str:
    """Return the name in the model of a value behind a barrier, or any other name."""
    return name.removeprefix(_BEHIND)


def _number_groups(graph: GraphProto, left: Collection[int]) -> list[_Group | None]:
    """Return the group of each node, None for one that computes constants; stages are
    the earliest possible ones, as onnxruntime's.
    """
    constants = {tensor.name for tensor in graph.initializer}
    sources = {
        value.name: _Group(is_left=False, stage=0)
        for value in graph.input
        if value.name not in constants
    }
    groups: list[_Group | None] = []
    for number, node in enumerate(graph.node):
        before = [sources[name] for name in node.input if name in sources]
        if not before:
            groups.append(None)
            continue

        # Each way from others back to the EP begins a stage.
        is_left = number in left
        stage = max(group.stage + (group.is_left > is_left) for group in before)
        groups.append(_Group(is_left=is_left, stage=stage))
        sources.update((name, _Group(is_left, stage)) for name in node.output if name)
    return groups


def _find_passing(
    nodes: Sequence[NodeProto], groups: Sequence[_Group | None]
) -> dict[str, _Group]:
    """Return the groups of the values that need a barrier."""
    sources = {
        name: group
        for node, group in zip(nodes, groups, strict=True)
        if group is not None
        for name in node.output
        if name
    }
    return {
        name: sources[name]
        for node, group in zip(nodes, groups, strict=True)
        if group is not None
        for name in node.input
        if name in sources and group.is_behind(sources[name])
    }


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
