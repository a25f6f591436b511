"""How tables fit a number of columns."""

from __future__ import annotations

import subprocess
import sys

import pytest
from epctx_cli import layout
from rich.cells import cell_len

PIPED = """
import sys
from epctx_cli.console import Console

Console().table(("node", "operator", "of"), [("first", "Relu", 3), ("b", "Convolution", 12)])
print("rich" in sys.modules)
"""


def fit(header, *rows, width):
    """Return a table that fits, and its lines."""
    columns = [
        layout.Column(name, [row[index] for row in rows])
        for index, name in enumerate(header)
    ]
    fitted = layout.fit(columns, width)
    cells = zip(*(column.cells for column in fitted.columns), strict=True)
    lines = [line for row in cells for line in layout.list_lines(fitted.columns, row)]
    assert all(cell_len(line) <= width for line in lines)
    return fitted, lines


def test_a_pipe_needs_no_rich():
    done = subprocess.run(
        [sys.executable, "-c", PIPED], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == [
        "  node   operator     of",
        "  first  Relu          3",
        "  b      Convolution  12",
        "False",
    ]


def test_shortened_names_stay_apart():
    names = [
        f"a{stage}.{'layers.' * 6}block.{block}.{'attention.' * 6}out{part}"
        for stage in (1, 2)
        for block in range(12)
        for part in "ab"
    ]

    _, lines = fit(("name",), *([name] for name in names), width=30)

    assert len({*lines}) == len(names)
    assert all("…" in line for line in lines)


@pytest.mark.parametrize("width", [12, 20, 40])
def test_names_of_characters_that_take_two_columns_stay_apart(width):
    names = [f"{'模' * 30}{number}{'型' * 30}" for number in range(9)]

    _, lines = fit(("name",), *([name] for name in names), width=width)

    assert len({*lines}) == len(names)


def test_what_names_begin_and_end_with_is_said_once():
    rows = [
        (f"model.encoder.stages.3.layers.{n}.layer.convolution.weight", "float[3,3]")
        for n in (0, 1, 17)
    ]

    fitted, lines = fit(("weight", "type"), *rows, width=40)

    assert fitted.common == [
        ("weight", "model.encoder.stages.3.layers.…"),
        ("weight", "….layer.convolution.weight"),
    ]
    assert [line.split()[0] for line in lines] == ["…0…", "…1…", "…17…"]


def test_a_single_name_that_is_shortened_is_said_whole():
    name = "QNNExecutionProvider_0123456789abcdef_0"

    fitted, (line,) = fit(("node", "size"), (name, "12.5 KiB"), width=40)

    assert name not in line
    assert fitted.common == [("node", name)]


def test_nothing_is_said_of_a_table_that_fits_once_its_names_begin_shorter():
    rows = [(f"model.encoder.{n}.weights.of.it",) for n in "ab"]

    fitted, _ = fit(("weight",), *rows, width=30)

    assert fitted.common == [("weight", "model.encoder.…")]


ESCAPES = (r"\x1b", r"\u200b", r"\U0001d173", r"\n")


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("room", range(3, 24))
def test_an_escape_is_not_cut_apart_where_a_name_is_shortened(escape, room):
    short = layout.shorten(f"{escape * 8}and{escape * 8}", room)

    assert cell_len(short) <= room
    assert set(short.replace(escape, "")) <= set("and…")


def test_an_escape_is_not_cut_apart_where_names_begin_alike():
    rows = [(rf"encoder.layers.\u200{each}in.{'x' * 30}{each}",) for each in "bc"]

    _, lines = fit(("name",), *rows, width=30)

    assert [line.split("in.")[0] for line in lines] == [r"  …\u200b", r"  …\u200c"]


def test_an_escape_is_not_cut_apart_where_a_row_is_broken():
    column = layout.Column("", [r"\x1b" * 12], folds=True, room=0)
    column.room = 10

    assert [*layout.list_lines([column], column.cells)] == [r"  \x1b\x1b"] * 6


def test_a_long_name_that_is_broken_takes_a_few_rows():
    columns = [
        layout.Column("", ["x"]),
        layout.Column("", [f"float[{'n' * 500}]"], folds=True),
    ]

    fitted = layout.fit(columns, 60).columns

    assert len([*layout.list_lines(fitted, [c.cells[0] for c in fitted])]) == 4


def test_a_number_stays_beside_its_unit():
    assert layout.wrap("It has 12 bytes", 10) == ["It has", "12 bytes"]
    assert layout.wrap("It took 1.5 s of", 12) == ["It took", "1.5 s of"]
    assert layout.wrap("It has 12 nodes", 10) == ["It has 12", "nodes"]
