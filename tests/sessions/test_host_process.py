"""A library is a guest: what belongs to the host's process is afterwards as it was
before.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sessions import everything
from support.small_models import chain, saved

import epctx_core

CORE = Path(epctx_core.__file__).parent
SOURCES = sorted([*CORE.rglob("*.py"), *CORE.parent.glob("plugins/*/src/**/*.py")])


def acted(act, folder):
    """Return what a program printed that did something with epctx, and what it wrote
    besides.
    """
    (folder / "host").mkdir()
    (folder / "out").mkdir()
    model = saved(chain(["Relu", "Add", "Sigmoid", "Add"]), folder / "m.onnx")
    tests = str(Path(__file__).parents[1])
    return subprocess.run(
        [sys.executable, everything.__file__, act, str(model), str(folder / "out")],
        capture_output=True,
        text=True,
        cwd=folder / "host",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])},
        timeout=300,
        check=True,
    )


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    return acted("use", tmp_path_factory.mktemp("used"))


@pytest.fixture(scope="module")
def misbehaved(tmp_path_factory):
    return json.loads(acted("misbehave", tmp_path_factory.mktemp("misbehaved")).stdout)


def test_epctx_leaves_its_hosts_process_as_it_was(used):
    assert json.loads(used.stdout)["changed"] == []


def test_a_change_of_the_hosts_process_is_noticed(misbehaved):
    assert {*misbehaved["changed"]} == {*everything.state()}


def test_epctx_prints_nothing_but_warnings_by_pythons_logging(used):
    lines = used.stderr.splitlines()

    assert used.stdout.count("\n") == 0  # the JSON alone
    skipped = [line for line in lines if "the optional EP Nowhere is skipped" in line]
    assert len(skipped) == 3  # one EP a compile was optional and is not there
    assert all("nothing was compiled" in line for line in lines if line not in skipped)


def test_epctx_logs_under_its_own_name_only(used):
    foreign = {"concurrent", "concurrent.futures"}  # Python's own, for the thread pools
    names = set(json.loads(used.stdout)["loggers"]) - foreign

    assert [name for name in names if name.partition(".")[0] != "epctx"] == []
    assert "epctx.providers" in names


def calls(tree, name):
    """Return the first argument of each call of `….name(…)`."""
    return [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
    ]


def test_every_logger_is_a_child_of_epctx():
    texts = {
        path.relative_to(CORE.parent).as_posix(): path.read_text("utf-8")
        for path in SOURCES
    }
    texts["foreign"] = "import logging\n_log = logging.getLogger(__name__)"

    names = {
        (path, ast.unparse(argument))
        for path, text in texts.items()
        if "getLogger" in text
        for argument in calls(ast.parse(text), "getLogger")
    }

    assert len(names) > 20
    assert {
        (path, name)
        for path, name in names
        if not name.lstrip("f")[1:].startswith("epctx")
    } == {("foreign", "__name__")}
