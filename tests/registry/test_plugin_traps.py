"""Traps of plugin frameworks that others fell into: none of them catches one of us.

Each test names its trap.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pluggy
import pytest
from registry.providers import ep, raising
from support.small_models import chain

from epctx_core import InferenceSession, PluginState, Registry
from epctx_core.errors import PluginError
from epctx_core.plugin import EPContextNode, Refusal
from epctx_core.registry import discovery
from epctx_core.registry.installed import list_distributions

pytestmark = pytest.mark.internal


def test_one_broken_import_does_not_end_the_loading_of_the_others(packages):
    for letter in "abcd":
        packages.install(
            f"epctx-{letter}", letter.upper(), code="1 / 0" if letter == "b" else None
        )
    registry = Registry()
    loaded = []

    for record in registry.records():
        try:
            loaded.append(registry.load(record).name)
        except PluginError:
            assert record.name == "B"

    assert loaded == ["A", "C", "D"]
    assert [r.state.value for r in registry.records()] == [
        "loaded",
        "broken",
        "loaded",
        "loaded",
    ]


def test_of_two_distributions_with_one_ep_type_none_is_silently_skipped(packages):
    packages.install("z-first-on-disk", "A")
    packages.install("a-second-on-disk", "A")

    records = Registry().records()

    assert [(r.distribution, r.state) for r in records] == [
        ("a-second-on-disk", PluginState.DUPLICATE),
        ("z-first-on-disk", PluginState.DUPLICATE),
    ]


def test_the_order_of_eps_is_the_hosts_and_not_that_of_registration_or_of_a_set(
    session,
):
    names = ["M", "A", "Z", "B"]

    instances = session(*(ep(name) for name in names))

    assert instances.names == tuple(names)


def test_an_exception_in_one_eps_hook_does_not_end_the_hooks_of_the_others(session):
    instances = session(
        ep("A"), ep("B", get_capability=raising(ValueError("odd graph"))), ep("C")
    )

    with pytest.raises(PluginError, match="odd graph"):
        instances.call("B", "get_capability", graph="g")

    assert instances.call("A", "get_capability", graph="g") == [Refusal("A", ["g"])]
    assert instances.call("C", "get_capability", graph="g") == [Refusal("C", ["g"])]


def test_whose_answer_it_is_never_gets_lost(session):
    def nodes(self):
        return [EPContextNode(self.name)]

    instances = session(*(ep(name, get_ep_context_nodes=nodes) for name in "ABC"))

    answers = {
        name: instances.call(name, "get_ep_context_nodes", writer=None)
        for name in instances.names
    }

    assert answers == {name: [EPContextNode(name)] for name in "ABC"}


MODEL = chain(["Relu"]).SerializeToString()
X = np.ones((2, 3), np.float32)


def test_annotations_that_name_nothing_at_run_time_do_not_keep_a_hook_from_being_called(
    packages,
):
    body = (
        "    seen = []\n"
        "    @hookimpl\n"
        "    def on_run_start(self, tag: 'Sequence[Missing]') -> Missing:\n"
        "        self.seen.append(tag)\n"
    )
    packages.install("epctx-a", "A", body=body)
    registry = Registry()

    with InferenceSession(MODEL, providers=["A"], registry=registry) as session:
        session.run(None, {"x": X})

    assert registry.load(registry.resolve("A")).seen == [""]


def test_an_ep_that_can_not_be_made_leaves_its_name_free():
    def refuse(self, context):
        raise OSError("no device")

    registry = Registry(entry_points=False)
    bad, good = type("B", (ep("B"),), {"__init__": refuse}), ep("B")
    with (
        registry.temporary(bad),
        pytest.raises(PluginError, match="no device"),
        InferenceSession(MODEL, providers=["B"], registry=registry),
    ):
        pass

    registry.register(good)

    assert registry.load(registry.resolve("B")) is good


def test_distributions_are_walked_when_first_asked_and_not_for_each_question(
    packages, monkeypatch
):
    packages.install("epctx-a", "A")
    walks = []

    def count(paths=None):
        walks.append(paths)
        return list_distributions(paths)

    monkeypatch.setattr(discovery, "list_distributions", count)

    registry = Registry()
    before = len(walks)
    for _ in range(10):
        registry.available()
        registry.resolve("A")
        registry.route("A")
        registry.explain_missing("B")

    assert (before, len(walks)) == (0, 1)
    assert "epctx_a" not in sys.modules


def test_folders_are_read_without_the_library_for_metadata():
    code = (
        "import sys, epctx_core; names = epctx_core.get_available_providers(); "
        "print('importlib_metadata' in sys.modules, 'QNNExecutionProvider' in names)"
    )

    said = subprocess.check_output([sys.executable, "-c", code], text=True)

    assert said == "False True\n"


def test_the_marker_of_another_project_is_no_hook_of_ours():
    other = pluggy.HookimplMarker("another")

    class Provider(ep("A")):
        @other
        def compile(self, partitions):
            return []

    with pytest.raises(PluginError, match="the required hook compile is missing"):
        Registry(entry_points=False).register(Provider)
