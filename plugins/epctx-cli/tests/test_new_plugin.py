"""What `epctx plugins new` writes, as text.

That it works is shown in test_installed_plugin.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.command_line import main


@dataclass(frozen=True)
class Written:
    """What the command says of a package that it wrote."""

    folder: Path
    files: list[str]


@pytest.fixture
def create_plugin(capsys):
    """Call `epctx plugins new` in this process; a refusal is a RuntimeError with what
    it said.
    """

    def create(word, folder):
        capsys.readouterr()
        code = main(["plugins", "new", word, "-o", str(folder), "--json"])
        captured = capsys.readouterr()
        if code:
            raise RuntimeError(code, captured.err)
        said = json.loads(captured.out)
        return Written(Path(said["folder"]), said["files"])

    return create


def written(plugin):
    return {name: (plugin.folder / name).read_text() for name in plugin.files}


def test_a_complete_package_is_written(create_plugin, tmp_path):
    plugin = create_plugin("acme", tmp_path)

    assert plugin.folder == tmp_path / "epctx-acme"
    assert plugin.files == [
        ".github/workflows/test.yml",
        ".gitignore",
        "LICENSE",
        "README.md",
        "ci/test",
        "pyproject.toml",
        "src/epctx_acme/__init__.py",
        "src/epctx_acme/programs.py",
        "src/epctx_acme/provider.py",
        "src/epctx_acme/py.typed",
        "tests/test_conformance.py",
        "tests/test_provider.py",
    ]
    assert os.access(plugin.folder / "ci" / "test", os.X_OK)


def test_nothing_of_the_template_is_left_in_it(create_plugin, tmp_path):
    texts = written(create_plugin("zebra-npu", tmp_path))

    assert not [
        name
        for name, text in texts.items()
        if re.search(r"%%|__module__|acme", text + name, re.IGNORECASE)
    ]


def test_its_entry_point_and_pins_are_those_of_its_names_and_of_this_core(
    create_plugin, tmp_path
):
    plugin = create_plugin("zebra-npu", tmp_path)

    project = tomllib.loads((plugin.folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "epctx-zebra-npu"
    assert project["dependencies"] == [
        "epctx-core>=0.1,<0.2",
        "epctx-blobs>=0.1,<0.2",
        "onnx",
    ]
    assert project["entry-points"] == {
        "epctx.execution_providers": {
            "ZebraNpuExecutionProvider": "epctx_zebra_npu:ZebraNpuProvider"
        },
        "epctx.simulated": {"ZebraNpuExecutionProvider": "true"},
    }


def test_its_ep_has_fewer_than_sixty_lines(create_plugin, tmp_path):
    plugin = create_plugin("acme", tmp_path)

    assert (
        len((plugin.folder / "src/epctx_acme/provider.py").read_text().splitlines())
        < 60
    )


@pytest.fixture(scope="module")
def types(tmp_path_factory):
    """Folder in which the type checker keeps what it knows of onnx, numpy and epctx."""
    return tmp_path_factory.mktemp("types")


def test_its_code_passes_the_linter_the_formatter_and_the_type_checker(
    create_plugin, tmp_path, types
):
    folder = create_plugin("acme", tmp_path).folder

    def clean(*command):
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.returncode == 0 or done.stdout + done.stderr

    ruff = [sys.executable, "-m", "ruff"]
    rules = [
        "--select=ALL",
        "--ignore=COM812,D,INP001,S101,PLR2004,ANN,EM,TRY003,TC003,CPY001",
    ]
    assert (
        clean(
            *ruff,
            "check",
            "--isolated",
            "--line-length=110",
            "--target-version=py311",
            *rules,
            ".",
        )
        is True
    )
    assert (
        clean(*ruff, "format", "--isolated", "--line-length=110", "--check", ".")
        is True
    )
    assert (
        clean(
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--cache-dir",
            str(types),
            "src",
        )
        is True
    )


def test_an_existing_folder_is_left_as_it_is(create_plugin, tmp_path):
    (tmp_path / "epctx-acme").mkdir()
    (tmp_path / "epctx-acme" / "mine").write_text("precious")

    with pytest.raises(RuntimeError, match=r"exists already(.|\n)*Nothing was written"):
        create_plugin("acme", tmp_path)

    assert [path.name for path in (tmp_path / "epctx-acme").iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_made_is_one_error(create_plugin, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(RuntimeError, match="cannot be written"):
        create_plugin("acme", tmp_path / "file")


def test_a_package_that_could_not_be_written_whole_is_not_there(
    create_plugin, tmp_path, monkeypatch
):
    original = Path.write_text

    def full(path, *arguments, **keywords):
        if path.name == "pyproject.toml":
            raise OSError(28, "No space left on device")
        return original(path, *arguments, **keywords)

    monkeypatch.setattr(Path, "write_text", full)

    with pytest.raises(RuntimeError, match="No space left on device"):
        create_plugin("acme", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_plugins_can_be_begun_side_by_side(create_plugin, tmp_path):
    create_plugin("one", tmp_path)
    create_plugin("two", tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "epctx-one",
        "epctx-two",
    ]
