"""Plugins that are used from a path: a folder, a project, a wheel; nothing is
installed.
"""

from __future__ import annotations

import gc
import os
import sys
import zipfile
from pathlib import Path

import importlib_metadata
import pytest
from support.packages import PROVIDER

from epctx_core import PluginState, Registry
from epctx_core.errors import InvalidArgument, NoSuchFile, PluginError

# The library imports its reader of archives with the first one, here before the tests
# take it off sys.path.
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
        f"epctx_acme-{version}.dist-info/METADATA": "Metadata-Version: 2.1\nName: epctx-acme\nVersion: "
        f"{version}\n",
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


@pytest.mark.parametrize("form", [target_folder, wheel])
def test_a_plugin_is_used_from_a_path(packages, tmp_path, form):
    place = form(tmp_path / "elsewhere")
    registry = Registry(entry_points=False)

    (record,) = registry.add_path(place)

    assert (record.distribution, record.version) == ("epctx-acme", "1.0")
    assert (record.state, record.sources) == (PluginState.DISCOVERED, (NAME, "Acme"))
    assert "epctx_acme" not in sys.modules
    cls = registry.load(registry.resolve("epctx-acme:Acme"))
    assert cls.name == NAME
    assert sys.modules["epctx_acme"].__file__.startswith(str(place))
    assert registry.route("Acme").state is PluginState.LOADED


def test_a_path_is_known_once_however_often_and_however_it_is_given(
    packages, tmp_path, monkeypatch
):
    target_folder(tmp_path / "acme")
    monkeypatch.chdir(tmp_path)
    registry = Registry()

    registry.add_path("acme")
    registry.add_path(tmp_path / "x" / ".." / "acme")

    assert [record.name for record in registry.records()] == [NAME]
    assert sys.path.count(str(tmp_path / "acme")) == 1


def test_a_path_that_python_searches_anyway_needs_no_call(packages, tmp_path):
    sys.path.append(str(wheel(tmp_path / "w")))

    assert Registry().load(Registry().resolve("Acme")).name == NAME


def test_nothing_at_the_path_is_no_such_file(packages, tmp_path):
    with pytest.raises(NoSuchFile, match="does not exist") as caught:
        Registry().add_path(tmp_path / "gone.whl")

    assert caught.value.path == str(tmp_path / "gone.whl")


def test_a_link_to_a_folder_that_python_searches_gives_its_plugin_once(
    packages, tmp_path
):
    folder = target_folder(tmp_path / "acme")
    sys.path.append(str(folder))
    link = tmp_path / "link"
    link.symlink_to(folder)

    (record,) = Registry().add_path(link)

    assert record.name == NAME


@pytest.mark.parametrize("path", [None, 7, object()])
def test_what_is_no_path_is_an_invalid_argument(packages, path):
    with pytest.raises(
        InvalidArgument, match="expected the path of a folder or a wheel"
    ):
        Registry().add_path(path)


def test_a_text_that_can_be_no_path_is_no_such_file(packages):
    with pytest.raises(NoSuchFile):
        Registry().add_path("a\0b")


def test_a_link_that_is_set_to_another_version_is_followed_by_a_refresh(
    packages, tmp_path
):
    link = tmp_path / "current"
    link.symlink_to(target_folder(tmp_path / "v1", version="1.0"))
    registry = Registry()
    registry.add_path(link)
    link.unlink()
    link.symlink_to(target_folder(tmp_path / "v2", version="2.0"))

    registry.refresh()

    (record,) = registry.records()
    assert record.version == "2.0"
    assert registry.load(record).name == NAME
    assert sys.modules["epctx_acme"].__file__.startswith(str(link))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"text"),
        ("a-1.0-py3-none-any.whl", b"no archive"),
        ("a/readme.txt", b""),
    ],
)
def test_a_path_without_a_plugin_is_refused_with_what_would_be_accepted(
    packages, tmp_path, name, content
):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    registry = Registry()

    with pytest.raises(
        InvalidArgument, match="provides no Execution Provider"
    ) as caught:
        registry.add_path(path if path.parent == tmp_path else path.parent)

    assert "pip install --target" in caught.value.hint
    assert registry.records() == []


def test_what_is_installed_goes_before_what_lies_at_a_path(packages, tmp_path):
    packages.write_module("epctx_acme", PROVIDER.format(name=NAME, body=""))
    entries = f"[epctx.execution_providers]\n{NAME} = epctx_acme:Provider\n"
    packages.write_metadata("Epctx.Acme", entries, version="0.9")
    registry = Registry()

    (record,) = registry.add_path(target_folder(tmp_path / "acme"))

    assert (record.version, record.state) == ("0.9", PluginState.DISCOVERED)
    assert registry.records() == [record]
    assert registry.load(record).__module__ == "epctx_acme"


def test_another_distribution_with_the_ep_type_is_a_duplicate_and_both_can_be_chosen(
    packages, tmp_path
):
    packages.install("epctx-other", NAME)
    registry = Registry()
    registry.add_path(target_folder(tmp_path / "acme"))

    with pytest.raises(
        PluginError, match=r"ambiguous: epctx-acme 1\.0 and epctx-other 1\.0"
    ):
        registry.resolve("Acme")

    assert (
        registry.load(registry.resolve("epctx-acme:Acme")).__module__.partition(".")[0]
        == "epctx_acme"
    )
    assert (
        registry.load(registry.resolve("epctx-other:Acme")).__module__ == "epctx_other"
    )


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
    assert gone == {NAME: "removed"}
    assert record.state is PluginState.RESTART_NEEDED
    assert "epctx-acme 2.0" in record.reason
    assert registry.load(record) is cls


def test_the_environment_keeps_plugins_of_a_path_out_as_it_does_installed_ones(
    packages, tmp_path, monkeypatch
):
    monkeypatch.setenv("EPCTX_DISABLE_PLUGINS", "epctx-acme")

    (record,) = Registry().add_path(target_folder(tmp_path / "acme"))

    assert record.state is PluginState.DISABLED


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux lists what is open"
)
def test_a_wheel_that_was_read_is_closed_at_once(packages, tmp_path):
    path = wheel(tmp_path)
    gc.disable()
    try:
        Registry(entry_points=False).add_path(path)
        descriptors = Path("/proc/self/fd").iterdir()
        opened = {os.path.realpath(each) for each in descriptors}
    finally:
        gc.enable()

    assert str(path) not in opened
