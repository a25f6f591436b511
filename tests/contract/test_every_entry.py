"""Each entry of ONNX Runtime's behaviour list has a test."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from support.folders import ROOT
from support.listed_differences import list_rows
from support.pages import read_page

ENTRIES = range(1, 138)


def marked(tree: ast.AST) -> list[int]:
    """Return the numbers of all `pytest.mark.entry(...)` in a module; each must be a
    literal.
    """
    return [
        ast.literal_eval(number)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.entry"
        for number in node.args
    ]


@pytest.fixture(scope="module")
def tests_of():
    """Entry to the files that show it."""
    found = defaultdict(set)
    for path in [
        *ROOT.glob("tests/**/test_*.py"),
        *ROOT.glob("plugins/*/tests/test_*.py"),
    ]:
        if path != Path(__file__):
            for number in marked(ast.parse(path.read_bytes())):
                found[number].add(path.relative_to(ROOT).as_posix())
    return found


def test_each_entry_of_the_list_has_a_test_and_nothing_else_is_marked(tests_of):
    assert set(tests_of) == set(ENTRIES)


def test_a_mark_is_found_wherever_it_stands():
    text = """
        @pytest.mark.entry(1, 2)
        @pytest.mark.parametrize("x", [pytest.param(0, marks=pytest.mark.entry(3))])
        def test(x): ...
        """

    assert sorted(marked(ast.parse(re.sub(r"(?m)^ {8}", "", text)))) == [1, 2, 3]


def test_the_table_of_differences_names_entries_that_there_are():
    cells = [row[0] for row in list_rows()]
    numbers = {int(number) for cell in cells for number in re.findall(r"\d+", cell)}

    assert all(re.fullmatch(r"(\d+(, \d+)*)?", cell) for cell in cells)
    assert len(numbers) > 10
    assert numbers <= set(ENTRIES)


def test_where_the_two_design_documents_differ_each_difference_says_what_holds_here():
    text = read_page("differences-loading.md")
    table = text[
        text.index("| matter | older document | newer document | epctx |") :
    ].split("\n\n")[0]
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in table.splitlines()[2:]
    ]

    assert len(rows) > 10
    assert all(len(row) == 4 and all(row) for row in rows)
    assert all(row[1] != row[2] for row in rows)
