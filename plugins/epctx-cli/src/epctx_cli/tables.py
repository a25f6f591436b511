"""Tables: lines that are aligned, or what rich makes of a table that is too wide."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table as Grid

_GAP = 2
"""Columns before each cell."""
_OF_EP = re.compile(r"(?<![\w.-])([^\W_]+)ExecutionProvider(?![\w.-])")
"""Name of an EP; files and partitions have longer ones."""
_QUANTITY = re.compile(r"[-+]?\d.{,14}|-?")
"""Number, size or version, which is not broken."""
_PROSE = 16
"""Columns that prose needs beside names."""


def count_cells(text: str) -> int:
    """Return the columns of the terminal that a line takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


@dataclass(frozen=True)
class Table:
    """Table of a report.

    Attributes:
        header: names of the columns; none is shown if all are empty.
        rows: text of each cell.
        numbers: for each column, True to align it to the right.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[bool]

    @property
    def has_header(self) -> bool:
        """True if a column has a name."""
        return any(self.header)

    @cached_property
    def rooms(self) -> list[int]:
        """Columns of the terminal that each column takes."""
        cells = zip(self.header, *self.rows, strict=True)
        return [max(map(count_cells, column)) for column in cells]

    @cached_property
    def lines(self) -> list[str]:
        """A line for the header, if there is one, and for each row."""
        # Not by rich, which takes a hundred times as long, and which a pipe need not
        # import.
        rows = [self.header, *self.rows] if self.has_header else self.rows
        return [self._align(row) for row in rows]

    def _align(self, row: Sequence[str]) -> str:
        padded = []
        for cell, room, is_number in zip(row, self.rooms, self.numbers, strict=True):
            gap = " " * (room - count_cells(cell))
            padded.append(f"{gap}{cell}" if is_number else f"{cell}{gap}")
        return "".join(f"{' ' * _GAP}{cell}" for cell in padded).rstrip()

    def fits(self, width: int) -> bool:
        """Return True if each row is a line of that many columns."""
        return max(map(count_cells, self.lines)) <= width

    def without_endings(self) -> Table:
        """Return the table with the ending of EPs' names left out, but where two names
        would look equal.
        """
        columns = []
        for cells in zip(*self.rows, strict=True):
            short = [_OF_EP.sub(r"\1", cell) for cell in cells]
            columns.append(short if len({*short}) == len({*cells}) else cells)
        return replace(self, rows=[[*row] for row in zip(*columns, strict=True)])

    @cached_property
    def _is_whole(self) -> list[bool]:
        """For each column, True if none of its cells is broken: names and numbers.

        The first column is, whatever is in it: a broken name could pass for a row.
        """
        columns = zip(self.numbers, zip(*self.rows, strict=True), strict=True)
        return [
            not index
            or is_number
            or all(" " not in cell or _QUANTITY.fullmatch(cell) for cell in cells)
            for index, (is_number, cells) in enumerate(columns)
        ]

    def has_room(self, width: int) -> bool:
        """Return True if it fits once its prose is wrapped."""
        rooms = [
            room if is_whole else min(room, _PROSE)
            for room, is_whole in zip(self.rooms, self._is_whole, strict=True)
        ]
        return sum(rooms) + _GAP * len(rooms) <= width

    def wrap(self, width: int) -> Grid:
        """Return the table as rich wraps its prose; where that does not suffice, any
        long cell is broken.
        """
        from rich.text import Text

        has_room = self.has_room(width)
        table = _begin(show_header=self.has_header)
        for name, is_number, is_whole in zip(
            self.header, self.numbers, self._is_whole, strict=True
        ):
            table.add_column(
                Text(name),
                justify="right" if is_number else "left",
                no_wrap=is_whole and has_room,
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def list_rows(self) -> Grid:
        """Return a list for each row: the header's names, and the cells."""
        from rich.text import Text

        table = _begin(show_header=False)
        table.add_column(style="bold", overflow="fold")
        table.add_column(overflow="fold")
        for index, row in enumerate(self.rows):
            if index:
                table.add_row()
            for name, cell in zip(self.header, row, strict=True):
                table.add_row(Text(name), Text(cell))
        return table


def _begin(*, show_header: bool) -> Grid:
    from rich.table import Table as Grid

    return Grid(box=None, show_header=show_header, padding=(0, 0, 0, _GAP))
