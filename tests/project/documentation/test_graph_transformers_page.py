"""graph-transformers.md: its plugin does what the page says, given as an object
and installed.
"""

from __future__ import annotations

import shlex
import shutil
import sys

import numpy as np
import pytest
from documentation.blocks import blocks, commands, files, install, snippets
from support.command_line import main

import epctx_core as epctx

PAGE = "graph-transformers.md"


@pytest.fixture
def folder(tmp_path, network, monkeypatch):
    """A folder with the files of the page, its package installed, and the network."""
    bert = network("bert")
    shutil.copyfile(bert.path, tmp_path / "bert.onnx")
    install(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path, bert
    sys.modules.pop("without_isnan", None)


def test_every_block_of_the_page_is_run_here():
    assert {block["kind"] for block in blocks(PAGE)} == {"console", "python", "toml"}
    assert set(files(PAGE)) == {"without_isnan.py", "pyproject.toml"}


def test_the_page_s_plugin_makes_one_partition_of_five_and_the_same_results(
    folder, capsys
):
    folder, bert = folder
    options = epctx.SessionOptions()
    options.add_provider("OpenVINO")
    assert (
        len(epctx.ModelCompiler(options, "bert.onnx").compile_to_file().partitions) == 5
    )
    names = {}

    for text in snippets(PAGE):
        exec(text, names)  # noqa: S102 - the page's own code

    assert capsys.readouterr().out == "1 partition\n"
    with epctx.InferenceSession(folder / "bert_ctx.onnx") as session:
        for found, expected in zip(
            session.run(None, bert.inputs), bert.reference, strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("folder")
def test_the_installed_plugin_is_used_by_name_on_the_command_line_and_listed(
    capsys,
):
    assert [shlex.split(command)[1] for command in commands(PAGE)] == [
        "compile",
        "explain",
    ]
    for command in commands(PAGE):
        assert main(shlex.split(command)[1:]) == 0, "nothing is left to the CPU EP"
    capsys.readouterr()

    assert main(["plugins", "list"]) == 0
    assert "acme-transformations" in capsys.readouterr().out
