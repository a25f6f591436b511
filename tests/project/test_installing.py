"""Hints that say how to install a package: from an index, or from where epctx-core is from."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from pathlib import Path

import importlib_metadata  # noqa: F401 - `core_from` takes the folder that it is in away
import pytest
from support.folders import ROOT

from epctx_core import installing
from epctx_core.ext import install_command

pytestmark = pytest.mark.internal


@pytest.fixture
def core_from(tmp_path, monkeypatch):
    """Let epctx-core be installed from a URL, where no other package of epctx is."""

    def install(url: str | None) -> None:
        info = tmp_path / "site" / "epctx_core-0.1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Name: epctx-core\nVersion: 0.1.0\n")
        if url is not None:
            (info / "direct_url.json").write_text(json.dumps({"url": url}))
        library = [path for path in sys.path if "-packages" not in path]
        monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *library])

    return install


def make_projects(folder: Path, *names: str) -> Path:
    for name in names:
        project = folder / "plugins" / name.partition("[")[0]
        project.mkdir(parents=True)
        (project / "pyproject.toml").touch()
    return folder


@pytest.mark.parametrize(
    "url",
    [None, "https://example.com/epctx_core-0.1.0.whl", "file:///no/such/folder", ""],
)
@pytest.mark.parametrize(
    ("requirement", "command"),
    [
        ("epctx-cache", "pip install epctx-cache"),
        ("epctx-core[ort]", "pip install 'epctx-core[ort]'"),
        ("onnx>=1.23", "pip install 'onnx>=1.23'"),
    ],
)
def test_a_package_comes_from_the_index_where_the_core_is_from_no_folder(
    core_from, url, requirement, command
):
    core_from(url)

    assert install_command(requirement) == command


@pytest.mark.parametrize(
    ("requirement", "projects"),
    [
        ("epctx-cache", ["epctx-cache"]),
        (
            "epctx-core[ort]",
            [
                "epctx-blobs",
                "epctx-kernels",
                "epctx-native-formats",
                "epctx-onnxruntime[cpu]",
            ],
        ),
        ("epctx-core[cli]", ["epctx-isolation", "epctx-conformance", "epctx-cli"]),
        ("epctx-cli==0.1.0", ["epctx-isolation", "epctx-conformance", "epctx-cli"]),
    ],
)
def test_a_package_comes_from_the_repository_with_those_that_it_needs(
    core_from, tmp_path, requirement, projects
):
    repository = make_projects(tmp_path / "a_clone", *projects)
    core_from(repository.as_uri())

    paths = shlex.join(f"{repository}/plugins/{project}" for project in projects)
    assert install_command(requirement) == f"pip install {paths}"


def test_extras_and_a_path_with_a_space_are_quoted(core_from, tmp_path):
    repository = make_projects(
        tmp_path / "a clone",
        "epctx-blobs",
        "epctx-kernels",
        "epctx-native-formats",
        "epctx-isolation",
        "epctx-onnxruntime",
    )
    core_from(repository.as_uri())

    assert install_command("epctx-onnxruntime[qnn]") == (
        f"pip install '{repository}/plugins/epctx-blobs' "
        f"'{repository}/plugins/epctx-kernels' "
        f"'{repository}/plugins/epctx-native-formats' "
        f"'{repository}/plugins/epctx-isolation' "
        f"'{repository}/plugins/epctx-onnxruntime[qnn]'"
    )


def test_a_folder_without_plugins_is_named_with_the_extra(core_from, tmp_path):
    core_from(tmp_path.as_uri())

    assert install_command("epctx-core[ort]") == f"pip install '{tmp_path}[ort]'"
    assert install_command("epctx-cache") == "pip install epctx-cache"


def test_a_wheel_names_its_folder_for_the_others(core_from, tmp_path):
    wheel = tmp_path / "epctx_core-0.1.0-py3-none-any.whl"
    wheel.touch()
    core_from(wheel.as_uri())

    assert install_command("epctx-core[ort]", "epctx-cache", pip="python -m pip") == (
        f"python -m pip install --find-links {tmp_path} 'epctx-core[ort]' epctx-cache"
    )


@pytest.mark.parametrize("requirement", ["numpy", "acme-npu>=2", "epctx-core>=9"])
def test_what_is_not_in_the_repository_comes_from_the_index(
    core_from, tmp_path, requirement
):
    core_from(make_projects(tmp_path, "numpy").as_uri())

    assert install_command(requirement).replace("'", "") == f"pip install {requirement}"


def test_the_table_of_packages_is_that_of_the_repository():
    found = {}
    for path in ROOT.glob("plugins/*/pyproject.toml"):
        project = tomllib.loads(path.read_text("utf-8"))["project"]
        found[project["name"]] = {
            match[0]
            for need in project["dependencies"]
            if (match := re.match(r"epctx-[\w-]+", need))
        } - {"epctx-core"}

    for name, needs in found.items():
        assert set(installing.PACKAGES[name]) >= needs
    assert {name for name in installing.PACKAGES if "[" not in name} == set(found)


@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("stray.txt", "epctx-core[ort]"),
        ("__init__.py", "epctx-onnxruntime"),
        (None, "epctx-core[ort]"),
    ],
    ids=["folder left behind", "build", "nothing"],
)
def test_the_engine_is_installed_over_the_build_of_onnxruntime_that_is_there(
    core_from, tmp_path, monkeypatch, file, package
):
    core_from(None)
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    if file is not None:
        (tmp_path / "site" / "onnxruntime").mkdir()
        (tmp_path / "site" / "onnxruntime" / file).touch()

    command = shlex.split(installing.install_engine_command())

    assert command[2:] == [package]
