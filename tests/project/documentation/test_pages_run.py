"""Blocks and commands of the documentation do what the pages say, in order, as a
reader pastes them.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from documentation.blocks import snippets
from documentation.page_files import write_page_files
from documentation.run_page import differs, read_blocks
from documentation.test_write_an_ep import PAGES as PAGES_OF_EPS
from support.folders import IMPORTED, ROOT
from support.pages import FILES

import epctx_core as epctx
from epctx_core.plugin import Purpose

RUN_BY_THEIR_OWN_TESTS = {
    "host-plugins.md",
    *PAGES_OF_EPS,
}
# 2,024 tests of ONNX's backend interface are made.
SLOW = {"conformance.md"}
WITH_VENDORS = {"needs onnxruntime-genai", "needs onnxruntime-qnn"}
"""Reasons of blocks that `tests/campaigns/vendors/test_pages_with_vendors.py` runs."""
NOT_RUN = 20


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page_files")
    write_page_files(folder)
    return folder


def run_in_process(page, written, tmp_path, *marked):
    """Run a page in a copy of the folder `written`; the marked blocks of one reason."""
    folder = tmp_path / "page"
    shutil.copytree(written, folder)
    scripts = Path(sys.executable).parent
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EPCTX_")}

    return subprocess.run(
        [sys.executable, Path(__file__).with_name("run_page.py"), page, *marked],
        cwd=folder,
        env={
            **kept,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{folder}{os.pathsep}{os.pathsep.join(map(str, IMPORTED))}",
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.stress] if page in SLOW else [])
        for page in FILES
        if page not in RUN_BY_THEIR_OWN_TESTS and read_blocks(page)
    ],
)
def test_a_page_runs_as_it_is_pasted_and_prints_what_it_shows(page, written, tmp_path):
    done = run_in_process(page, written, tmp_path)

    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr


def test_the_python_of_serving_takes_a_network_with_an_input_of_another_shape(
    written, tmp_path
):
    pages = shutil.copytree(written, tmp_path / "written")
    network = ROOT / "examples/network.py"
    subprocess.run([sys.executable, network, pages / "model.onnx"], check=True)

    done = run_in_process("serving.md", pages, tmp_path)

    # Other numbers are printed, but nothing raises.
    assert "7 nodes on QNN" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    "page",
    [
        "cache.md",
        "drop-in.md",
        "errors.md",
        "shared-cache.md",
        "from-onnxruntime.md",
    ],
)
def test_a_page_that_readers_begin_with_imports_what_its_blocks_use(page):
    imported = set()
    for block in read_blocks(page):
        if block.kind != "python" or block.file:
            continue
        nodes = list(ast.walk(ast.parse(block.text)))
        imported |= {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        assert used & {"np", "epctx"} <= imported


def test_few_blocks_are_marked_as_not_run_and_each_has_a_reason():
    reasons = [
        block.reason
        for page in FILES
        for block in read_blocks(page)
        if block.reason and block.reason not in WITH_VENDORS
    ]

    assert len(reasons) <= NOT_RUN
    assert all(len(reason.split()) > 1 for reason in reasons)


def test_blocks_that_are_parts_of_an_example_are_in_it():
    page = read_blocks("encrypted-context.md")
    parts = [block for block in page if "a part of examples/" in (block.reason or "")]
    example = (ROOT / "examples/encrypted_context.py").read_text("utf-8")
    lines = {line.strip() for line in example.splitlines()}

    assert len(parts) == 4
    for block in parts:
        for line in block.text.splitlines():
            assert line.strip() in lines


def test_the_get_capability_of_the_page_of_graphs_takes_an_if_whole():
    (text,) = [each for each in snippets("graph-objects.md") if "parent_node" in each]
    names = {}
    exec(snippets("hooks.md")[0] + text, names)  # noqa: S102 - the pages' own code
    registry = epctx.Registry()
    whole = type(
        "Whole", (names["AcmeProvider"],), {"get_capability": names["get_capability"]}
    )
    registry.register(whole)
    options = epctx.SessionOptions()
    options.add_provider(whole.name)
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[2] x, bool c) => (float[2] y)'
        "{ a = Relu (x) y = If (c) <then_branch = t () => (float[2] p) { p = Relu (a) }"
        ", else_branch = e () => (float[2] q) { q = Neg (a) }> }"
    )

    explanation = epctx.explain_model(
        model.SerializeToString(),
        options,
        registry=registry,
        purpose=Purpose.RUN,
    )

    assert [(node.operator, node.ep) for node in explanation.nodes] == [
        ("Relu", whole.name),
        ("If", whole.name),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "difference"),
    [
        ("a\nb", "a\nb\n", ""),
        ("a  1.5 KiB", "a 2.7 KiB", ""),
        ("…\nb", "a\na\nb", ""),
        ("a … c", "a b c", ""),
        ("a\nc", "a\nb\nc", "c"),
        ("a", "a\nb", "nothing after this, but there is: b"),
        ("3 nodes", "4 nodes", "3 nodes"),
        ("a\n…\nd", "a\nb\nc", "d"),
    ],
)
def test_what_a_page_shows_is_compared_line_by_line(shown, printed, difference):
    assert differs(shown, printed) == difference
