"""EPCTX_PLUGIN: an EP under development, named by its class alone."""

from __future__ import annotations

import sys
import threading

import pytest
from registry.packages import PROVIDER

from epctx_core import PluginState, Registry
from epctx_core.errors import InvalidArgument, NotFound, PluginError


@pytest.fixture
def write(packages):
    """Write a module with an EP that no distribution brings."""

    def write(module, name, body=""):
        packages.write_module(module, PROVIDER.format(name=name, body=body))
        return f"{module}:Provider"

    return write


def test_a_class_that_the_variable_names_is_found_by_its_own_name(write, monkeypatch):
    monkeypatch.setenv("EPCTX_PLUGIN", write("draft", "DraftExecutionProvider", '    vendor = "Me"\n'))
    registry = Registry()

    record = registry.resolve("draft")

    assert (record.name, record.state, record.vendor) == (
        "DraftExecutionProvider",
        PluginState.LOADED,
        "Me",
    )
    assert (record.distribution, record.origin) == (None, "registered by the host")
    assert registry.load(record) is sys.modules["draft"].Provider
    assert registry.route("DraftExecutionProvider") == record
    assert registry.available() == ["DraftExecutionProvider", "CPUExecutionProvider"]


def test_several_classes_are_separated_by_commas(write, monkeypatch):
    first, second = write("draft_one", "One"), write("draft_two", "Two")
    monkeypatch.setenv("EPCTX_PLUGIN", f" {first} ,{second},")

    assert Registry().available() == ["One", "Two", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("no_such_module:Provider", "ModuleNotFoundError"),
        ("draft:Missing", "AttributeError"),
        ("draft", "not of the form module:Class"),
        ("draft:Provider.name", "not a subclass"),
        ("crashing:Provider", "SystemExit"),
        ("cpu:Provider", "built in"),
    ],
)
def test_what_cannot_be_used_is_a_broken_record_and_disturbs_nothing(
    packages, write, monkeypatch, caplog, given, why
):
    good = write("draft", "Draft")
    write("cpu", "CPUExecutionProvider")
    packages.write_module("crashing", "raise SystemExit(3)")
    packages.install("epctx-a", "A")
    monkeypatch.setenv("EPCTX_PLUGIN", f"{given},{good}")
    registry = Registry()

    broken = next(r for r in registry.records() if r.name == given)

    assert broken.state is PluginState.BROKEN
    assert why in broken.reason
    assert f"EPCTX_PLUGIN: {broken.reason}" in caplog.text
    assert registry.available() == ["A", "Draft", "CPUExecutionProvider"]
    with pytest.raises(PluginError, match="can't be used"):
        registry.load(broken)


def test_a_failed_import_keeps_its_traceback_and_is_told_of_where_the_ep_is_missed(packages, monkeypatch):
    packages.write_module("draft", "import no_such_sdk")
    monkeypatch.setenv("EPCTX_PLUGIN", "draft:Provider")
    registry = Registry()

    with pytest.raises(
        InvalidArgument, match=r"Installed: none\. What EPCTX_PLUGIN gives is broken: draft:P"
    ):
        registry.resolve("DraftExecutionProvider")

    (record,) = registry.records()
    assert "import no_such_sdk" in record.traceback


def test_it_goes_before_an_installed_ep_of_the_same_type(packages, write, monkeypatch):
    packages.install("epctx-a", "A")
    monkeypatch.setenv("EPCTX_PLUGIN", write("draft", "A"))
    registry = Registry()

    installed = next(r for r in registry.records() if r.distribution)

    assert installed.state is PluginState.DUPLICATE
    assert installed.reason == "the host registered a class of this EP type"
    assert registry.load(registry.resolve("A")).__module__ == "draft"
    assert registry.load(registry.resolve("epctx-a:A")).__module__ == "epctx_a"


def test_no_installed_plugin_but_the_one_under_development(packages, write, monkeypatch):
    packages.install("epctx-a", "A")
    monkeypatch.setenv("EPCTX_PLUGINS", "")
    monkeypatch.setenv("EPCTX_PLUGIN", write("draft", "Draft"))

    assert Registry().available() == ["Draft", "CPUExecutionProvider"]


def test_naming_one_under_development_among_the_only_ones_is_no_misspelling(
    packages, write, monkeypatch, caplog
):
    packages.install("epctx-a", "A")
    monkeypatch.setenv("EPCTX_PLUGINS", "A,DraftExecutionProvider,Draf")
    monkeypatch.setenv("EPCTX_PLUGIN", write("draft", "DraftExecutionProvider"))

    available = Registry().available()

    assert available == ["A", "DraftExecutionProvider", "CPUExecutionProvider"]
    assert [record.getMessage() for record in caplog.records] == [
        "EPCTX_PLUGINS names 'Draf', which is neither an installed EP nor its distribution."
    ]


