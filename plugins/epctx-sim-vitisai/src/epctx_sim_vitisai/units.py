"""Nodes that the simulated VitisAI EP takes: operators with the quantisation around
them, whole or not at all.

A unit is an operator of the table, the DequantizeLinear before it, a following
activation that the device computes together with it, and the QuantizeLinear behind. So
integers of 8 or 16 bits flow in and out; what quantises at the borders of the network
stays on the CPU, as with the real EP. Only a DequantizeLinear that a node elsewhere
reads too gives float.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from epctx_sim_sdk.support import NodeSupport
from epctx_sim_sdk.values import constant, is_constant
from onnx import TensorProto

from epctx_core.plugin import read_inputs
from epctx_sim_vitisai.operators import (
    ACTIVATIONS,
    BIASES,
    FOLLOWING,
    OPERATORS,
    QUANTIZERS,
    WEIGHTS,
    Operator,
)

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView, NodeView

_INTO = "QuantizeLinear"
_OUT_OF = "DequantizeLinear"
_GLUE = {
    _INTO: "no operator that this EP takes gives it its value",
    _OUT_OF: "no operator that this EP takes reads it",
    "Constant": "no operator that this EP takes reads it",
}


class _RefusedError(Exception):
    """The text completes "Conv: "."""


class Support(NodeSupport):
    """Answers "does VitisAI take this node?" for the nodes of one graph.

    Args:
        graph: the view given to `get_capability`.
    """

    def __init__(self, graph: GraphView) -> None:
        super().__init__(graph)
        self._free = {node.index for node in graph.nodes}
        self._claimed: set[int] = set()
        self._reasons: dict[int, str] = {}
        for node in graph.nodes:
            if node.op_type not in _GLUE and node.index not in self._claimed:
                self._consider(node)

    def _judge(self, node: NodeView) -> str | None:
        if node.index in self._claimed:
            return None
        return self._reasons.get(node.index) or f"{node.op_type}: {_GLUE[node.op_type]}"

    def _consider(self, node: NodeView) -> None:
        try:
            unit = self._find_unit(node)
        except _RefusedError as error:
            self._reasons[node.index] = f"{node.op_type}: {error}"
        else:
            self._claimed.update(unit)

    def _find_unit(self, node: NodeView) -> set[int]:
        """Return the places of all nodes of an operator's unit."""
        operator = OPERATORS.get(node.op_type) if not node.domain else None
        if operator is None:
            raise _RefusedError("not among the operators that this EP takes")
        unit = {node.index, *self._find_before(node, operator)}
        self._check_ranks(node, operator)
        last = self._find_activation(node) if operator.followed else node
        if last is not node:
            unit.update(
                (
                    last.index,
                    *self._check_plain_inputs(last, OPERATORS[last.op_type].plain),
                )
            )
        for sink in self._find_sinks(last):
            unit.update((sink.index, *self._find_constant_nodes(sink.inputs[1:])))
        if not unit <= self._free:
            raise _RefusedError("another EP has part of what quantises around it")
        reason = operator.rule(node, self._graph) if operator.rule else None
        if reason:
            raise _RefusedError(reason.removeprefix(f"{node.op_type}: "))
        return unit

    def _find_before(self, node: NodeView, operator: Operator) -> set[int]:
        before = self._check_plain_inputs(node, operator.plain)
        for position, name in enumerate(node.inputs):
            if not name or position in operator.plain:
                continue
            source = self._find_source(name, position)
            if position == operator.weight:
                before |= self._check_constant(source, WEIGHTS, "weight")
            elif position == operator.bias:
                before |= self._check_constant(source, BIASES, "bias")
            else:
                self._check_activation(source, position)
            before |= {source.index, *self._find_constant_nodes(source.inputs[1:])}
        return before

    def _find_source(self, name: str, position: int) -> NodeView:
        source = self._graph.producer(name)
        if (
            source is None
            or source.op_type != _OUT_OF
            or source.domain not in QUANTIZERS
        ):
            raise _RefusedError(
                f"its input {position} comes from no DequantizeLinear, and this EP "
                "computes in integers"
            )
        return source

    def _check_activation(self, source: NodeView, position: int) -> None:
        kind = self._graph.value(source.inputs[0])
        if kind.elem_type not in ACTIVATIONS:
            raise _RefusedError(
                f"its input {position} is {_name_type(kind.elem_type)} before "
                "DequantizeLinear, not of 8 or 16 bits"
            )
        self._check_static(source.inputs[0], f"input {position}")
        if self._count_scales(source) != 1:
            raise _RefusedError(
                f"its input {position} has a scale for each channel; only weights may"
            )

    def _check_constant(
        self, source: NodeView, types: frozenset[int], what: str
    ) -> set[int]:
        """Check a dequantised constant; return the nodes that give it."""
        source_name = source.inputs[0]
        if not is_constant(self._graph, source_name):
            raise _RefusedError(f"its {what} is no constant")
        kind = self._graph.value(source_name)
        if kind.elem_type not in types:
            raise _RefusedError(
                f"its {what} is {_name_type(kind.elem_type)} before DequantizeLinear"
            )
        self._count_scales(source)
        name = source.inputs[2] if len(source.inputs) > 2 else ""  # noqa: PLR2004 - the place of the zero point
        zero_point = constant(self._graph, name) if name else None
        if zero_point is not None and np.any(zero_point != 0):
            raise _RefusedError(f"its {what} has a zero point other than 0")
        return self._find_constant_nodes([source_name])

    def _count_scales(self, node: NodeView) -> int:
        """Return how many scales a QuantizeLinear or DequantizeLinear has."""
        if node.attributes.get("block_size"):
            raise _RefusedError("it is quantised in blocks")
        if not all(is_constant(self._graph, name) for name in node.inputs[1:] if name):
            raise _RefusedError("a scale or zero point is no constant")
        shape = self._graph.value(node.inputs[1]).shape or ()
        return math.prod(dim for dim in shape if isinstance(dim, int))

    def _find_activation(self, node: NodeView) -> NodeView:
        """Return the activation behind a node if that is its only reader, else the
        node.
        """
        readers = self._list_readers(node)
        if (
            len(readers) == 1
            and readers[0].op_type in FOLLOWING
            and not self._leaves(node)
        ):
            follower = readers[0]
            if not follower.domain and follower.inputs[0] == node.outputs[0]:
                return follower
        return node

    def _find_sinks(self, node: NodeView) -> list[NodeView]:
        if any(map(self._is_read, node.outputs[1:])):
            raise _RefusedError("only its first result is given in integers")
        self._check_static(node.outputs[0], "result")
        sinks = self._list_readers(node)
        if self._leaves(node):
            raise _RefusedError(
                "its result leaves the network without a QuantizeLinear"
            )
        if not sinks or not all(
            sink.op_type == _INTO and sink.domain in QUANTIZERS for sink in sinks
        ):
            reader = next(
                (sink.op_type for sink in sinks if sink.op_type != _INTO), "nothing"
            )
            raise _RefusedError(
                f"its result is read by {reader}, not by a QuantizeLinear"
            )
        for sink in sinks:
            kind = self._graph.value(sink.outputs[0]).elem_type
            if kind not in ACTIVATIONS:
                raise _RefusedError(
                    f"its result is quantised to {_name_type(kind)}, not 8 or 16 bits"
                )
            if self._count_scales(sink) != 1:
                raise _RefusedError(
                    "its result has a scale for each channel; only weights may"
                )
        return sinks

    def _check_ranks(self, node: NodeView, operator: Operator) -> None:
        shape = self._graph.value(node.inputs[0]).shape or ()
        if len(shape) not in operator.ranks:
            raise _RefusedError(f"not taken with rank {len(shape)}")

    def _check_static(self, name: str, what: str) -> None:
        value = self._graph.value(name)
        if value.shape is None or not value.type.is_static:
            raise _RefusedError(
                f"a dimension of its {what} is open, and this EP takes static shapes "
                "only"
            )
        if 0 in value.shape:
            raise _RefusedError(f"its {what} is empty")

    def _check_plain_inputs(self, node: NodeView, positions: Iterable[int]) -> set[int]:
        """Check constants that are not quantised; return the nodes that give them."""
        names = [
            node.inputs[i] for i in positions if i < len(node.inputs) and node.inputs[i]
        ]
        constants = [name for name in names if is_constant(self._graph, name)]
        for name in read_inputs(self._graph, node):
            if name in names and name not in constants:
                raise _RefusedError(
                    f"its input {node.inputs.index(name)} is no constant"
                )
        return self._find_constant_nodes(constants)

    def _find_constant_nodes(self, names: Iterable[str]) -> set[int]:
        """Return the Constant nodes among those that give constants; weights have
        none.
        """
        producers = (self._graph.producer(name) for name in names)
        return {producer.index for producer in producers if producer is not None}

    def _list_readers(self, node: NodeView) -> list[NodeView]:
        return list(
            {
                reader.index: reader
                for reader in self._graph.consumers(node.outputs[0])
            }.values()
        )

    def _leaves(self, node: NodeView) -> bool:
        return node.outputs[0] in self._results


def _name_type(elem_type: int | None) -> str:
    return (
        "of an unknown type"
        if elem_type is None
        else TensorProto.DataType.Name(elem_type)
    )
