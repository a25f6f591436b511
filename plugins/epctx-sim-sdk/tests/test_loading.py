"""From context nodes to runnables, by a vendor's policy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from epctx_sim_sdk.device import Device
from epctx_sim_sdk.loading import ContextLoader
from epctx_sim_sdk.versions import Claim, LoadPolicy, Relation

from epctx_core.errors import InvalidGraph, ModelLoadCanceled
from epctx_core.plugin import Compatibility, ContextNode

pytestmark = pytest.mark.internal

RULES = {
    ("sdk", Relation.OLDER): Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION,
    ("sdk", Relation.NEWER): Compatibility.EP_UNSUPPORTED,
    ("sdk", Relation.MISSING): Compatibility.EP_UNSUPPORTED,
}
X = np.ones((1, 400), np.float32)


class Host:
    """What the loader gets from a host, and what it said to it."""

    def __init__(self, scene):
        self.cancel = scene.cancel()
        self.logged = []
        self.steps = []
        self.logger = SimpleNamespace(
            info=lambda text, *values: self.logged.append(text % values)
        )
        self.device = Device(engine=scene.engine())
        self.workspace = scene.workspace()

    def progress(self, *step):
        self.steps.append(step)

    def loader(self, scene, *, claims=None, lone=False):
        policy = LoadPolicy(
            ep=scene.ep,
            rules=RULES,
            runtime=scene.facts,
            claims=claims or {},
            lone_graph_fits=lone,
        )
        return ContextLoader(self, self.device, policy)


class Reader:
    """Payloads by the primary's name; remembers which were asked for."""

    def __init__(self, **contents):
        self.payloads = {
            name: SimpleNamespace(
                name=f"{name}.bin", view=memoryview(content), verified=False
            )
            for name, content in contents.items()
        }
        self.asked = []

    def payload(self, node):
        self.asked.append(node.name)
        return self.payloads[node.name]

    def source_tensor(self, name):
        raise AssertionError(f"{name}: nothing was left in a source model")


def a_node(graph, name, *, main=True, primary=None, **attributes):
    made = ContextNode(
        name=name,
        partition_name=graph.name,
        source="Sim",
        main_context=main,
        primary=primary,
        inputs=graph.inputs,
        outputs=graph.outputs,
        attributes=attributes,
    )
    if main:
        object.__setattr__(made, "primary", made)
    return made


@pytest.fixture
def host(scene):
    return Host(scene)


@pytest.fixture
def graph(scene):
    return scene.graph(scene.dense())


def test_primaries_that_share_a_payload_open_it_once(scene, host, graph):
    other = scene.graph(scene.dense(scale=2.0), number=1)
    reader = Reader(one=scene.write(graph, other))
    reader.payloads["two"] = reader.payloads["one"]

    first, second = host.loader(scene).load(
        [a_node(graph, "one"), a_node(other, "two")], reader
    )

    assert reader.asked == ["one", "two"]
    assert not np.array_equal(first.run([X], None)[0], second.run([X], None)[0])
    assert len({id(key[0]) for key in host.device._shared}) == 1
    assert host.steps[-1] == ("load", 2, 2)


def test_a_reference_without_a_primary_finds_its_graph_in_a_payload_that_two_primaries_share(
    scene, host, graph
):
    reader = Reader(one=scene.write(graph))
    reader.payloads["two"] = reader.payloads["one"]
    nodes = [
        a_node(graph, "one"),
        a_node(graph, "two"),
        a_node(graph, "third", main=False),
    ]

    assert len(host.loader(scene).load(nodes, reader)) == 3


def test_a_refusal_names_node_field_found_and_needed(scene, host, graph):
    content = scene.write(graph, facts=scene.facts | {"sdk": "sim-2.51.1"})

    with pytest.raises(
        InvalidGraph,
        match=r"'n7'.*n7\.bin has sdk sim-2\.51\.1 \(newer\).*needs sim-2\.51\.0",
    ) as caught:
        host.loader(scene).load([a_node(graph, "n7")], Reader(n7=content))

    assert (caught.value.node, caught.value.ep) == ("n7", scene.ep)


@pytest.mark.parametrize("lone", [True, False])
def test_whether_a_lone_graph_may_have_another_name_is_the_vendors_to_say(
    scene, host, graph, lone
):
    node = a_node(graph, "one")
    object.__setattr__(node, "partition_name", "old name")
    loader, reader = host.loader(scene, lone=lone), Reader(one=scene.write(graph))

    if lone:
        assert len(loader.load([node], reader)) == 1
    else:
        with pytest.raises(
            InvalidGraph,
            match=f"holds a graph 'old name'; graphs found: '{graph.name}'",
        ):
            loader.load([node], reader)


def test_what_a_node_claims_is_judged_and_what_it_must_claim_is_missed(
    scene, host, graph
):
    loader = host.loader(scene, claims={"version": Claim("sdk", needed=True)})
    reader = Reader(one=scene.write(graph))

    loader.load([a_node(graph, "one", version="sim-2.51.0")], reader)
    assert host.logged == []
    loader.load([a_node(graph, "one", version="sim-2.50.0")], reader)
    assert host.logged == [
        (
            "one: the node was made for sdk sim-2.50.0, this runtime has sim-2.51.0; "
            "compiling again would make it faster."
        )
    ]
    for version, words in (
        ("sim-2.52.0", "the node has sdk sim-2.52.0"),
        (None, "the node has sdk missing"),
    ):
        with pytest.raises(InvalidGraph, match=words) as caught:
            loader.load([a_node(graph, "one", version=version)], reader)
        assert caught.value.node == "one"


def test_equal_claims_are_judged_once(scene, host, graph):
    stated = {"version": "2.50"}
    loader = host.loader(
        scene, claims={"version": Claim("sdk", lambda text: f"sim-{text}.0")}
    )
    nodes = [
        a_node(graph, "one", **stated),
        *(a_node(graph, f"n{i}", main=False, **stated) for i in range(3)),
    ]

    loader.load(nodes, Reader(one=scene.write(graph)))

    assert len(host.logged) == 1


def test_a_payload_that_the_rules_refuse_is_not_loaded(scene, host, graph):
    content = scene.write(graph, facts={"vendor": "Sim", "sdk": "sim-2.52.0"})

    with pytest.raises(
        InvalidGraph, match=r"the payload one\.bin has sdk sim-2\.52\.0 \(newer\)"
    ):
        host.loader(scene).load([a_node(graph, "one")], Reader(one=content))


def test_a_cancelled_load_stops(scene, host, graph):
    host.cancel.set(True)

    with pytest.raises(ModelLoadCanceled):
        host.loader(scene).load([a_node(graph, "one")], Reader(one=scene.write(graph)))
