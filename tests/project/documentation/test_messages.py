"""Messages point to pages that are there where epctx is installed from wheels."""

from __future__ import annotations

import ast
import re

import pytest
from epctx_cli.pages import read_pages
from support.folders import ROOT

import epctx_core as epctx

pytestmark = pytest.mark.internal

SOURCES = [
    path.read_text("utf-8")
    for pattern in ("epctx_core/**/*.py", "plugins/*/src/**/*.py")
    for path in ROOT.glob(pattern)
]
FILE = re.compile(r"docs/[\w/-]+\.md")
POINTER = re.compile(r"`epctx\s+docs\s+([a-z-]+)(?:#([\w-]+))?`")


def list_messages(code):
    """Return the texts of a module that are no docstrings."""
    nodes = list(ast.walk(ast.parse(code)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    ]


def test_no_message_names_a_file_of_the_repositorys_documentation():
    naming = [code for code in SOURCES if FILE.search(code)]

    assert [
        text for code in naming for text in list_messages(code) if FILE.search(text)
    ] == []


def test_each_page_that_the_code_points_to_is_there_and_none_to_a_heading():
    pointers = {pointer for code in SOURCES for pointer in POINTER.findall(code)}
    pages = {name for name, _ in pointers}

    assert {"options", "errors", "verify"} <= pages <= read_pages().keys()
    assert {heading for _, heading in pointers} == {""}


@pytest.mark.parametrize(
    ("use", "page"),
    [
        (
            lambda options: options.add_session_config_entry("session.nothing", "1"),
            "options",
        ),
        (lambda options: options.nothing, "differences-from-onnxruntime"),
    ],
)
def test_an_error_names_the_page_with_more(use, page):
    with pytest.raises(epctx.EpctxError) as raised:
        use(epctx.SessionOptions())

    assert f"`epctx docs {page}`" in raised.value.hint
