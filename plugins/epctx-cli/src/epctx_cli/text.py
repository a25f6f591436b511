"""Text for people: safe to print, sizes, plain tables and trees. Knows no stream and no command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Cell: TypeAlias = "str | int"
"""Numbers stand at the right of their column."""

_KIBI = 1024
_BRANCHES = {True: ("├── ", "└── "), False: ("|-- ", "`-- ")}


def printable(text: str) -> str:
    """Return text in which nothing steers a terminal: names come out of models that anybody may have made."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )


def one_line(text: str) -> str:
    """Return the same on one line."""
    return printable(text).replace("\n", "\\n")


def size(count: int) -> str:
    """Return a number of bytes as people read it."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < _KIBI:
            return f"{count} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= _KIBI
    return f"{value:.1f} TiB"


def count(number: int, what: str) -> str:
    """Return `1 node` or `3 nodes`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def number(value: float | None) -> str:
    """Return a measured value in few digits; a dash for none."""
    return "-" if value is None else f"{value:.6g}"


def operators(names: Iterable[str], shown: int) -> str:
    """Return how often operators occur, the most frequent ones first, at most so many."""
    counts = Counter(names).most_common()
    listed = ", ".join(f"{number} {name}" for name, number in counts[:shown])
    return listed + (", …" if len(counts) > shown else "")


def indented(text: str, by: str = "  ") -> str:
    """Return a block moved to the right."""
    return "\n".join(by + line if line else line for line in text.split("\n"))


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Return the lines of a table, columns apart by two spaces; without a header if all of it is empty."""
    cells = [[one_line(f"{c:,}" if isinstance(c, int) else c) for c in row] for row in rows]
    if any(header):
        cells.insert(0, list(header))
    right = [bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(header))]
    widths = [max((len(row[i]) for row in cells), default=0) for i in range(len(header))]
    return [
        "  ".join(
            text.rjust(width) if at_right else text.ljust(width)
            for text, width, at_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]


def tree(root: str, leaves: Sequence[Sequence[Cell]], *, ascii_only: bool) -> list[str]:
    """Return the lines of a folder with what lies in it."""
    inner, last = _BRANCHES[not ascii_only]
    lines = table([""] * len(leaves[0]), leaves) if leaves else []
    marks = [inner] * (len(lines) - 1) + [last]
    return [one_line(root), *(mark + line for mark, line in zip(marks, lines, strict=bool(lines)))]
