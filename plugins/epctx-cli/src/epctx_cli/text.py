"""Text for reports: safe to print, sizes and counts in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from epctx_core.errors import one_line

if TYPE_CHECKING:
    from epctx_conformance.refusals import Refused

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


def describe_refusals(refusals: Iterable[Refused]) -> list[str]:
    """Return a line for each reason, those of the most nodes first; see
    `group_refusals`.
    """
    from epctx_conformance.refusals import group_refusals

    return [
        f"{ep}: {one_line(reason.rstrip('.'))} ({_describe_nodes(nodes)})"
        for ep, reason, nodes in group_refusals(refusals)
    ]


def _describe_nodes(group: Sequence[Refused]) -> str:
    own = [each for each in group if not each.follows]
    # Where only nodes that serve others are listed, the first of the others is named.
    first = own[0].node if own else group[0].follows
    inside = sum(each.inside for each in group)
    words = counted(len(own) or 1, "node")
    if inside:
        words += f" with {inside:,} inside"
    words += f", such as {first!r}"
    serving = len(group) - len(own)
    verb = "serves" if serving == 1 else "serve"
    return f"{words}, and {serving:,} that only {verb} such nodes" if serving else words


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
