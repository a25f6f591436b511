"""Messages point to pages that are there where epctx is installed from wheels."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from epctx_cli.pages import read_pages

import epctx_core as epctx

ROOT = Path(__file__).parents[2]
SOURCES = [*ROOT.glob("epctx_core/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
POINTER = re.compile(r"`epctx\s+docs\s+([a-z-]+)(?:#([\w-]+))?`")


def list_texts(path):
    """Return the texts of a module, and those of them that are docstrings."""
    tree = ast.parse(path.read_bytes())
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    texts = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [(node.value, id(node) in docstrings) for node in texts]


def test_no_message_names_a_file_of_the_repositorys_documentation():
    found = {
        f"{path.name}: {text}"
        for path in SOURCES
        for text, is_docstring in list_texts(path)
        if not is_docstring and re.search(r"docs/[\w-]+\.md", text)
    }

    assert found == set()


def test_each_page_and_heading_that_the_code_points_to_is_there():
    pages = read_pages()
    headings = {
        name: {heading.anchor for heading in page.list_headings()} | {""}
        for name, page in pages.items()
    }

    pointers = {
        (name, heading)
        for path in SOURCES
        for text, _ in list_texts(path)
        for name, heading in POINTER.findall(text)
    }

    assert {"options", "errors", "verify"} <= {name for name, _ in pointers}
    assert {
        (name, heading)
        for name, heading in pointers
        if heading not in headings.get(name, ())
    } == set()


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
