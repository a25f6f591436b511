"""From "is this node supported?" to the answer of `get_capability`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from epctx_core.plugin.types import ComputeCapability, Refusal

if TYPE_CHECKING:
    from epctx_core.plugin.views import GraphView, NodeView


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
