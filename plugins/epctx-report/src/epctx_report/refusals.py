"""Refusals of EPs by reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from epctx_report.cut import Cut

_SHOWN_OPERATORS: Final = 6


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
    """Return the refusals by EP and reason, those of most nodes first.

    One that follows from another refusal is counted under the reason of that. Many EPs
    begin a reason with the operator, as in "Conv: a dimension is open": the operators
    of one reason share a group.
    """
    causes = {
        (ep, node.name): (node.operator, reason)
        for node in cut.nodes
        if node.explanation is not None
        for ep, reason in node.explanation.refusals
    }
    nodes: dict[tuple[str, str], list[int]] = {}
    follows: dict[tuple[str, str], list[int]] = {}
    operators: dict[tuple[str, str], dict[str, None]] = {}
    for number, node in enumerate(cut.nodes):
        if node.explanation is None:
            continue
        for ep, own in node.explanation.refusals:
            cause = node.explanation.follows.get(ep)
            operator, full = node.operator, own
            if cause is not None:
                operator, full = causes.get((ep, cause), (operator, full))
            reason = full.removeprefix(f"{operator}: ")
            nodes.setdefault((ep, reason), []).append(number)
            if reason != full:
                operators.setdefault((ep, reason), {})[operator] = None
            if cause is not None:
                follows.setdefault((ep, reason), []).append(number)

    groups = [
        RefusalGroup(
            ep=ep,
            reason=_name_operators(list(operators.get((ep, reason), ())), reason),
            nodes=members,
            follows=follows.get((ep, reason), []),
        )
        for (ep, reason), members in nodes.items()
    ]
    return sorted(groups, key=lambda group: -len(group.nodes))


def _name_operators(operators: Sequence[str], reason: str) -> str:
    if not operators:
        return reason
    shown = ", ".join(operators[:_SHOWN_OPERATORS])
    more = ", …" if len(operators) > _SHOWN_OPERATORS else ""
    return f"{shown}{more}: {reason}"
