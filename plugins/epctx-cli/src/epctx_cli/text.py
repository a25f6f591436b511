"""Text for reports: safe to print, sizes and counts in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

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


def indented(text: str, by: str = "  ") -> str:
    """Return indented lines."""
    return "\n".join(by + line if line else line for line in text.split("\n"))
