"""Tables and prose that fit a number of columns.

Common parts of names are said once, columns to the right give way first: names are
shortened in the middle, prose is wrapped, and what still has no room is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, takewhile, zip_longest
from os.path import commonprefix
from typing import NamedTuple

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
_BREAK = re.compile(r" (?!(?<=\d )(?:bytes|[KMGTPE]iB|ms|s|h)\b)")
"""Space between words of prose, but not between a number and its unit."""
_UNIT = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[nrt\\])|.", re.DOTALL)
"""Character, or an escape of one, which is not cut apart."""
_NO_NAMES = ("", "-")
_SHORTEST_COMMON = 8
"""Characters of a common beginning or ending that is worth saying once."""
_LONGEST_SAID = 300
"""Characters of a name that is said whole above a table."""
_KEPT_BEFORE = 2
"""Characters that a moved cut keeps before those that tell names apart."""
_MOST_ROWS = 4
"""Rows of a name that is broken; a longer one is shortened as well."""
_SHORTEST_EQUAL = 12
"""Columns of equal cells that are worth a line of their own."""
_FLOORS = (24, 16, 10)
"""Columns that each column of text keeps, and where that is too much, the next."""


def count_cells(text: str) -> int:
    """Return the columns of the terminal that a line takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


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
        self.room = max(map(count_cells, [self.name, *self.cells]))

    @cached_property
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
            and count_cells(self.cells[0]) >= _SHORTEST_EQUAL
        )


class Fitted(NamedTuple):
    """Table that fits.

    Attributes:
        columns: each with its room.
        equal: columns of which every cell is equal, to be said once.
        common: header of a column, or nothing for all, and what its cells lack of their
            names, to be said once.
        left_out: headers of the columns without room.
    """

    columns: list[Column]
    equal: list[Column]
    common: list[tuple[str, str]]
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

    remarks: list[tuple[str, str]] = []
    for say_once in (_say_beginning_once, _say_ending_once):
        for index, column in enumerate(fitted):
            if _measure(fitted) > available and not column.folds:
                fitted[index], said = say_once(column)
                remarks += said
    left_out: list[str] = []
    while len(fitted) > 1 and _measure(fitted, _FLOORS[-1]) > available:
        left_out.insert(0, fitted.pop().name)
    _give_room(fitted, available)
    for column in fitted:
        names = {*column.cells}
        _fit_cells(column)
        if len(names) == 1 and names != {*column.cells}:
            remarks += _say_whole(column, *names)
    return Fitted(fitted, equal, list(dict.fromkeys(remarks)), left_out)


def _measure(columns: Sequence[Column], most: int | None = None) -> int:
    """Return the columns of a row, where a column of text gets at most `most`."""
    rooms = [
        column.room if most is None or column.is_rigid else min(column.room, most)
        for column in columns
    ]
    return sum(rooms) + _GAP * (len(rooms) - 1)


def _give_room(columns: Sequence[Column], available: int) -> None:
    """Reduce the room of columns of text until a row fits."""
    for floor in _FLOORS:
        for column in reversed(columns):
            excess = max(0, _measure(columns) - available)
            if not column.is_rigid:
                column.room -= min(excess, max(0, column.room - floor))


def _say_whole(column: Column, name: str) -> list[tuple[str, str]]:
    """Return the only name of a column: other commands ask for it, and nothing else
    tells it.
    """
    if column.folds or " " in name or len(name) > _LONGEST_SAID:
        return []
    return [(column.name, name)]


def _say_beginning_once(column: Column) -> tuple[Column, list[tuple[str, str]]]:
    """Return a column without the beginning that its names have in common, or the
    ending of names of EPs, and what was taken out.
    """
    names = _list_names(column)
    is_prose = any(" " in name for name in names)
    eps = [name for name in names if _OF_EP.search(name)]
    # Of names alone all have to be of EPs: `QNN` may be another one's source.
    if eps and (is_prose or len(eps) == len(names)):
        cells = [_OF_EP.sub(r"\1", cell) for cell in column.cells]
        return replace(column, cells=cells), [("", f"{_ELLIPSIS}{_EP_ENDING}")]

    if is_prose or len(names) <= 1:
        return column, []
    # By characters, and then cut between the parts of names: not all are paths.
    prefix = commonprefix(sorted(names))  # noqa: RUF071
    prefix = prefix[: len(prefix) - _count(reversed(prefix))].rstrip("\\")
    if len(prefix) < _SHORTEST_COMMON:
        return column, []
    cells = [
        f"{_ELLIPSIS}{cell.removeprefix(prefix)}" if cell in names else cell
        for cell in column.cells
    ]
    return replace(column, cells=cells), [(column.name, f"{prefix}{_ELLIPSIS}")]


def _say_ending_once(column: Column) -> tuple[Column, list[tuple[str, str]]]:
    """Return a column without the ending that its names have in common, and that."""
    names = _list_names(column)
    if len(names) <= 1 or any(" " in name for name in names):
        return column, []
    # Backwards, without the ellipsis of a beginning that was taken out.
    ends = [name.removeprefix(_ELLIPSIS)[::-1] for name in names]
    suffix = commonprefix(sorted(ends))[::-1]  # noqa: RUF071
    suffix = suffix[_count(suffix) :]
    if len(suffix) < _SHORTEST_COMMON:
        return column, []
    cells = [
        f"{cell.removesuffix(suffix)}{_ELLIPSIS}" if cell in names else cell
        for cell in column.cells
    ]
    return replace(column, cells=cells), [(column.name, f"{_ELLIPSIS}{suffix}")]


