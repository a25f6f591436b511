"""Entry points `epctx.ep_finders`: EPs of packages that know nothing of epctx."""

from __future__ import annotations

import sys

import pytest
from support.packages import PROVIDER

import epctx_core as epctx
from epctx_core import PluginState, Registry

FOUND = ("acme-npu", "2.0", "AcmeExecutionProvider", "acme_bridge_eps:Provider", "")


def install_finder(packages, code):
    packages.write_metadata(
        "acme-bridge", "[epctx.ep_finders]\nacme-* = acme_bridge:find\n"
    )
    packages.write_module("acme_bridge", code)
    packages.write_module(
        "acme_bridge_eps", PROVIDER.format(name="AcmeExecutionProvider", body="")
    )


@pytest.fixture
def finder(packages):
    install_finder(packages, f"def find(folders):\n    yield {FOUND!r}\n")
    return packages


def test_what_a_finder_names_is_a_record_of_that_package_and_is_not_imported(finder):
    (record,) = Registry().records()

    assert (record.name, record.origin, record.state) == (
        "AcmeExecutionProvider",
        "acme-npu 2.0",
        PluginState.DISCOVERED,
    )
    assert record.finder == record.as_dict()["finder"] == "acme-bridge:acme-*"
    assert "acme_bridge_eps" not in sys.modules


@pytest.mark.parametrize("name", ["Acme", "acme-npu:Acme"])
def test_it_is_named_loaded_and_preferred_as_an_ep_with_an_entry_point(finder, name):
    registry = Registry()

    record = registry.resolve(name)

    assert registry.load(record).name == "AcmeExecutionProvider"
    assert registry.route("AcmeExecutionProvider").distribution == "acme-npu"
    assert registry.find("Acme")[0].finder == "acme-bridge:acme-*"


def test_it_can_be_disabled_by_its_distribution(finder, monkeypatch):
    monkeypatch.setenv("EPCTX_DISABLE_PLUGINS", "acme-npu")

    (record,) = Registry().records()

    assert record.state is PluginState.DISABLED


def test_a_class_of_the_host_goes_before_it(finder):
    registry = Registry()
    found = registry.load(registry.resolve("Acme"))
    own = type("Own", (found,), {"vendor": "the host"})

    registry.register(own)

    assert registry.load(registry.resolve("Acme")) is own
    registry.unregister("AcmeExecutionProvider")
    assert registry.load(registry.resolve("Acme")) is found


def test_a_finder_gets_the_folders_to_search(packages):
    install_finder(
        packages,
        "def find(folders):\n"
        f"    assert {str(packages.folder)!r} in folders\n"
        f"    return [{FOUND!r}]\n",
    )

    (record,) = Registry().records()

    assert record.state is PluginState.DISCOVERED


def test_an_ep_that_its_finder_has_a_problem_with_is_broken_for_that_reason(packages):
    row = (*FOUND[:3], "", "its wheel is for another processor")
    install_finder(packages, f"def find(folders):\n    return [{row!r}]\n")

    with pytest.raises(epctx.PluginError, match="for another processor"):
        Registry().resolve("Acme")


@pytest.mark.parametrize(
    "code",
    [
        "def find(folders):\n    raise SystemExit('no')\n",
        "import no_such_package\n",
        "def find(folders):\n    return ['acme']\n",
        "def find(folders):\n    return 3\n",
        f"def find(folders):\n    yield {FOUND!r}\n    raise OSError('gone')\n",
    ],
)
def test_a_finder_that_fails_is_a_broken_record_and_disturbs_no_other(packages, code):
    install_finder(packages, code)
    packages.install("epctx-z", "zExecutionProvider")

    broken, other = Registry().records()

    assert (other.name, other.state) == ("zExecutionProvider", PluginState.DISCOVERED)
    assert (broken.name, broken.distribution, broken.state) == (
        "acme-bridge:acme-*",
        "acme-bridge",
        PluginState.BROKEN,
    )
    assert broken.reason.startswith("it failed to find EPs: ")


@pytest.mark.parametrize(
    ("ep", "target", "reason"),
    [
        ("CPUExecutionProvider", FOUND[3], "is built in"),
        ("Ac/me", FOUND[3], "may only have letters"),
        ("Acme", "acme_bridge_eps", "not of the form module:Class"),
    ],
)
def test_names_and_classes_of_a_finder_keep_the_rules_of_entry_points(
    packages, ep, target, reason
):
    row = (*FOUND[:2], ep, target, "")
    install_finder(packages, f"def find(folders):\n    return [{row!r}]\n")

    (record,) = Registry().records()

    assert record.state is PluginState.BROKEN
    assert reason in record.reason


def test_a_registry_without_entry_points_asks_no_finder(finder):
    assert Registry(entry_points=False).records() == []
    assert "acme_bridge" not in sys.modules
