"""Refusals of nodes by EP and reason, for commands and pages that list them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

_SHOWN_OPERATORS = 6
"""Operators that a reason names."""


class Refused(NamedTuple):
    """Refusal of one node by an EP.

    Attributes:
        ep, reason: the EP and what it says.
        node, operator: the node's name and operator.
        follows: name of the node without whose refusal this one would not be; None if
            it is one of its own.
        inside: number of the nodes inside this one.
        number: the caller's own for the node.
    """

    ep: str
    reason: str
    node: str
    operator: str
    follows: str | None = None
    inside: int = 0
    number: int = 0


class RefusalGroup(NamedTuple):
    """Nodes that an EP refused for one reason.

    Attributes:
        ep: the EP.
        reason: its words, after the operators if it began with one.
        nodes: the refusals.
    """

    ep: str
    reason: str
    nodes: Sequence[Refused]


def group_refusals(refusals: Iterable[Refused]) -> list[RefusalGroup]:
    """Return the refusals by EP and reason, those of most nodes first, where nodes
    inside others count.

    One that follows from another refusal is counted under the reason of that. Many EPs
    begin a reason with the operator, as in "Conv: a dimension is open": the operators
    of one reason share a group.
    """
    refusals = tuple(refusals)
    causes: dict[tuple[str, str], Refused] = {}
    for each in refusals:
        causes.setdefault((each.ep, each.node), each)

    groups: dict[tuple[str, str], list[Refused]] = {}
    operators: dict[tuple[str, str], dict[str, None]] = {}
    for each in refusals:
        # Nodes of several graphs may have one name.
        cause = causes.get((each.ep, each.follows), each) if each.follows else each
        reason = cause.reason.removeprefix(f"{cause.operator}: ")
        groups.setdefault((each.ep, reason), []).append(each)
        if reason != cause.reason:
            operators.setdefault((each.ep, reason), {})[cause.operator] = None

    found = []
    for (ep, reason), nodes in groups.items():
        names = list(operators.get((ep, reason), ()))
        of = ", ".join(names[:_SHOWN_OPERATORS])
        of += ", …" if len(names) > _SHOWN_OPERATORS else ""
        found.append(RefusalGroup(ep, f"{of}: {reason}" if names else reason, nodes))
    return sorted(found, key=lambda group: -sum(1 + e.inside for e in group.nodes))