def _list_names(column: Column) -> set[str]:
    return {cell for cell in column.cells if cell not in _NO_NAMES}


def _count(characters: Iterable[str]) -> int:
    """Count letters and digits up to the first other character."""
    return sum(1 for _ in takewhile(str.isalnum, characters))


def _fit_cells(column: Column) -> None:
    """Shorten the names of a column that do not fit; prose is wrapped between them."""
    room = column.room * (_MOST_ROWS if column.folds else 1)
    words = chain.from_iterable(cell.split(" ") for cell in column.cells)
    if short := _shorten_apart(
        {word for word in words if count_cells(word) > room}, room
    ):
        column.cells = [
            " ".join(short.get(word, word) for word in cell.split(" "))
            for cell in column.cells
        ]


def _shorten_apart(names: Iterable[str], room: int) -> dict[str, str]:
    """Return a short form of each name; no two are equal."""
    short: dict[str, str] = {}
    owners: dict[str, str] = {}
    # Each with what is left of it once a beginning that does not tell it from others is
    # taken out.
    waiting = [(name, name) for name in sorted(names)]
    while waiting:
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, rest in waiting:
            groups.setdefault(shorten(rest, room), []).append((name, rest))
        waiting = []
        for form, members in groups.items():
            if len(members) == 1 and form not in owners:
                owners[form] = members[0][0]
                short[owners[form]] = form
            elif cut := _find_cut([rest for _, rest in members]):
                # One ellipsis more than was there, so that a rest gets shorter.
                waiting += [
                    (name, f"{_ELLIPSIS}{rest[cut:]}") for name, rest in members
                ]
            else:
                for name, rest in members:
                    mark = f"~{len(owners) + 1}"
                    short[name] = f"{shorten(rest, room - len(mark))}{mark}"
                    owners[short[name]] = name
    return short


def _find_cut(names: Sequence[str]) -> int:
    """Return the index of a little before the first difference; 0 if there is none, or
    if nothing would be saved.
    """
    if len(names) == 1:
        return 0
    common = commonprefix(names)[:-_KEPT_BEFORE]  # noqa: RUF071
    end = 0
    for unit in _UNIT.finditer(names[0]):
        if unit.end() > len(common):
            break
        end = unit.end()
    return end if end > len(_ELLIPSIS) else 0


def shorten(name: str, room: int) -> str:
    """Return a name with the middle left out if it needs more columns than `room`."""
    if count_cells(name) <= room:
        return name
    # The end tells names of one model apart.
    half = max(0, room - 1) // 2
    units = _UNIT.findall(name)
    head = "".join(_take(units, room - 1 - half))
    tail = "".join(_take(reversed(units), half)[::-1])
    return f"{head}{_ELLIPSIS}{tail}"


def _take(units: Iterable[str], room: int) -> list[str]:
    """Return the first units that fit; a character may take two columns."""
    taken = []
    for unit in units:
        room -= count_cells(unit)
        if room < 0:
            break
        taken.append(unit)
    return taken


def list_lines(columns: Sequence[Column], cells: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a row, of which the first is the only one if all cells fit.

    Args:
        columns: those of the table, with their room.
        cells: text of the row in each of them.
    """
    # Without rich's tables, which take a hundred times as long.
    parts = [
        [cell] if count_cells(cell) <= column.room else _break(cell, column.room)
        for column, cell in zip(columns, cells, strict=True)
    ]
    for line in zip_longest(*parts, fillvalue=""):
        padded = []
        for column, part in zip(columns, line, strict=True):
            gap = " " * (column.room - count_cells(part))
            padded.append(f"{gap}{part}" if column.is_number else f"{part}{gap}")
        yield f"{' ' * INDENT}{(' ' * _GAP).join(padded)}".rstrip()


def _break(cell: str, room: int) -> list[str]:
    """Return the rows of a cell, of which long words are broken."""
    rows = []
    for row in wrap(cell, room):
        units = _UNIT.findall(row)
        while count_cells("".join(units)) > room:
            taken = _take(units, room) or units[:1]
            rows.append("".join(taken))
            units = units[len(taken) :]
        rows.append("".join(units))
    return rows


def wrap(line: str, width: int, *, hang: int = 0) -> list[str]:
    """Return a line of prose as lines that fit, further ones indented like the first.

    Long words stay whole, so that paths and commands can be copied.

    Args:
        line: the prose.
        width: columns of the terminal.
        hang: further indentation, if the first line is indented; after a label in a
            column of its own, lines go on below the text.
    """
    if count_cells(line) <= width:
        return [line]
    text = line.lstrip(" ")
    indent = line[: len(line) - len(text)]
    further = f"{indent}{' ' * hang}" if indent else ""
    if hang and (label := _LABEL.match(line)):
        further = " " * count_cells(label[0])
    # Not by rich, which breaks long words, nor by textwrap, which counts characters.
    rows: list[str] = []
    for word in _BREAK.split(text):
        longer = f"{rows[-1]} {word}" if rows else f"{indent}{word}"
        if rows and count_cells(longer) > width:
            rows.append(f"{further}{word}")
        else:
            rows[-1:] = [longer]
    return [row.rstrip() for row in rows]