def test_a_source_of_the_installed_ep_that_it_hides_says_how_to_use_that_one(packages, write, monkeypatch):
    packages.install("epctx-a", "A", sources=["Alfa"])
    monkeypatch.setenv("EPCTX_PLUGIN", write("draft", "A"))
    registry = Registry()

    why, hint = registry.explain_missing("Alfa")
    named = registry.route("Alfa", among=[registry.resolve("epctx-a:A")])

    assert "the host registered a class of this EP type" in why
    assert hint == 'Name it "epctx-a:A" among the providers to have it all the same.'
    assert named.distribution == "epctx-a"


def test_two_classes_of_one_type_are_one_and_a_complaint(write, monkeypatch):
    monkeypatch.setenv("EPCTX_PLUGIN", f"{write('draft_one', 'A')},{write('draft_two', 'A')}")
    registry = Registry()

    records = {record.name: record.state for record in registry.records()}

    assert records == {"A": PluginState.LOADED, "draft_two:Provider": PluginState.BROKEN}
    assert registry.load(registry.resolve("A")).__module__ == "draft_one"


def test_a_class_of_the_host_does_not_meet_one_under_development(write, monkeypatch, packages):
    target = write("draft", "Draft")
    packages.write_module("mine", PROVIDER.format(name="Draft", body=""))
    import mine

    monkeypatch.setenv("EPCTX_PLUGIN", target)
    registry = Registry()

    with pytest.raises(InvalidArgument, match="taken: registered by the host") as caught:
        registry.register(mine.Provider)
    with pytest.raises(NotFound):
        registry.unregister("Draft")
    monkeypatch.delenv("EPCTX_PLUGIN")
    registry.refresh()
    registry.register(mine.Provider)
    monkeypatch.setenv("EPCTX_PLUGIN", target)
    registry.refresh()

    assert "take it out of EPCTX_PLUGIN" in caught.value.hint
    assert registry.load(registry.resolve("Draft")) is mine.Provider
    assert [(r.name, r.state.value) for r in registry.records()] == [
        ("Draft", "loaded"),
        ("draft:Provider", "broken"),
    ]


def test_a_refresh_tries_a_broken_one_again(packages, write, monkeypatch):
    packages.write_module("draft", "1 / 0")
    monkeypatch.setenv("EPCTX_PLUGIN", "draft:Provider")
    registry = Registry()
    before = registry.records()
    write("draft", "Draft")

    registry.refresh()

    assert [r.state for r in before] == [PluginState.BROKEN]
    assert registry.available() == ["Draft", "CPUExecutionProvider"]


def test_a_registry_without_entry_points_does_not_look_at_it(write, monkeypatch):
    monkeypatch.setenv("EPCTX_PLUGIN", write("draft", "Draft"))

    assert Registry(entry_points=False).records() == []
    assert "draft" not in sys.modules


def test_a_class_whose_import_asks_the_registry_finds_itself_missing_and_is_found_afterwards(
    packages, monkeypatch
):
    packages.write_module("asked", "registry = None")
    code = "import asked\nseen = asked.registry.available()\n" + PROVIDER.format(name="Draft", body="")
    packages.write_module("draft", code.replace("from __future__ import annotations\n", ""))
    monkeypatch.setenv("EPCTX_PLUGIN", "draft:Provider")
    import asked

    asked.registry = Registry()

    assert asked.registry.available() == ["Draft", "CPUExecutionProvider"]
    assert sys.modules["draft"].seen == ["CPUExecutionProvider"]


def test_whoever_asks_while_it_is_imported_waits_for_it(packages, monkeypatch):
    packages.write_module("gate", "import threading\nentered, go = threading.Event(), threading.Event()")
    code = PROVIDER.format(name="Draft", body="") + "\nimport gate\ngate.entered.set()\ngate.go.wait(10)\n"
    packages.write_module("draft", code)
    monkeypatch.setenv("EPCTX_PLUGIN", "draft:Provider")
    import gate

    registry, answers = Registry(), []
    first = threading.Thread(target=registry.available)
    second = threading.Thread(target=lambda: answers.append(registry.available()))

    first.start()
    gate.entered.wait(10)
    second.start()
    gate.go.set()
    for thread in (first, second):
        thread.join(10)

    assert answers == [["Draft", "CPUExecutionProvider"]]
