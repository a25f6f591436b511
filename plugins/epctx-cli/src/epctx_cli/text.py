"""Text for reports: safe to print, sizes and counts in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from epctx_core.errors import one_line

Cell: TypeAlias = "str | int"
"""Numbers are aligned to the right of their column."""

_KIBI = 1024


def printable(text: str) -> str:
    """Return text without control characters but line breaks, which names in models
    must not bring in: see `one_line` of the core.
    """
    return "\n".join(map(one_line, text.split("\n")))


def cell(value: Cell) -> str:
    """Return the text of a cell of a table."""
    return one_line(f"{value:,}" if isinstance(value, int) else value)


def byte_size(count: int) -> str:
    """Return a number of bytes with a unit."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < _KIBI:
            return f"{count} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= _KIBI
    return f"{value:.1f} TiB"


def counted(number: int, noun: str) -> str:
    """Return `1 node` or `3 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number(value: float | None) -> str:
    """Return a number in few digits; a dash for None."""
    return "-" if value is None else f"{value:.6g}"


def operators(names: Iterable[str], shown: int) -> str:
    """Return the counts of the most frequent operators."""
    counts = Counter(names).most_common()
    listed = ", ".join(f"{number} {name}" for name, number in counts[:shown])
    return listed + (", …" if len(counts) > shown else "")


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

    A refusal that follows from another one is counted there.
    """
    refusals = tuple(refusals)
    reasons: dict[tuple[str, str], str] = {}
    for each in refusals:
        reasons.setdefault((each.ep, each.node), each.reason)
    groups: dict[tuple[str, str], list[Refused]] = {}
    for each in refusals:
        cause = reasons.get((each.ep, each.follows or each.node), each.reason)
        reason = cause if each.follows else each.reason
        groups.setdefault((each.ep, reason), []).append(each)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [
        f"{ep}: {one_line(reason.rstrip('.'))} ({_describe_nodes(group)})"
        for (ep, reason), group in ordered
    ]


def _describe_nodes(group: Sequence[Refused]) -> str:
    names = list(dict.fromkeys(each.node for each in group if not each.follows))
    # In a subgraph, a node may have the name of another one outside.
    names = names or [each.follows for each in group[:1] if each.follows]
    words = f"{counted(len(names), 'node')}, such as {names[0]!r}"
    serving = {each.node: each.operator for each in group if each.follows}
    if not serving:
        return words
    count = len(serving)
    if set(serving.values()) == {"Constant"}:
        return f"{words}, and {counted(count, 'constant')} that only such nodes read"
    return f"{words}, and {counted(count, 'node')} of the quantization around them"


def indent(text: str, by: str = "  ") -> str:
    """Indent each line that is not empty."""
    return "\n".join(by + line if line else line for line in text.split("\n"))
