"""Tables: lines that are aligned, and fit a terminal.

Not rich's tables, which take a hundred times as long, and which a pipe need not import;
rich breaks the cells that are too wide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.console import OverflowMethod

Row: TypeAlias = "Sequence[str]"
_GAP = 2
"""Columns before each cell."""
_DEEPER = 8
"""Columns before further parts of a first cell: more than before the cells below it, so
that no part of a name passes for a row.
"""
_OF_EP = re.compile(r"(?<![\w.-])([^\W_]+)ExecutionProvider(?![\w.-])")
"""Name of an EP; files and partitions have longer ones."""
_NAME = re.compile(r"[^ ]*|[-+]?\d.{,14}")
"""Name, number, size or version, which is not broken."""
_PROSE = 16
"""Columns that prose needs beside names."""
_LEAST_SHARE = 3
"""Part of a narrow terminal that suffices, too."""


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

    header: Row
    rows: Sequence[Row]
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

    @property
    def _shown(self) -> Sequence[Row]:
        return [self.header, *self.rows] if self.has_header else self.rows

    def _align(self, row: Row, rooms: Sequence[int]) -> str:
        line = ""
        for cell, room, is_number in zip(row, rooms, self.numbers, strict=True):
            gap = " " * (room - count_cells(cell))
            line += " " * _GAP
            line += f"{gap}{cell}" if is_number else f"{cell}{gap}"
        return line.rstrip()

    def fits(self, width: int) -> bool:
        """Return True if each row is a line of that many columns."""
        return _add_gaps(self.rooms) <= width

    def without_endings(self) -> Table:
        """Return the table with the ending of EPs' names left out, but where two names
        would look equal.
        """
        columns = []
        for cells in zip(*self.rows, strict=True):
            short = [_OF_EP.sub(r"\1", cell) for cell in cells]
            is_clear = len({*short}) == len({*cells})
            columns.append(short if is_clear else cells)
        rows = [*zip(*columns, strict=True)]
        return replace(self, rows=rows)

    def has_room(self, width: int) -> bool:
        """Return True if the cells after the first one fit once prose is wrapped."""
        least = self._list_least(width)
        return _add_gaps(least) <= width

    def _list_least(self, width: int) -> list[int]:
        """Return the columns that each column needs; without a header any long cell may
        be broken.
        """
        most = min(_PROSE, width // _LEAST_SHARE)
        columns = zip(self.rooms, *self.rows, strict=True)
        # A long first cell is above the others.
        next(columns)
        least = [_GAP]
        for room, *cells in columns:
            is_whole = self.has_header and all(map(_NAME.fullmatch, cells))
            least.append(room if is_whole else min(room, most))
        return least

    def lay_out(self, width: int) -> list[str]:
        """Return the header, if there is one, and each row, of several lines: prose is
        wrapped, and a first cell that has no room beside the others is above them.
        """
        rooms = self.rooms if self.fits(width) else self._fit(width)
        return [self._break_row(row, rooms, width) for row in self._shown]

    def _fit(self, width: int) -> list[int]:
        """Return the columns that each column gets."""
        rooms = self._list_least(width)
        spare = max(0, width - _add_gaps(rooms))
        most = rooms[0] + spare
        firsts = [count_cells(row[0]) for row in self._shown]
        fitting = [room for room in firsts if room <= most]
        first = max(fitting, default=0)

        wanted_rooms = [first, *self.rooms[1:]]
        for index, wanted in enumerate(wanted_rooms):
            more = min(wanted - rooms[index], spare)
            if more > 0:
                rooms[index] += more
                spare -= more
        return rooms

    def _break_row(self, row: Row, rooms: Sequence[int], width: int) -> str:
        lines = []
        first, *others = row
        if count_cells(first) > rooms[0]:
            room = width - _GAP
            if count_cells(first) > room:
                room = width - _DEEPER
            begin, *further = wrap(first, room)
            lines.append(" " * _GAP + begin)
            lines += [" " * _DEEPER + part for part in further]
            first = ""

        columns = map(wrap, (first, *others), rooms)
        below = zip_longest(*columns, fillvalue="")
        lines += [self._align(cells, rooms) for cells in below]
        return "\n".join(filter(None, lines))

    def list_rows(self) -> Table:
        """Return a list for each row, after an empty one: the header's names, and the
        cells.
        """
        pairs = []
        for row in self.rows:
            pairs.append(("", ""))
            pairs.extend(zip(self.header, row, strict=True))
        return Table(
            header=("", ""),
            rows=pairs[1:],
            numbers=(False, False),
        )


def _add_gaps(rooms: Sequence[int]) -> int:
    """Return the columns of a row."""
    return sum(rooms) + _GAP * len(rooms)


def wrap(text: str, room: int, *, overflow: OverflowMethod = "fold") -> list[str]:
    """Return the lines of a text, one if it fits."""
    if count_cells(text) <= room:
        return [text]
    from rich.console import Console as Layout
    from rich.text import Text

    layout = Layout()
    rows = Text(text, overflow=overflow).wrap(layout, room)
    return [row.plain.rstrip() for row in rows]
