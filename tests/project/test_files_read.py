"""SECURITY.md says of each input who reads it, up to which bound, and which test shows
it; nothing else is read.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import NamedTuple

from support.folders import ROOT

READERS = re.compile(
    r"(.*\.)?(read_bytes|read_text|read_small_file|parse_json)"
    r"|open|os\.open|io\.open|io\.FileIO|mmap\.mmap|(json|tomllib|pickle)\.loads?"
    r"|(np|numpy)\.(load|loadtxt|fromfile|memmap)|onnx\.load(_\w+)?"
    r"|(zipfile|tarfile)\.\w+|(gzip|bz2|lzma)\.open|glob\.glob"
)
"""Calls that open files or decode what lies in them; `.open` counts if its arguments
are a mode to read.
"""
MODES = {"r", "rb", "rt", "r+b"}


class Row(NamedTuple):
    """One input: what is read, by which modules or packages, and tests of the bound."""

    what: str
    modules: list[str]
    tests: list[str]


@cache
def rows() -> list[Row]:
    """Return the rows of the table in SECURITY.md."""
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    _, _, section = text.partition("\n## What is read\n")
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in section.partition("\n## ")[0].splitlines()
        if line.startswith("| ") and not line.startswith("| input ")
    ]
    return [
        Row(
            what=what,
            modules=re.findall(r"`([\w.]+)`", modules),
            tests=re.findall(r"`([\w/.-]+\.py)`", tests),
        )
        for what, modules, _bound, tests in cells
    ]


def is_read(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    if READERS.fullmatch(called):
        return True
    values = [*call.args[:2], *(k.value for k in call.keywords if k.arg == "mode")]
    modes = [value.value for value in values if isinstance(value, ast.Constant)]
    return called.endswith(".open") and not MODES.isdisjoint(modes)


@cache
def readers() -> set[str]:
    """Return the names of the shipped modules that open or decode files."""
    found = set()
    for folder in (ROOT, *ROOT.glob("plugins/*/src")):
        for path in folder.glob("epctx_*/**/*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            # What lies beside it are templates of new packages, not code that runs.
            if "templates" in parts[:-2]:
                continue
            calls = (
                n
                for n in ast.walk(ast.parse(path.read_bytes()))
                if isinstance(n, ast.Call)
            )
            if any(map(is_read, calls)):
                found.add(".".join(parts).removesuffix(".__init__"))
    return found


def is_in(module: str, listed: str) -> bool:
    return module == listed or module.startswith(f"{listed}.")


def test_every_module_that_reads_has_a_row():
    listed = {name for row in rows() for name in row.modules}

    assert len(readers()) > 80
    assert {m for m in readers() if not any(is_in(m, name) for name in listed)} == set()


def test_every_module_of_a_row_reads():
    assert {
        (row.what, name)
        for row in rows()
        for name in row.modules
        if not any(is_in(module, name) for module in readers())
    } == set()


def test_every_row_names_tests_that_exist():
    assert [row.what for row in rows() if not (row.modules and row.tests)] == []
    assert {
        test for row in rows() for test in row.tests if not (ROOT / test).is_file()
    } == set()
