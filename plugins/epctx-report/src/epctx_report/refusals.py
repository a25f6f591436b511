"""Refusals of EPs by reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctx_report.cut import Cut


@dataclass(frozen=True, kw_only=True)
class RefusalGroup:
    """Nodes that an EP refused for one reason.

    Attributes:
        ep: the EP.
        reason: its words.
        nodes: numbers of the nodes.
        follows: those of them that were refused because a node that they serve was.
    """

    ep: str
    reason: str
    nodes: list[int] = field(default_factory=list)
    follows: list[int] = field(default_factory=list)


def group_refusals(cut: Cut) -> list[RefusalGroup]:
    """Return the refusals by EP and reason, those of most nodes first.

    One that follows from another refusal is counted under the reason of that.
    """
    reasons = {
        (ep, node.name): reason
        for node in cut.nodes
        if node.explanation is not None
        for ep, reason in node.explanation.refusals
    }
    groups: dict[tuple[str, str], RefusalGroup] = {}
    for number, node in enumerate(cut.nodes):
        if node.explanation is None:
            continue
        for ep, own in node.explanation.refusals:
            cause = node.explanation.follows.get(ep)
            reason = own if cause is None else reasons.get((ep, cause), own)
            group = groups.setdefault((ep, reason), RefusalGroup(ep=ep, reason=reason))
            group.nodes.append(number)
            if cause is not None:
                group.follows.append(number)
    return sorted(groups.values(), key=lambda group: -len(group.nodes))
