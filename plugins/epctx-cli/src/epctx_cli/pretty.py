"""Tables and trees on a terminal, by rich. Imported only where rich is installed and somebody looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from epctx_cli.text import Cell, one_line

_INDENT = 2
_UNLIMITED = 100_000


def _console(stream: TextIO) -> Console:
    # No markup, no emoji codes: what is printed are names out of models.
    return Console(file=stream, markup=False, emoji=False, highlight=False)


def _text(cell: Cell) -> Text:
    return Text(one_line(f"{cell:,}" if isinstance(cell, int) else cell))


def print_table(stream: TextIO, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bool:
    """Print a table, and say whether it was: one that is too wide would be cut into unreadable pieces."""
    console = _console(stream)
    shown = Table(box=box.SIMPLE_HEAD, show_header=any(header), show_edge=False, pad_edge=False)
    for place, title in enumerate(header):
        right = bool(rows) and all(isinstance(row[place], int) for row in rows)
        shown.add_column(title, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*(_text(cell) for cell in row))
    indented = Padding(shown, (0, 0, 0, _INDENT), expand=False)
    if console.measure(indented, options=console.options.update(width=_UNLIMITED)).maximum > console.width:
        return False
    console.print(indented)
    return True


def print_tree(stream: TextIO, root: str, leaves: Sequence[Sequence[Cell]]) -> None:
    """Print a folder with what lies in it."""
    shown = Tree(Text(one_line(root), style="bold"))
    for leaf in leaves:
        name, *rest = (_text(cell) for cell in leaf)
        shown.add(Text("  ").join([name, *(Text(part.plain, style="dim") for part in rest)]))
    _console(stream).print(shown)
