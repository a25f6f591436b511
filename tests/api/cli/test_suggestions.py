"""EPs that the start page and errors name as an example, or as not installed yet."""

from __future__ import annotations

import json
import os

import pytest


@pytest.fixture
def own_and_broken(site):
    """EPs that come first in the alphabet: one of a user's sources, one without its
    SDK.
    """
    folder = site("epctx-aardvark", "AardvarkExecutionProvider")
    (info,) = folder.glob("epctx_aardvark*.dist-info")
    origin = {"url": "file:///work", "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    return site("epctx-abc", "AbcExecutionProvider", code="import no_such_sdk\n")


def test_examples_name_a_vendors_ep_before_a_users_own_and_a_broken_one(
    process, own_and_broken, model
):
    start = process(path=[own_and_broken])
    error = process("compile", model("y = Relu(x)"), path=[own_and_broken])

    assert "epctx compile model.onnx --ep OpenVINO" in start.out
    assert "Aardvark" not in start.out
    assert error.code == 2
    assert "Installed: AardvarkExecutionProvider, AbcExecutionProvider" in error.err
    assert "Add --ep OpenVINO." in error.err


def test_examples_name_an_ep_that_is_not_excluded(process, own_and_broken):
    some = process(path=[own_and_broken], EPCTX_PLUGINS="epctx-aardvark,epctx-abc")
    one = process(path=[own_and_broken], EPCTX_PLUGINS="epctx-aardvark")

    assert "epctx compile model.onnx --ep Abc" in some.out
    assert "epctx compile model.onnx --ep Aardvark" in one.out


@pytest.mark.parametrize("name", ["zebra", "Zebra", "ZebraExecutionProvider"])
def test_an_ep_whose_package_is_not_installed_is_found_in_the_working_folder(
    process, name
):
    process("plugins", "new", "zebra")

    said = process("plugins", "check", name)

    assert said.code == 3
    assert said.err == (
        f"error: no installed plugin provides the Execution Provider {name!r}. "
        "Installed: OpenVINOExecutionProvider, QNNExecutionProvider, "
        "VitisAIExecutionProvider.\n  ./epctx-zebra has its package, which is not "
        "installed: pip install --editable ./epctx-zebra\n"
    )


def test_a_folder_of_another_ep_or_without_a_readable_project_is_no_answer(
    process, tmp_path
):
    process("plugins", "new", "zebra")
    (tmp_path / "epctx-zebra").rename(tmp_path / "epctx-lion")
    (tmp_path / "tiger").mkdir()
    (tmp_path / "tiger" / "pyproject.toml").write_text("[project\n")
    (tmp_path / "pyproject.toml").write_text('project = "none"\n')
    (tmp_path / "puma").mkdir()
    (tmp_path / "puma" / "pyproject.toml").write_text(
        '[project.entry-points]\n"epctx.execution_providers" = [1]\n'
    )
    (tmp_path / "lynx").mkdir()
    (tmp_path / "lynx" / "pyproject.toml").write_text(f"a = {'[' * 9999}\n")
    (tmp_path / "serval").mkdir()
    os.mkfifo(tmp_path / "serval" / "pyproject.toml")

    for name in ("lion", "tiger", "zebra", "puma", "lynx", "serval"):
        said = process("plugins", "info", name)
        assert said.code == 3
        assert "pip install --editable" not in said.err
