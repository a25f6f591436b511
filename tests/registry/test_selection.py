"""Selection: what the environment keeps out, and which distribution wins an EP type."""

from __future__ import annotations

import pytest

from epctx_core import PluginState, Registry
from epctx_core.errors import InvalidArgument, PluginError

EP = "QNNExecutionProvider"


def states(registry):
    return {record.distribution: record.state.value for record in registry.records()}


@pytest.fixture
def two(packages):
    packages.install("epctx-one", EP, version="1.0")
    packages.install("epctx-two", EP, version="2.0")
    return packages


@pytest.fixture
def three(packages):
    for letter in "abc":
        packages.install(f"epctx-{letter}", f"{letter.upper()}ExecutionProvider")
    return packages


@pytest.mark.parametrize(
    ("variables", "kept"),
    [
        ({}, "abc"),
        ({"EPCTX_PLUGINS": ""}, ""),
        ({"EPCTX_PLUGINS": " "}, ""),
        ({"EPCTX_PLUGINS": "AExecutionProvider,epctx-b"}, "ab"),
        ({"EPCTX_PLUGINS": "Epctx_C"}, "c"),
        ({"EPCTX_DISABLE_PLUGINS": "epctx-b"}, "ac"),
        ({"EPCTX_DISABLE_PLUGINS": "a, CExecutionProvider"}, "b"),
        ({"EPCTX_PLUGINS": "a,b", "EPCTX_DISABLE_PLUGINS": "b"}, "a"),
    ],
)
def test_the_environment_says_which_plugins_may_be_used(
    three, monkeypatch, variables, kept
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    registry = Registry()

    usable = {f"epctx-{letter}" for letter in kept}
    assert {
        dist for dist, state in states(registry).items() if state == "discovered"
    } == usable
    assert {
        dist for dist, state in states(registry).items() if state == "disabled"
    } == set(states(registry)) - usable


def test_a_disabled_plugin_says_which_variable_disabled_it(three, monkeypatch):
    monkeypatch.setenv("EPCTX_DISABLE_PLUGINS", "epctx-a")
    registry = Registry()

    with pytest.raises(PluginError, match=r"disabled.*EPCTX_DISABLE_PLUGINS names it"):
        registry.resolve("A")


def test_a_disabled_plugin_is_not_imported_even_from_its_record(three, monkeypatch):
    monkeypatch.setenv("EPCTX_PLUGINS", "")
    registry = Registry()
    record = registry.records()[0]

    with pytest.raises(PluginError, match="EPCTX_PLUGINS does not name it"):
        registry.load(record)


def test_a_name_in_the_environment_that_fits_nothing_is_reported(
    three, monkeypatch, caplog
):
    monkeypatch.setenv("EPCTX_DISABLE_PLUGINS", "epctx-typo")
    monkeypatch.setenv("EPCTX_PREFER", "A=epctx-b")

    Registry().records()

    assert "EPCTX_DISABLE_PLUGINS names 'epctx-typo'" in caplog.text
    assert (
        "EPCTX_PREFER names 'epctx-b:A', which is neither an installed EP"
        in caplog.text
    )


def test_two_distributions_with_one_ep_type_are_both_duplicates_that_name_each_other(
    two,
):
    registry = Registry()

    records = registry.records()

    assert [record.state for record in records] == [PluginState.DUPLICATE] * 2
    assert all("epctx-one 1.0 and epctx-two 2.0" in record.reason for record in records)
    assert registry.available() == ["CPUExecutionProvider"]


def test_naming_an_ep_that_two_distributions_bring_is_an_error_that_says_how_to_choose(
    two,
):
    registry = Registry()

    with pytest.raises(PluginError) as caught:
        registry.resolve("QNN")

    assert "epctx-one 1.0" in caught.value.message
    assert "epctx-two 2.0" in caught.value.message
    assert 'EPCTX_PREFER="QNNExecutionProvider=epctx-one"' in caught.value.hint
    assert '"epctx-one:QNNExecutionProvider"' in caught.value.hint


def test_a_source_that_two_distributions_could_take_is_an_error_too(two):
    with pytest.raises(
        PluginError, match=r"ambiguous: epctx-one 1\.0 and epctx-two 2\.0"
    ):
        Registry().route(EP)


@pytest.mark.parametrize("given", [EP, "qnn"])
def test_the_environment_chooses_between_two_distributions(two, monkeypatch, given):
    monkeypatch.setenv("EPCTX_PREFER", f"{given}=epctx-two")
    registry = Registry()

    assert states(registry) == {"epctx-one": "duplicate", "epctx-two": "discovered"}
    assert registry.resolve("QNN").distribution == "epctx-two"
    assert registry.route(EP).distribution == "epctx-two"


def test_what_the_host_prefers_wins_over_the_environment(two, monkeypatch):
    monkeypatch.setenv("EPCTX_PREFER", f"{EP}=epctx-two")
    registry = Registry()

    registry.prefer("QNN", distribution="Epctx.One")

    assert registry.load(registry.resolve("QNN")).__module__ == "epctx_one"


def test_a_preference_outlives_a_refresh(two):
    registry = Registry()
    registry.prefer(EP, distribution="epctx-two")

    registry.refresh()

    assert registry.resolve("QNN").distribution == "epctx-two"


def test_a_distribution_that_does_not_bring_the_ep_can_not_be_preferred(two):
    registry = Registry()

    with pytest.raises(
        InvalidArgument, match="'epctx-three' does not provide"
    ) as caught:
        registry.prefer(EP, distribution="epctx-three")

    assert "epctx-one 1.0, epctx-two 2.0" in caught.value.hint


def test_disabling_one_of_two_distributions_chooses_the_other(two, monkeypatch):
    monkeypatch.setenv("EPCTX_DISABLE_PLUGINS", "epctx-one")

    assert Registry().resolve("QNN").distribution == "epctx-two"


def test_a_name_with_its_distribution_chooses_for_this_one_time(two):
    registry = Registry()

    record = registry.resolve("epctx-two:QNN")

    assert record.state is PluginState.DISCOVERED
    assert registry.load(record).__module__ == "epctx_two"
    assert registry.route(EP, [record]).distribution == "epctx-two"
    with pytest.raises(PluginError, match="ambiguous"):
        registry.resolve("QNN")


def test_a_broken_preference_is_reported_and_the_other_one_is_not_used_instead(two):
    two.install("epctx-one", EP, code="raise OSError('no driver')", version="1.0")
    registry = Registry()
    registry.prefer(EP, distribution="epctx-one")
    with pytest.raises(PluginError, match="no driver"):
        registry.load(registry.resolve(EP))

    with pytest.raises(PluginError, match=r"epctx-one 1\.0.*no driver"):
        registry.resolve(EP)

    assert registry.route(EP) is None
    assert "no driver" in registry.explain_missing(EP)[0]


@pytest.mark.parametrize("value", ["QNN", "=epctx-one", "QNN=", "QNN:epctx-one"])
def test_a_malformed_preference_in_the_environment_is_an_error_that_shows_the_form(
    two, monkeypatch, value
):
    monkeypatch.setenv("EPCTX_PREFER", value)
    registry = Registry()

    with pytest.raises(InvalidArgument, match="EPCTX_PREFER") as caught:
        registry.records()

    assert "QNNExecutionProvider=epctx-sim-qnn" in caught.value.hint
    monkeypatch.delenv("EPCTX_PREFER")
    assert len(registry.records()) == 2
