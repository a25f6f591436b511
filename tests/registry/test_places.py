"""Plugins that are used from a path: a folder, a project, a wheel; nothing is installed."""

from __future__ import annotations

import os
import sys
import zipfile

import importlib_metadata
import pytest
from registry.packages import PROVIDER

from epctx_core import PluginState, Registry
from epctx_core.errors import InvalidArgument, NoSuchFile, PluginError

# The library imports its reader of archives with the first one, here before the tests take it off sys.path.
list(importlib_metadata.distributions(path=[__file__]))

NAME = "AcmeExecutionProvider"
ENTRY_POINTS = f"""
[epctx.execution_providers]
{NAME} = epctx_acme.ep:Provider
[epctx.ep_sources]
Acme = epctx_acme.ep:Provider
"""
CODE = {
    "epctx_acme/__init__.py": "",
    "epctx_acme/ep.py": "import acme_sdk\n"
    + PROVIDER.replace("from __future__", "#").format(name=NAME, body=""),
    "acme_sdk.py": "",
}


def metadata(version="1.0"):
    return {
        f"epctx_acme-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: epctx-acme\nVersion: {version}\n",
        f"epctx_acme-{version}.dist-info/entry_points.txt": ENTRY_POINTS,
    }


def target_folder(folder, version="1.0", code=CODE):
    """Fill a folder as `pip install --target` does."""
    for name, text in {**code, **metadata(version)}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def wheel(folder, version="1.0", code=CODE):
    """Write a wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"epctx_acme-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**code, **metadata(version)}.items():
            archive.writestr(name, text)
    return path


def project(folder, version="1.0", source="src"):
    """Write a source tree."""
    for name, text in CODE.items():
        path = folder / source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    versioned = f'version = "{version}"' if version else 'dynamic = ["version"]'
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "epctx-acme"\n{versioned}\n'
        f'[project.entry-points."epctx.execution_providers"]\n{NAME} = "epctx_acme.ep:Provider"\n'
        '[project.entry-points."epctx.ep_sources"]\nAcme = "epctx_acme.ep:Provider"\n',
        encoding="utf-8",
    )
    return folder


FORMS = {
    "folder": target_folder,
    "wheel": wheel,
    "project": project,
    "flat project": lambda folder: project(folder, source=""),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_plugin_is_used_from_a_path_and_its_record_says_which(packages, tmp_path, form):
    place = FORMS[form](tmp_path / "elsewhere")
    registry = Registry(entry_points=False)

    (record,) = registry.add_path(place)

    assert (record.distribution, record.version, record.place) == ("epctx-acme", "1.0", str(place))
    assert record.origin == f"epctx-acme 1.0 from {place}"
    assert (record.state, record.sources) == (PluginState.DISCOVERED, (NAME, "Acme"))
    assert "epctx_acme" not in sys.modules
    cls = registry.load(registry.resolve("epctx-acme:Acme"))
    assert cls.name == NAME
    assert sys.modules["epctx_acme"].__file__.startswith(str(place))
    assert registry.route("Acme").state is PluginState.LOADED


def test_a_path_is_known_once_however_often_and_however_it_is_given(packages, tmp_path, monkeypatch):
    target_folder(tmp_path / "acme")
    monkeypatch.chdir(tmp_path)
    registry = Registry()

    registry.add_path("acme")
    registry.add_path(tmp_path / "x" / ".." / "acme")

    assert [record.place for record in registry.records()] == [str(tmp_path / "acme")]


def test_the_environment_names_paths_too(packages, tmp_path, monkeypatch):
    packages.install("epctx-a", "A")
    places = [wheel(tmp_path / "w"), tmp_path / "missing"]
    monkeypatch.setenv("EPCTX_PLUGIN_PATH", os.pathsep.join(map(str, places)))
    registry = Registry()

    records = {record.name: record.state.value for record in registry.records()}

    assert records == {"A": "discovered", NAME: "discovered", str(tmp_path / "missing"): "broken"}
    assert registry.load(registry.resolve("Acme")).name == NAME
    with pytest.raises(InvalidArgument, match="missing gives is broken: there is no folder or wheel"):
        registry.resolve("Other")


def test_a_project_whose_version_is_found_out_by_its_build_has_none(packages, tmp_path):
    (record,) = Registry().add_path(project(tmp_path / "acme", version=None))

    assert (record.distribution, record.version, record.state) == (
        "epctx-acme",
        None,
        PluginState.DISCOVERED,
    )


def test_nothing_at_the_path_is_no_such_file(packages, tmp_path):
    with pytest.raises(NoSuchFile, match="no folder or wheel") as caught:
        Registry().add_path(tmp_path / "gone.whl")

    assert caught.value.path == tmp_path / "gone.whl"


@pytest.mark.parametrize("path", [None, 7, object()])
def test_what_is_no_path_is_an_invalid_argument(packages, path):
    with pytest.raises(InvalidArgument, match="named by a path, not"):
        Registry().add_path(path)


def test_a_text_that_can_be_no_path_is_no_such_file(packages):
    with pytest.raises(NoSuchFile):
        Registry().add_path("a\0b")


def test_a_link_that_is_set_to_another_version_is_followed_by_a_refresh(packages, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(target_folder(tmp_path / "v1", version="1.0"))
    registry = Registry()
    registry.add_path(link)
    link.unlink()
    link.symlink_to(target_folder(tmp_path / "v2", version="2.0"))

    registry.refresh()

    (record,) = registry.records()
    assert (record.version, record.place) == ("2.0", str(link))
    assert registry.load(record).name == NAME
    assert sys.modules["epctx_acme"].__file__.startswith(str(link))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.txt", b"text", "neither a folder nor a wheel"),
        ("a-1.0-py3-none-any.whl", b"no archive", "cannot be read"),
        ("a/readme.txt", b"", "brings no Execution Provider"),
        ("a/pyproject.toml", b"[tool.x]\n", "cannot be read as a plugin's: KeyError: 'project'"),
        ("a/pyproject.toml", b"[project\n", "cannot be read as a plugin's: TOMLDecodeError"),
        ("a/pyproject.toml", b'[project]\nname = "a"\n', "brings no Execution Provider"),
    ],
)
def test_a_path_without_a_plugin_is_refused_with_what_would_be_accepted(
    packages, tmp_path, name, content, why
):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    registry = Registry()

    with pytest.raises(InvalidArgument, match=why):
        registry.add_path(path if path.parent == tmp_path else path.parent)

    assert registry.records() == []


@pytest.mark.parametrize(
    "native", ["epctx_acme/core.cpython-311-x86_64-linux-gnu.so", "x/core.pyd", "a/libx.so.1"]
)
def test_a_wheel_with_native_modules_is_refused_with_a_way_out(packages, tmp_path, native):
    path = wheel(tmp_path / "w", code={**CODE, native: ""})

    with pytest.raises(InvalidArgument, match=f"native modules \\({native}\\)") as caught:
        Registry().add_path(path)

    assert "pip install --target FOLDER epctx_acme-1.0-py3-none-any.whl" in caught.value.hint


def test_a_path_hides_an_installed_distribution_of_the_same_name(packages, tmp_path):
    packages.install("Epctx.Acme", NAME, version="0.9")
    registry = Registry()

    registry.add_path(target_folder(tmp_path / "acme"))

    assert [(r.version, r.state) for r in registry.records()] == [("1.0", PluginState.DISCOVERED)]


def test_a_package_at_a_path_goes_before_an_installed_one_and_what_lies_beside_it_behind(packages, tmp_path):
    packages.write_module("epctx_acme", "raise ImportError('the installed one')")
    packages.write_module("acme_sdk", "installed = True")
    registry = Registry()
    registry.add_path(wheel(tmp_path / "w"))

    registry.load(registry.resolve("Acme"))

    assert sys.modules["acme_sdk"].installed


def test_a_package_that_was_imported_from_elsewhere_makes_the_plugin_broken(packages, tmp_path):
    packages.write_module("epctx_acme", "")
    import epctx_acme  # noqa: F401 - what a host did before

    registry = Registry()
    registry.add_path(target_folder(tmp_path / "acme"))

    with pytest.raises(PluginError, match=r"this process has imported epctx_acme from .*site"):
        registry.load(registry.resolve("Acme"))

    assert registry.records()[0].state is PluginState.BROKEN


def test_another_distribution_with_the_ep_type_is_a_duplicate_and_both_can_be_chosen(packages, tmp_path):
    packages.install("epctx-other", NAME)
    registry = Registry()
    registry.add_path(target_folder(tmp_path / "acme"))

    with pytest.raises(PluginError, match=r"ambiguous: epctx-acme 1\.0 from .* and epctx-other 1\.0"):
        registry.resolve("Acme")

    assert registry.load(registry.resolve("epctx-acme:Acme")).__module__ == "epctx_acme.ep"
    assert registry.load(registry.resolve("epctx-other:Acme")).__module__ == "epctx_other"


def test_a_refresh_reads_a_path_again(packages, tmp_path):
    registry = Registry()
    folder = target_folder(tmp_path / "acme")
    registry.add_path(folder)
    cls = registry.load(registry.resolve("Acme"))
    for file in (folder / "epctx_acme-1.0.dist-info").iterdir():
        file.unlink()
    (folder / "epctx_acme-1.0.dist-info").rmdir()
    registry.refresh()
    gone = {record.name: record.state.value for record in registry.records()}
    target_folder(folder, version="2.0")

    registry.refresh()

    (record,) = (r for r in registry.records() if r.name == NAME)
    assert gone == {NAME: "removed", str(folder): "broken"}
    assert record.state is PluginState.RESTART_NEEDED
    assert "epctx-acme 2.0 from" in record.reason
    assert registry.load(record) is cls


def test_the_environment_keeps_plugins_of_a_path_out_as_it_does_installed_ones(
    packages, tmp_path, monkeypatch
):
    monkeypatch.setenv("EPCTX_DISABLE_PLUGINS", "epctx-acme")

    (record,) = Registry().add_path(target_folder(tmp_path / "acme"))

    assert record.state is PluginState.DISABLED
