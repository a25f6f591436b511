"""Tables and prose that fit a number of columns.

Common parts of names are said once, columns to the right give way first: names are
shortened in the middle, prose is wrapped, and what still has no room is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from os.path import commonprefix
from typing import NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

INDENT = 2
"""Columns before each row of a table."""
_GAP = 2
_ELLIPSIS = "…"
_EP_ENDING = "ExecutionProvider"
_OF_EP = re.compile(rf"(?<![\w.-])([^\W_]+){_EP_ENDING}(?![\w.-])")
"""Name of an EP; files and partitions have longer ones."""
_QUANTITY = re.compile(r"[-+]?\d.{,14}|-?")
"""Number, size or version, which has no middle that could be left out."""
_LABEL = re.compile(r" +\S{1,10} {2,}")
_NO_NAMES = ("", "-")
_SHORTEST_PREFIX = 8
"""Characters of a common beginning that is worth a line of its own."""
_SHORTEST_EQUAL = 12
"""Columns of equal cells that are worth a line of their own."""
_FLOORS = (24, 16, 10)
"""Columns that each column of text keeps, and where that is too much, the next."""


@dataclass
class Column:
    """Column of a table.

    Attributes:
        name: its header.
        cells: text of each row.
        is_number: True to align it to the right.
        folds: True to break long names, which are shortened elsewhere.
        room: columns of the terminal that it gets.
    """

    name: str
    cells: list[str]
    is_number: bool = False
    folds: bool = False
    room: int = 0

    def __post_init__(self) -> None:
        """Give it the room that it needs."""
        self.room = max(map(cell_len, [self.name, *self.cells]))

    @property
    def is_rigid(self) -> bool:
        """True if its cells can be neither shortened nor wrapped."""
        return self.is_number or all(map(_QUANTITY.fullmatch, self.cells))

    @property
    def is_equal(self) -> bool:
        """True if it has the same long text in each of several rows."""
        return (
            bool(self.name)
            and len(self.cells) > 1
            and len({*self.cells}) == 1
            and cell_len(self.cells[0]) >= _SHORTEST_EQUAL
        )


class Fitted(NamedTuple):
    """Table that fits.

    Attributes:
        columns: each with its room.
        equal: columns of which every cell is equal, to be said once.
        common: parts of names that the cells lack, to be said once.
        left_out: headers of the columns without room.
    """

    columns: list[Column]
    equal: list[Column]
    common: list[str]
    left_out: list[str]


def fit(columns: Sequence[Column], width: int) -> Fitted:
    """Return a table that fits.

    Args:
        columns: all of them, the most important first.
        width: columns of the terminal.
    """
    fitted = list(columns)
    available = width - INDENT
    if _measure(fitted) <= available:
        return Fitted(fitted, [], [], [])

    equal = [column for column in fitted[1:] if column.is_equal]
    fitted[1:] = [column for column in fitted[1:] if not column.is_equal]

    remarks: list[str] = []
    for index, column in enumerate(fitted):
        fitted[index], said = _say_once(column)
        remarks += said
    left_out: list[str] = []
    while len(fitted) > 1 and _measure(fitted, _FLOORS[-1]) > available:
        left_out.insert(0, fitted.pop().name)
    for floor in _FLOORS:
        for column in reversed(fitted):
            excess = max(0, _measure(fitted) - available)
            if not column.is_rigid:
                column.room -= min(excess, max(0, column.room - floor))
    for column in fitted:
        column.cells = [_fit_cell(cell, column) for cell in column.cells]
    return Fitted(fitted, equal, list(dict.fromkeys(remarks)), left_out)


def _measure(columns: Sequence[Column], most: int | None = None) -> int:
    """Return the columns of a row, where a column of text gets at most `most`."""
    rooms = [
        column.room if most is None or column.is_rigid else min(column.room, most)
        for column in columns
    ]
    return sum(rooms) + _GAP * (len(rooms) - 1)


def _say_once(column: Column) -> tuple[Column, list[str]]:
    """Return a column without the part that its names have in common, and words for
    that part, if there is one.
    """
    if column.folds:
        return column, []
    names = {cell for cell in column.cells if cell not in _NO_NAMES}
    label = f"{column.name} " if column.name else ""
    is_prose = any(" " in name for name in names)
    eps = [name for name in names if _OF_EP.search(name)]
    # Of names alone all have to be of EPs: `QNN` may be another one's source.
    if eps and (is_prose or len(eps) == len(names)):
        cells = [_OF_EP.sub(r"\1", cell) for cell in column.cells]
        return replace(column, cells=cells), [f"{_ELLIPSIS}{_EP_ENDING}"]

    if is_prose or len(names) <= 1:
        return column, []
    # By characters, and then cut between the parts of names: not all are paths.
    prefix = commonprefix(sorted(names))  # noqa: RUF071
    prefix = prefix[: len(prefix) - _count(reversed(prefix))]
    if len(prefix) < _SHORTEST_PREFIX:
        return column, []
    cells = [
        f"{_ELLIPSIS}{cell.removeprefix(prefix)}" if cell in names else cell
        for cell in column.cells
    ]
    return replace(column, cells=cells), [f"{label}{prefix}{_ELLIPSIS}"]


def _count(characters: Iterable[str]) -> int:
    """Count letters and digits up to the first other character."""
    return sum(1 for _ in takewhile(str.isalnum, characters))


def _fit_cell(cell: str, column: Column) -> str:
    """Return a cell whose names fit; rich wraps it between them."""
    if column.folds:
        return cell
    return " ".join(shorten(word, column.room) for word in cell.split(" "))


def shorten(name: str, room: int) -> str:
    """Return a name with the middle left out if it needs more columns than `room`."""
    if cell_len(name) <= room:
        return name
    half = (room - 1) // 2
    # The end tells names of one model apart.
    head = _begin(name, room - 1 - half)
    tail = _begin(name[::-1], half)[::-1]
    return f"{head}{_ELLIPSIS}{tail}"


def _begin(name: str, room: int) -> str:
    """Return the beginning of a name that fits; characters may take two columns."""
    end = 0
    while end < len(name) and cell_len(name[: end + 1]) <= room:
        end += 1
    return name[:end]


def make_table(columns: Sequence[Column]) -> Table:
    """Return columns with their room as a table of rich."""
    # Gaps are columns, too: padding of the last column is in its width or not, which
    # depends on the version of rich.
    table = Table(
        box=None,
        show_header=any(column.name for column in columns),
        pad_edge=False,
        padding=0,
    )
    for index, column in enumerate(columns):
        if index:
            table.add_column(width=_GAP)
        table.add_column(
            Text(column.name),
            justify="right" if column.is_number else "left",
            width=column.room,
            overflow="fold",
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        cells = [cell for text in row for cell in ("", Text(text))]
        table.add_row(*cells[1:])
    return table


def wrap(line: str, width: int, *, hang: int = 0) -> list[str]:
    """Return a line of prose as lines that fit, further ones indented like the first.

    Long words stay whole, so that paths and commands can be copied.

    Args:
        line: the prose.
        width: columns of the terminal.
        hang: further indentation, if the first line is indented; after a label in a
            column of its own, lines go on below the text.
    """
    if cell_len(line) <= width:
        return [line]
    text = line.lstrip(" ")
    indent = line[: len(line) - len(text)]
    further = f"{indent}{' ' * hang}" if indent else ""
    if hang and (label := _LABEL.match(line)):
        further = " " * cell_len(label[0])
    # Not by rich, which breaks long words, nor by textwrap, which counts characters.
    rows: list[str] = []
    for word in text.split(" "):
        longer = f"{rows[-1]} {word}" if rows else f"{indent}{word}"
        if rows and cell_len(longer) > width:
            rows.append(f"{further}{word}")
        else:
            rows[-1:] = [longer]
    return [row.rstrip() for row in rows]
