"""Answers "does this device take this node, and if not, why?" by the tables of the
devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_sim_sdk.support import NodeSupport
from epctx_sim_sdk.values import is_constant
from onnx import TensorProto

from epctx_core.plugin import read_inputs
from epctx_sim_openvino.operators import CONDITIONS, CONTRIB, DEVICES, WITH_SUBGRAPHS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epctx_core.plugin import GraphView, NodeView
    from epctx_core.plugin.types import Dimension
    from epctx_sim_openvino.devices import DeviceChoice


class Support(NodeSupport):
    """Judges the nodes of one graph.

    Args:
        graph: the view given to `get_capability`.
        choice: the device, or the mode over several.
        refuse_subgraphs: returns why a node's subgraphs cannot be taken, or None.
        static_only: refuse open dimensions on every device.
    """

    def __init__(
        self,
        graph: GraphView,
        choice: DeviceChoice,
        refuse_subgraphs: Callable[[NodeView], str | None],
        *,
        static_only: bool = False,
    ) -> None:
        super().__init__(graph)
        self._choice = choice
        self._refuse_subgraphs = refuse_subgraphs
        self._static_only = static_only

    def refusal_of_operator(self, node: NodeView) -> str | None:
        """Return the reason for which a node's operator is refused, whatever its
        values.
        """
        return self._combine(
            [_refuse_operator(node, device) for device in self._choice.deciding]
        )

    def _judge(self, node: NodeView) -> str | None:
        reason = self._combine(
            [self._refuse_on_device(node, device) for device in self._choice.deciding]
        )
        if reason is None and node.op_type in CONDITIONS:
            reason = CONDITIONS[node.op_type](node, self._graph)
        if reason is None and node.op_type in WITH_SUBGRAPHS:
            reason = self._refuse_subgraphs(node)
        if reason is None and not self._serves(node):
            reason = "Constant: no node that OpenVINO takes reads it"
        return reason

    def _combine(self, answers: Sequence[str | None]) -> str | None:
        """Return the mode's answer out of its devices': the first refusal, or none if
        one device is enough.
        """
        if self._choice.one_is_enough and None in answers:
            return None
        return next((answer for answer in answers if answer is not None), None)

    def _refuse_on_device(self, node: NodeView, device: str) -> str | None:
        reason = _refuse_operator(node, device)
        if reason is not None:
            return reason
        names = dict.fromkeys(
            (
                *filter(None, read_inputs(self._graph, node)),
                *filter(self._is_read, node.outputs),
            )
        )
        return next(
            filter(None, (self._refuse_value(node, name, device) for name in names)),
            None,
        )

    def _refuse_value(self, node: NodeView, name: str, device: str) -> str | None:
        value = self._graph.value(name)
        rules = DEVICES[device]
        constant = is_constant(self._graph, name)
        if value.elem_type is None:
            return f"{node.op_type}: the type of a value is not known before a run"
        if value.elem_type not in (rules.weights if constant else rules.types):
            kind = TensorProto.DataType.Name(value.elem_type).lower()
            return f"{node.op_type}: OpenVINO takes no {kind} on {device}"
        if constant:
            return None
        return self._refuse_shape(node, value.shape, device)

    def _refuse_shape(
        self, node: NodeView, shape: tuple[Dimension, ...] | None, device: str
    ) -> str | None:
        operator = node.op_type
        rules = DEVICES[device]
        if shape == () and operator not in rules.scalars:
            return f"{operator}: OpenVINO does not take a scalar here on {device}"
        if shape and 0 in shape and operator not in rules.empty:
            return f"{operator}: a value is empty"
        reason = self._refuse_openness(shape, device)
        return f"{operator}: {reason}" if reason else None

    def _refuse_openness(
        self, shape: tuple[Dimension, ...] | None, device: str
    ) -> str | None:
        rules = DEVICES[device]
        if shape is None:
            allowed = rules.open_ranks and not self._static_only
            return None if allowed else "the rank of a value is not known before a run"
        if all(isinstance(dimension, int) for dimension in shape):
            return None
        if not rules.open_shapes:
            return (
                "a dimension is open, and OpenVINO takes static shapes only on "
                f"{device}"
            )
        return (
            "a dimension is open, and disable_dynamic_shapes is 1"
            if self._static_only
            else None
        )


def _refuse_operator(node: NodeView, device: str) -> str | None:
    is_read = not node.domain or (
        node.domain == "com.microsoft" and node.op_type in CONTRIB
    )
    if is_read and node.op_type in DEVICES[device].operators:
        return None
    if is_read and any(node.op_type in other.operators for other in DEVICES.values()):
        places = " and ".join(
            name for name, other in DEVICES.items() if node.op_type in other.operators
        )
        return f"{node.op_type}: OpenVINO takes it on {places}, not on {device}"
    shown = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
    return f"{shown} is not an operator that OpenVINO takes"
