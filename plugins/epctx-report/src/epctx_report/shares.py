"""Nodes of each taker of a cut, and its share of the model.

An EPContext node is one node, however much it computes. So the share in a context model
is of the nodes that were compiled, else of bytes, else unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from epctx_report.cut import CPU_EP, SESSION

if TYPE_CHECKING:
    from epctx_core import ModelInfo, Placement
    from epctx_report.cut import Cut

ShareUnit: TypeAlias = Literal["nodes", "source nodes", "bytes"]


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Numbers and shares of takers.

    Attributes:
        nodes: number of nodes by taker, those inside subgraphs and functions included.
        unit: what the shares are of; None if they are unknown.
        by_taker: the share of each taker, from 0 to 1; empty if they are unknown.
    """

    nodes: Mapping[str, int]
    unit: ShareUnit | None
    by_taker: Mapping[str, float]


def measure_shares(cut: Cut, placement: Placement, info: ModelInfo) -> Shares:
    """Return the nodes and the share of each taker."""
    nodes = {row["ep"]: row["nodes"] for row in placement.eps}
    # A placement counts them as the CPU EP's.
    nodes[SESSION] = sum(node.ep == SESSION for node in cut.nodes)
    nodes[CPU_EP] -= nodes[SESSION]

    unit: ShareUnit | None = "nodes"
    amounts: Counter[str] | None = Counter(nodes)
    if any(node.is_context for node in cut.nodes):
        unit, amounts = "source nodes", _count_source_nodes(cut, nodes)
        if amounts is None:
            unit, amounts = "bytes", _count_bytes(placement, info)

    total = 0 if amounts is None else amounts.total()
    if amounts is None or not total:
        return Shares(nodes=nodes, unit=None, by_taker={})
    by_taker = {taker: amount / total for taker, amount in amounts.items()}
    return Shares(nodes=nodes, unit=unit, by_taker=by_taker)


def _count_source_nodes(cut: Cut, nodes: Mapping[str, int]) -> Counter[str] | None:
    """Return the nodes of the source by taker; None if an EPContext node does not say
    how many it replaced.
    """
    amounts = Counter(nodes)
    for node in cut.nodes:
        if node.is_context:
            if node.source_nodes is None:
                return None
            amounts[node.ep] += node.source_nodes - 1
    return amounts


def _count_bytes(placement: Placement, info: ModelInfo) -> Counter[str] | None:
    """Return the bytes of payloads and of weights outside of them by taker; None if a
    payload cannot be measured, or left weights in the source.
    """
    if info.weightless_mode:
        return None
    payloads: dict[tuple[str, str], int] = {}
    for node in info.ep_contexts:
        if node.payload_bytes is not None:
            name = node.payload_file or node.name
            payloads[node.source, name] = node.payload_bytes
        elif node.main_context:
            return None
    amounts = Counter({row["ep"]: row["weight_bytes"] for row in placement.eps})
    for (source, _), size in payloads.items():
        amounts[source] += size
    return amounts
