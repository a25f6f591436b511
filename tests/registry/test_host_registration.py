"""Classes that the host registers itself, without entry points."""

from __future__ import annotations

import pytest

from epctx_core import PluginState, Registry
from epctx_core.errors import InvalidArgument, NotFound, PluginError
from epctx_core.plugin import ExecutionProvider, hookimpl


class Mine(ExecutionProvider):
    name = "MineExecutionProvider"

    @classmethod
    def accepts_source(cls, source):
        return source.lower() == "mine"

    @hookimpl
    def get_capability(self, graph):
        return []

    @hookimpl
    def compile(self, partitions):
        return []


@pytest.fixture
def registry(packages):
    packages.install("epctx-a", "AExecutionProvider")
    registry = Registry()
    registry.register(Mine, sources=["Mine"])
    return registry


def test_a_registered_class_is_loaded_found_by_name_and_by_source(registry):
    record = registry.resolve("mine")

    assert (record.distribution, record.version, record.state) == (
        None,
        None,
        PluginState.LOADED,
    )
    assert record.sources == ("MineExecutionProvider", "Mine")
    assert registry.load(record) is Mine
    assert registry.route("Mine") == record
    assert registry.route("mINE") == record
    assert registry.route("other") is None
    assert registry.available() == [
        "AExecutionProvider",
        "MineExecutionProvider",
        "CPUExecutionProvider",
    ]


def test_a_registered_class_outlives_a_refresh(registry):
    registry.refresh()

    assert registry.load(registry.resolve("Mine")) is Mine


def test_an_unregistered_class_is_gone(registry):
    record = registry.resolve("Mine")

    registry.unregister("MineExecutionProvider")

    assert registry.route("Mine") is None
    with pytest.raises(PluginError, match="no longer known"):
        registry.load(record)
    with pytest.raises(NotFound):
        registry.unregister("MineExecutionProvider")


def test_a_plugin_of_a_package_can_not_be_unregistered(registry):
    with pytest.raises(NotFound) as caught:
        registry.unregister("AExecutionProvider")

    assert "EPCTX_DISABLE_PLUGINS" in caught.value.hint


def test_a_name_is_registered_once(registry):
    with pytest.raises(InvalidArgument, match="taken: registered by the host"):
        registry.register(Mine)


def test_a_name_of_an_installed_ep_is_taken_unless_that_is_disabled(
    registry, monkeypatch
):
    class Other(Mine):
        name = "AExecutionProvider"

    with pytest.raises(InvalidArgument, match=r"taken: epctx-a 1\.0") as caught:
        registry.register(Other)
    monkeypatch.setenv("EPCTX_DISABLE_PLUGINS", "epctx-a")
    registry.refresh()
    registry.register(Other)

    assert "EPCTX_DISABLE_PLUGINS=AExecutionProvider" in caught.value.hint
    assert registry.load(registry.resolve("A")) is Other


def test_an_ep_installed_later_under_a_registered_name_is_passed_over(
    registry, packages
):
    packages.install("epctx-mine", "MineExecutionProvider")

    registry.refresh()

    installed = next(
        record for record in registry.records() if record.distribution == "epctx-mine"
    )
    assert installed.state is PluginState.DUPLICATE
    assert "the host registered" in installed.reason
    assert registry.load(registry.resolve("Mine")) is Mine
    assert registry.load(registry.resolve("epctx-mine:Mine")) is not Mine


def test_the_built_in_name_can_not_be_registered(registry):
    class Cpu(Mine):
        name = "CPUExecutionProvider"

    with pytest.raises(InvalidArgument, match="built in"):
        registry.register(Cpu)


def test_a_class_that_breaks_the_contract_is_not_registered(packages):
    class Empty(ExecutionProvider):
        name = "Empty"

    registry = Registry()

    with pytest.raises(PluginError, match="required hook get_capability is missing"):
        registry.register(Empty)

    assert registry.records() == []


@pytest.mark.parametrize("sources", ["Mine", [""], [7]])
def test_sources_that_are_no_sequence_of_texts_are_an_error(packages, sources):
    with pytest.raises(InvalidArgument, match="sources"):
        Registry().register(Mine, sources=sources)


def test_an_instance_instead_of_a_class_is_a_plugin_error(packages):
    with pytest.raises(PluginError, match="not a subclass"):
        Registry().register(Mine(None))
