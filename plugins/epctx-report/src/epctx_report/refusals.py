"""Refusals of EPs by reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epctx_conformance.refusals import Refused
from epctx_conformance.refusals import group_refusals as refusals_by_reason

if TYPE_CHECKING:
    from epctx_report.cut import Cut


@dataclass(frozen=True, kw_only=True)
class RefusalGroup:
    """Nodes that an EP refused for one reason.

    Attributes:
        ep: the EP.
        reason: its words, after the operators if it began with one.
        nodes: numbers of the nodes.
        follows: those of them that were refused because a node that they serve was.
    """

    ep: str
    reason: str
    nodes: Sequence[int]
    follows: Sequence[int]


def group_refusals(cut: Cut) -> list[RefusalGroup]:
    """Return the refusals by EP and reason; see `epctx_conformance.refusals`."""
    refusals = (
        Refused(
            ep,
            reason,
            node.name,
            node.operator,
            node.explanation.follows.get(ep),
            node.explanation.inside,
            number,
        )
        for number, node in enumerate(cut.nodes)
        if node.explanation is not None
        for ep, reason in node.explanation.refusals
    )
    return [
        RefusalGroup(
            ep=ep,
            reason=reason,
            nodes=[each.number for each in nodes],
            follows=[each.number for each in nodes if each.follows],
        )
        for ep, reason, nodes in refusals_by_reason(refusals)
    ]
