"""Text for reports: safe to print, sizes and counts in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from epctx_core.errors import one_line

Cell: TypeAlias = "str | int"
"""Numbers are aligned to the right of their column."""

_KIBI = 1024
_LONGEST = 100
"""Characters of foreign text in prose."""


def printable(text: str) -> str:
    """Return text without control characters but line breaks, which names in models
    must not bring in: see `one_line` of the core.
    """
    return "\n".join(map(one_line, text.split("\n")))


def cell(value: Cell) -> str:
    """Return the text of a cell of a table."""
    text = f"{value:,}" if isinstance(value, int) else value
    return one_line(text)


def byte_size(count: int) -> str:
    """Return a number of bytes with a unit."""
    if count < _KIBI:
        return counted(count, "byte")

    # Numbers from models are of any size, and may be too large for a float.
    scale = _KIBI
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if count < scale * _KIBI:
            return f"{count / scale:.1f} {unit}"
        scale *= _KIBI
    return f"{count / scale:.1f} EiB" if count < scale * _KIBI else "over 1024 EiB"


def counted(number: int, noun: str) -> str:
    """Return `1 node` or `3 nodes`."""
    ending = "" if number == 1 else "s"
    return f"{number:,} {noun}{ending}"


def count_nodes(total: int, inside: int, folded: int = 0) -> str:
    """Return `9 nodes, 4 of them inside subgraphs and functions, 1 of them folded`.

    Args:
        total: the number of all nodes.
        inside: that of those inside subgraphs and functions.
        folded: that of those that were folded, of both.
    """
    parts = [counted(total, "node")]
    if inside:
        parts.append(f"{inside:,} of them inside subgraphs and functions")
    if folded:
        parts.append(f"{folded:,} of them folded")
    return ", ".join(parts)


def number(value: float | None) -> str:
    """Return a number in few digits; a dash for None."""
    return "-" if value is None else f"{value:.6g}"


def operators(names: Iterable[str] | Mapping[str, int], shown: int) -> str:
    """Return the counts of the most frequent operators: of their names, or of numbers
    by name.
    """
    counts = Counter(names).most_common()
    parts = [f"{number:,} {cut(name)}" for name, number in counts[:shown]]
    if len(counts) > shown:
        parts.append("…")
    return ", ".join(parts)


_SHOWN_OPERATORS = 6
"""Operators that the line of a reason names."""


class Refused(NamedTuple):
    """Refusal of one node by an EP.

    Attributes:
        ep, reason: the EP and what it says.
        node, operator: the node's name and operator.
        follows: name of the node without whose refusal this one would not be; None if
            it is one of its own.
    """

    ep: str
    reason: str
    node: str
    operator: str
    follows: str | None = None


def describe_refusals(refusals: Iterable[Refused]) -> list[str]:
    """Return a line for each reason, those of the most nodes first.

    A refusal that follows from another one is counted there. Many EPs begin a reason
    with the operator, as in "Conv: a dimension is open": the operators of one reason
    are listed on its line.
    """
    refusals = tuple(refusals)
    causes: dict[tuple[str, str], Refused] = {}
    for each in refusals:
        causes.setdefault((each.ep, each.node), each)

    groups: dict[tuple[str, str], list[Refused]] = {}
    operators: dict[tuple[str, str], dict[str, None]] = {}
    for each in refusals:
        cause = causes.get((each.ep, each.follows or each.node), each)
        opening = f"{cause.operator}: "
        reason = cause.reason.removeprefix(opening)
        groups.setdefault((each.ep, reason), []).append(each)
        if reason != cause.reason:
            operators.setdefault((each.ep, reason), {})[cause.operator] = None

    lines = []
    for key, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        ep, reason = key
        names = list(operators.get(key, ()))
        of = ", ".join(names[:_SHOWN_OPERATORS])
        of += ", …" if len(names) > _SHOWN_OPERATORS else ""
        words = f"{of}: {reason}" if names else reason
        lines.append(f"{ep}: {one_line(words.rstrip('.'))} ({_describe_nodes(group)})")
    return lines


def _describe_nodes(group: Sequence[Refused]) -> str:
    names = list(dict.fromkeys(each.node for each in group if not each.follows))
    if not names:
        # In a subgraph, a node may have the name of another one outside.
        names = [each.follows for each in group[:1] if each.follows]
    words = f"{counted(len(names), 'node')}, such as {names[0]!r}"

    serving = {each.node: each.operator for each in group if each.follows}
    if not serving:
        return words
    if set(serving.values()) == {"Constant"}:
        constants = counted(len(serving), "constant")
        return f"{words}, and {constants} that only such nodes read"
    nodes = counted(len(serving), "node")
    return f"{words}, and {nodes} of the quantisation around them"


def cut(name: object) -> str:
    """Return foreign text for prose: one line, of which a part is left out if it is
    long.
    """
    # What is not shown need not be escaped.
    words = str(name)
    shown = one_line(words[:_LONGEST])
    if len(words) <= _LONGEST:
        return shown
    return f"{shown}… ({len(words):,} characters)"


def indent(text: str, by: str = "  ") -> str:
    """Indent each line that is not empty."""
    lines = [f"{by}{line}" if line else "" for line in text.split("\n")]
    return "\n".join(lines)
