"""Claims on the nodes of a graph, and the reasons why others are not claimed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epctx_core.plugin import ComputeCapability, NodeView, Refusal, supported_partitions
from epctx_openvino.conversion import find_unconverted
from epctx_openvino.deviations import explain_deviation, is_read
from epctx_openvino.narrowing import Widths
from epctx_openvino.running import ELEMENT_TYPES

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def find_claims(graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
    """Return claims, and refusals with reasons for users."""
    refused = find_unconverted(graph)
    widths = Widths(graph)

    def is_supported(node: NodeView) -> bool | str:
        if node.op_type in _CONTROL_FLOW and not node.domain:
            return (
                "the session runs control flow; nodes of its subgraphs are OpenVINO's"
            )
        if node.index in refused:
            return refused[node.index]
        return (
            _explain_types(graph, node)
            or explain_deviation(graph, node)
            or widths.explain_narrowing(node)
            or True
        )

    return supported_partitions(graph, is_supported)


def _explain_types(graph: GraphView, node: NodeView) -> str:
    """Return why a node cannot be in a partition for its types; an empty text if it
    can.

    An output that nobody reads, such as the mask of a Dropout, is in no partition.
    """
    read = (name for name in node.outputs if is_read(graph, name))
    for name in filter(None, (*node.inputs, *read)):
        value = graph.initializer(name) or graph.value(name)
        if value.elem_type not in ELEMENT_TYPES:
            return "a type that inputs and outputs of OpenVINO's models cannot have"
        if value.shape is None:
            return "the rank of a value is not known"
    return ""
