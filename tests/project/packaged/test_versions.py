"""All first-party packages have one version, and those that belong together ask for
exactly that.
"""

from __future__ import annotations

import ast
import tomllib

import pytest
from packaged.distributions import CORE, FOLDERS
from packaging.requirements import Requirement

from epctx_core import __version__

PROJECTS = {
    name: tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    for name, folder in FOLDERS.items()
}
PLUGINS = sorted(set(FOLDERS) - {CORE})


def extras(name):
    return PROJECTS[name].get("optional-dependencies", {})


def needs_of_own(name):
    """Return what a package and its extras need of epctx's own packages."""
    texts = [
        *PROJECTS[name]["dependencies"],
        *(text for found in extras(name).values() for text in found),
    ]
    return [need for need in map(Requirement, texts) if need.name in FOLDERS]


@pytest.mark.parametrize("name", PLUGINS)
def test_a_package_has_the_cores_version(name):
    assert PROJECTS[name]["version"] == __version__


@pytest.mark.parametrize("name", PLUGINS)
def test_a_package_that_says_its_version_says_that(name):
    (package,) = (FOLDERS[name] / "src").glob("*epctx*")

    said = [
        node.value.value
        for node in ast.parse((package / "__init__.py").read_bytes()).body
        if isinstance(node, ast.Assign)
        and [ast.unparse(target) for target in node.targets] == ["__version__"]
    ]

    assert set(said) <= {__version__}


def pythons(name):
    return {
        text
        for text in PROJECTS[name]["classifiers"]
        if text.startswith("Programming Language :: Python :: 3.")
    }


@pytest.mark.parametrize("name", PLUGINS)
def test_a_package_runs_on_the_cores_versions_of_python(name):
    assert PROJECTS[name]["requires-python"] == PROJECTS[CORE]["requires-python"]
    assert pythons(name) == pythons(CORE)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_package_says_where_it_belongs(name):
    assert PROJECTS[name]["urls"] == PROJECTS[CORE]["urls"]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_package_asks_for_packages_that_are_here_in_this_version(name):
    for need in needs_of_own(name):
        assert need.name in FOLDERS
        assert need.specifier.contains(__version__), str(need)
        assert all(
            one.version == __version__ for one in need.specifier if one.operator == "=="
        )


def test_the_cores_extras_ask_for_exactly_this_version():
    asked = [need for need in needs_of_own(CORE) if need.name != CORE]

    assert {str(need.specifier) for need in asked} == {f"=={__version__}"}


@pytest.mark.parametrize(("extra", "brings"), [("all", True), ("tools", False)])
def test_two_extras_bring_every_package_and_one_of_them_onnxruntime(extra, brings):
    asked = set()
    ahead = [Requirement(f"{CORE}[{extra}]")]
    while ahead:
        need = ahead.pop()
        asked.add(need.name)
        if need.name in FOLDERS:
            texts = [*PROJECTS[need.name]["dependencies"]]
            texts += [t for each in need.extras for t in extras(need.name)[each]]
            ahead += map(Requirement, texts)

    # An EP of a vendor goes before the simulated one of its name.
    assert asked >= set(PLUGINS) - {"epctx-openvino"}
    assert "epctx-openvino" not in asked
    assert ("onnxruntime" in asked) is brings


def test_no_build_of_onnxruntime_is_required_without_an_extra():
    for project in PROJECTS.values():
        assert not [n for n in project["dependencies"] if n.startswith("onnxruntime")]
