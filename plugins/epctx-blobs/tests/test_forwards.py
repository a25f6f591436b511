"""The container's names in `epctx_core.plugin`, with the package and without it."""

from __future__ import annotations

import subprocess
import sys

import epctx_blobs
import pytest
from support.install_commands import pip_install
from support.installed import install_distribution
from support.small_models import chain

import epctx_core as epctx
from epctx_core import plugin
from epctx_core.errors import PackageMissing

NAMES = ("Blobs", "write_blobs")
EP = """
from epctx_core.plugin import Blobs, ExecutionProvider

class AcmeProvider(ExecutionProvider):
    name = "AcmeExecutionProvider"
"""
PROGRAM = """
from epctx_core.plugin import Blobs, Payload, write_blobs

def write(payload: Payload) -> None:
    write_blobs(payload, {"a": b"first"}, kind="ACME0001")

def read(blobs: Blobs) -> memoryview:
    return blobs["a"]

reveal_type(write_blobs)
"""


@pytest.fixture
def absent(monkeypatch):
    """Let Python find no package of this name."""
    for name in NAMES:
        monkeypatch.delitem(vars(plugin), name, raising=False)
    monkeypatch.setitem(sys.modules, "epctx_blobs", None)


def test_the_contract_has_the_container_of_the_package():
    assert plugin.Blobs is epctx_blobs.Blobs
    assert plugin.write_blobs is epctx_blobs.write_blobs


@pytest.mark.parametrize("name", NAMES)
def test_without_the_package_its_names_say_what_to_install(absent, name):
    with pytest.raises(
        PackageMissing, match=f"plugin.{name} needs the package epctx-blobs"
    ) as caught:
        getattr(plugin, name)

    assert caught.value.hint == pip_install("epctx-blobs")


def test_without_the_package_all_other_names_are_there(absent):
    found = {}

    exec("from epctx_core.plugin import *", found)  # noqa: S102 - no function may have such an import

    assert set(found) - {"__builtins__"} == set(plugin.__all__)
    assert {"ExecutionProvider", "Payload"} <= set(plugin.__all__) <= set(dir(plugin))
    assert set(NAMES).isdisjoint(dir(plugin))


def test_an_ep_that_lacks_the_package_names_it(absent, tmp_path):
    (tmp_path / "acme_without_blobs.py").write_text(EP)
    entry = {"AcmeExecutionProvider": "acme_without_blobs:AcmeProvider"}
    install_distribution(tmp_path, "acme-npu", {"epctx.execution_providers": entry})
    registry = epctx.Registry(entry_points=False)
    epctx.add_plugin_path(tmp_path, registry=registry)
    options = epctx.SessionOptions()
    options.add_provider("Acme")

    with pytest.raises(epctx.PluginError) as caught:
        epctx.InferenceSession(
            chain(("Relu",)).SerializeToString(), options, registry=registry
        )

    assert pip_install("epctx-blobs") in str(caught.value)


def test_mypy_knows_the_types_of_the_forwards(tmp_path):
    (tmp_path / "acme.py").write_text(PROGRAM)

    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", "acme.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout
    assert "facts: " in checked.stdout
    assert "Payload" in checked.stdout
