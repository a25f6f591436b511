"""Traps of plugin frameworks that others fell into: none of them catches one of us. Each test names its trap."""

from __future__ import annotations

import sys

import pluggy
import pytest
from registry.providers import ep, raising

from epctx_core.errors import PluginError
from epctx_core.plugin import EPContextNode, Refusal
from epctx_core.registry import PluginState, ProviderInstances, Registry, discovery, loading


def test_one_broken_import_does_not_end_the_loading_of_the_others(packages):
    for letter in "abcd":
        packages.install(f"epctx-{letter}", letter.upper(), code="1 / 0" if letter == "b" else None)
    registry = Registry()
    loaded = []

    for record in registry.records():
        try:
            loaded.append(registry.load(record).name)
        except PluginError:
            assert record.name == "B"

    assert loaded == ["A", "C", "D"]
    assert [r.state.value for r in registry.records()] == ["loaded", "broken", "loaded", "loaded"]


def test_of_two_distributions_with_one_ep_type_none_is_silently_skipped(packages):
    packages.install("z-first-on-disk", "A")
    packages.install("a-second-on-disk", "A")

    records = Registry().records()

    assert [(r.distribution, r.state) for r in records] == [
        ("a-second-on-disk", PluginState.DUPLICATE),
        ("z-first-on-disk", PluginState.DUPLICATE),
    ]


def test_the_order_of_eps_is_the_hosts_and_not_that_of_registration_or_of_a_set(session):
    names = ["M", "A", "Z", "B"]

    instances = session(*(ep(name) for name in names))

    assert instances.names == tuple(names)


def test_an_exception_in_one_eps_hook_does_not_end_the_hooks_of_the_others(session):
    instances = session(ep("A"), ep("B", get_capability=raising(ValueError("odd graph"))), ep("C"))

    with pytest.raises(PluginError, match="odd graph"):
        instances.call("B", "get_capability", graph="g", kernels=None)

    assert instances.call("A", "get_capability", graph="g", kernels=None) == [Refusal("A", ["g"])]
    assert instances.call("C", "get_capability", graph="g", kernels=None) == [Refusal("C", ["g"])]


def test_whose_answer_it_is_never_gets_lost(session):
    def nodes(self):
        return [EPContextNode(self.name)]

    instances = session(*(ep(name, get_ep_context_nodes=nodes) for name in "ABC"))

    answers = {name: instances.call(name, "get_ep_context_nodes", writer=None) for name in instances.names}

    assert answers == {name: [EPContextNode(name)] for name in "ABC"}


def test_an_argument_with_a_default_that_pluggy_would_not_pass_is_refused_by_name():
    def compile_some(self, partitions=()):
        return list(partitions)

    problems = loading.find_problems(ep("A", compile=compile_some))

    assert [problem.what for problem in problems] == [
        "compile has a default for 'partitions', so it might never be passed"
    ]


def test_annotations_that_name_nothing_at_run_time_do_not_keep_a_hook_from_being_called(packages, context):
    body = (
        "    @hookimpl\n"
        "    def load_context(self, nodes: 'Sequence[Missing]', reader: Missing) -> list[Missing]:\n"
        "        return list(nodes)\n"
    )
    packages.install("epctx-a", "A", body=body)
    registry = Registry()
    cls = registry.load(registry.resolve("A"))
    instances = ProviderInstances()
    instances.add(registry.resolve("A"), cls, context)

    assert instances.call("A", "load_context", nodes=["n"], reader=None) == ["n"]


def refuse(self, context):
    raise OSError("no device")


def test_a_registration_that_fails_midway_leaves_the_name_free(session, context, record_of):
    instances = session(ep("A"))
    good = ep("B")
    with pytest.raises(PluginError, match="no device"):
        instances.add(record_of(good), type("B", (good,), {"__init__": refuse}), context)

    instances.add(record_of(good), good, context)

    assert instances.names == ("A", "B")
    assert instances.call("B", "compile", partitions=[1]) == [("B", 1)]


def test_the_caller_of_a_hook_is_made_once_and_not_for_each_call(session, monkeypatch):
    instances = session(ep("A", on_run_start=lambda self, tag: None), ep("B"))
    made = []
    make = instances._manager.subset_hook_caller
    monkeypatch.setattr(
        instances._manager, "subset_hook_caller", lambda *given: made.append(given[0]) or make(*given)
    )

    for _ in range(100):
        instances.call("A", "on_run_start", tag="")

    assert made == ["on_run_start"]


def test_distributions_are_walked_when_first_asked_and_not_for_each_question(packages, monkeypatch):
    packages.install("epctx-a", "A")
    walks = []
    discover = discovery.discover
    monkeypatch.setattr("epctx_core.registry.inventory.discover", lambda: walks.append(1) or discover())

    registry = Registry()
    before = len(walks)
    for _ in range(10):
        registry.available()
        registry.resolve("A")
        registry.route("A")
        registry.explain_missing("B")

    assert (before, len(walks)) == (0, 1)
    assert "epctx_a" not in sys.modules


def test_the_marker_of_another_project_is_no_hook_of_ours():
    other = pluggy.HookimplMarker("another")

    class Provider(ep("A")):
        @other
        def shutdown(self):
            return None

    assert "has a hook's name but no @hookimpl" in loading.find_problems(Provider)[0].what
