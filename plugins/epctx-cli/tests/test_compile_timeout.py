"""`--timeout` of `epctx compile` and `epctx share`."""

from __future__ import annotations

import pytest
from support.share_models import write_model
from support.sim_eps import QNN

CODE = """
import time
from epctx_core.plugin import ExecutionProvider, hookimpl, supported_partitions

class Provider(ExecutionProvider):
    name = "AcmeExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: True)

    @hookimpl
    def compile(self, partitions):
        self.context.progress("tune", 3, 10)
        time.sleep(600)

    @hookimpl
    def get_ep_context_nodes(self, writer):
        return []

    @hookimpl
    def load_context(self, nodes, reader):
        return []
"""
PLUGIN_BROKEN, USAGE = 3, 2


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def acme(site):
    """Folder of a package whose EP never ends a compile."""
    return site("epctx-acme", "AcmeExecutionProvider", code=CODE)


@pytest.fixture
def models(tmp_path):
    """Two models in a folder of their own."""
    folder = tmp_path / "models"
    folder.mkdir()
    return [
        write_model(QNN, folder / f"{name}.onnx", rows)
        for name, rows in (("a", 1), ("b", 4))
    ]


@pytest.mark.parametrize("command", ["compile", "share"])
def test_a_compile_that_takes_too_long_ends_in_one_readable_block(
    process, acme, models, command
):
    folder = models[0].parent
    before = contents(folder)
    sources = models if command == "share" else models[:1]

    said = process(command, *sources, "--ep", "Acme", "--timeout", "1", path=[acme])

    assert said.code == PLUGIN_BROKEN
    assert said.out == ""
    assert (
        "AcmeExecutionProvider (epctx-acme 1.0) timed out in compile: its compile of "
        "'a' was not done within 1 second (ep.compile_timeout). It was compiling "
        "'AcmeExecutionProvider_"
    ) in said.err
    assert "The last progress that it reported was 'tune', 3 of 10, " in said.err
    assert "Set ep.compile_timeout (--timeout) higher" in said.err
    assert "Traceback" not in said.err
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["compile", "share"])
def test_a_compile_that_is_fast_enough_writes_the_same_files(
    epctx, models, tmp_path, command
):
    limited, plain = tmp_path / "limited", tmp_path / "plain"
    for folder in (limited, plain):
        folder.mkdir()
    sources = models if command == "share" else models[:1]

    said = epctx(command, *sources, "--ep", "QNN", "-o", limited, "--timeout", "60")

    epctx(command, *sources, "--ep", "QNN", "-o", plain)
    assert said.code == 0
    assert len(contents(limited)) == len(sources) + 1
    assert contents(limited) == contents(plain)


def test_a_limit_goes_with_a_check(epctx, models):
    said = epctx("compile", models[0], "--ep", "QNN", "--timeout", "60", "--check")

    assert said.code == 0


@pytest.mark.parametrize("value", ["0", "1.5", "soon"])
def test_a_limit_is_a_whole_number_of_seconds(epctx, models, value):
    said = epctx("compile", models[0], "--ep", "QNN", "--timeout", value)

    assert said.code == USAGE
    assert f"'ep.compile_timeout' has the value {value!r}" in said.err
    assert "a whole number of seconds from 1 to 999999" in said.err
