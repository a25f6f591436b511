"""From "is this node supported?" to the answer of `get_capability`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from epctx_core.plugin.types import ComputeCapability, Refusal

if TYPE_CHECKING:
    import onnx

    from epctx_core.plugin.views import GraphView, NodeView


_NUMBERED = re.compile(r"epctx_n(\d+)(?!\d)")


def number_nodes(model: onnx.ModelProto) -> Callable[[str], int | None]:
    """Name the nodes of a model by their numbers, so that a vendor's answer about nodes can be mapped back.

    Vendors' front ends and onnxruntime answer by names, and give other ones where they split a node or move it to
    another layout: `epctx_n3_token_17` and `epctx_n3/Add` are made of node 3.

    Args:
        model: as `GraphView.model` or `GraphView.save` gives it, so that a number is a `NodeView.index`; the names of
            the nodes of its main graph are changed.

    Returns:
        A function from a name in the answer, a node's or that of a value that it makes, to the node's number; it
        gives None for any other.

    Example:
        >>> model = graph.model()
        >>> number = number_nodes(model)
        >>> taken = {number(name) for name in vendor.supported_nodes(model)}
        >>> return supported_partitions(graph, lambda node: node.index in taken or "the vendor does not take it")
    """
    makers: dict[str, int] = {}
    for index, node in enumerate(model.graph.node):
        node.name = f"epctx_n{index}"
        makers.update((name, index) for name in node.output if name)
    count = len(model.graph.node)

    def number(name: str) -> int | None:
        found = _NUMBERED.match(name)
        index = int(found[1]) if found else makers.get(name)
        return index if index is not None and index < count else None

    return number


def supported_partitions(
    graph: GraphView, is_supported: Callable[[NodeView], bool | str], *, keep_initializers: bool = False
) -> list[ComputeCapability | Refusal]:
    """Group the supported nodes into the fewest convex partitions.

    Args:
        graph: the view given to `get_capability`.
        is_supported: True for a supported node; False, or better the reason as text, for others.
        keep_initializers: passed on to each `ComputeCapability`.

    Returns:
        One `ComputeCapability` a partition, then one `Refusal` for each distinct reason.
    """
    supported: list[NodeView] = []
    refused: dict[str, list[NodeView]] = {}
    for node in graph.nodes:
        verdict = is_supported(node)
        if verdict and not isinstance(verdict, str):
            supported.append(node)
        else:
            refused.setdefault(verdict or f"{node.op_type} is not supported", []).append(node)
    groups = graph.convex_groups(supported) if supported else []
    return [
        *(ComputeCapability(nodes, keep_initializers=keep_initializers) for nodes in groups),
        *(Refusal(reason, nodes) for reason, nodes in refused.items()),
    ]
