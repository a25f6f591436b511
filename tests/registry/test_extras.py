"""Entry points with extras: an EP over a vendor's wheel is there as soon as that wheel
is.
"""

from __future__ import annotations

import pytest

import epctx_core as epctx
from epctx_core import PluginState, Registry

ENTRY_POINTS = """
[epctx.execution_providers]
Plain = epctx_a:Plain
Acme = epctx_a:Acme [acme-npu]
[epctx.ep_sources]
ACME = epctx_a:Acme
"""
ACME = ("Provides-Extra: acme-npu", 'Requires-Dist: acme_npu>=2.7; extra == "acme-npu"')


def install(packages, *fields, entry_points=ENTRY_POINTS):
    head = ["Metadata-Version: 2.1", "Name: epctx-a", "Version: 1.0"]
    packages.write_metadata(
        "epctx-a", entry_points, metadata="\n".join([*head, *fields, ""])
    )
    packages.write_module("epctx_a", "")


def install_library(packages, name, version="1.0"):
    packages.write_metadata(name, "", version=version)


def found(registry=None):
    return {
        record.name: record.state.value for record in (registry or Registry()).records()
    }


def test_an_ep_whose_extra_names_a_distribution_that_is_not_installed_has_no_record(
    packages,
):
    install(packages, *ACME)

    registry = Registry()

    assert found(registry) == {"Plain": "discovered"}
    assert registry.available() == ["Plain", "CPUExecutionProvider"]
    assert registry.route("ACME") is None


@pytest.mark.parametrize("name", ["acme-npu", "Acme.NPU", "ACME__npu"])
def test_it_has_one_beside_that_distribution_however_its_name_is_spelt(packages, name):
    install(packages, *ACME)
    install_library(packages, name, version="0.1")

    registry = Registry()

    assert found(registry) == {"Acme": "discovered", "Plain": "discovered"}
    assert registry.resolve("Acme").sources == ("Acme", "ACME")
    assert registry.resolve("Acme").entry_point == "epctx_a:Acme"


def test_a_refresh_sees_it_come_and_go(packages):
    install(packages, *ACME)
    registry = Registry()
    before = found(registry)
    install_library(packages, "acme-npu")

    epctx.refresh_plugins(registry=registry)

    assert found(registry) == {**before, "Acme": "discovered"}
    packages.uninstall("acme-npu")
    epctx.refresh_plugins(registry=registry)
    gone = next(record for record in registry.records() if record.name == "Acme")
    assert gone.state is PluginState.REMOVED
    assert "does not provide it" in gone.reason


def test_all_extras_that_an_entry_point_names_count(packages):
    install(
        packages,
        *ACME,
        entry_points=(
            "[epctx.execution_providers]\n"
            "Acme = epctx_a:Acme [acme-npu, Acme_Threads]\n"
        ),
    )
    install_library(packages, "acme-npu")
    before = found()

    install_library(packages, "acme-threads")

    assert (before, found()) == ({}, {"Acme": "discovered"})


@pytest.mark.parametrize("beside", [True, False])
def test_a_distribution_found_at_a_path_needs_one_that_lies_there_or_is_installed(
    packages, tmp_path, beside
):
    place = type(packages)(tmp_path / "place")
    install(place, *ACME)
    install_library(place if beside else packages, "acme-npu")

    records = epctx.add_plugin_path(place.folder, registry=Registry())

    assert {record.name for record in records} == {"Acme", "Plain"}
