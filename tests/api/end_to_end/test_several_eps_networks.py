"""Real networks over the three simulated EPs: each alone and several in order of priority, moved and reloaded."""

from __future__ import annotations

import gc
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
import pytest
from agreement import assert_agree
from end_to_end.sim_eps import EVERY_ORDER, OPENVINO, ORDERS, QNN, SUFFIXES, VITISAI, short, with_eps
from networks.catalog import EXPORTED, FILLED, LARGE, QUANTISED
from networks.quantise import steps_of

import epctx_core as epctx

if TYPE_CHECKING:
    import numpy as np

LIGHT = [*EXPORTED, *(name for name in FILLED if name not in LARGE), *QUANTISED]
"""For every day; the large ones are run by `make stress`."""
DEEP = ("densenet121", "inception_v1", "inception_v2", "resnet50", "resnet50_int8")
"""Of these, those that take seconds a case: one order of three EPs every day, the others have all of `ORDERS`."""


def stressed(orders, *, everyday):
    """Return all networks with these orders; those not for every day are marked."""
    return [
        pytest.param(
            name,
            order,
            id=f"{name}-{short(order)}",
            marks=[] if name in LIGHT and order in everyday(name) else [pytest.mark.stress],
        )
        for name in (*LIGHT, *LARGE)
        for order in orders
    ]


ONE = [(OPENVINO,), (QNN,), (VITISAI,)]
ALONE = stressed(ONE, everyday=lambda _name: ONE)
TOGETHER = stressed(EVERY_ORDER, everyday=lambda name: ORDERS[:1] if name in DEEP else ORDERS)
MODES = pytest.mark.parametrize("embedded", [False, True], ids=["file", "embedded"])


@dataclass(frozen=True, kw_only=True)
class Way:
    """What came of a network that was compiled, moved and loaded.

    Attributes:
        taken: names of nodes by EP, as the compiler reports them.
        nodes: how many there are in the network.
        contexts: file names by source of the EPContext nodes; None for an embedded payload or a reference.
        left: how many other nodes the context model has.
        files: what was written.
        required: what the report says must be shipped.
        outputs, reference, steps: what the loaded model gives, onnxruntime's result, quantisation steps.
    """

    taken: dict[str, set[str]]
    nodes: int
    contexts: dict[str, set[str | None]]
    left: int
    files: set[str]
    required: set[str]
    outputs: list[np.ndarray]
    reference: list[np.ndarray]
    steps: list[float | None]


@pytest.fixture(scope="module")
def way(network, tmp_path_factory):
    """Give the way of a network through EPs; each is gone once."""
    known = {}

    def find(name, eps, *, embedded=False):
        if (name, eps, embedded) not in known:
            folder = tmp_path_factory.mktemp("way")
            known[name, eps, embedded] = gone(network(name), eps, folder, embedded)
            shutil.rmtree(folder)
            # Weights of a compile stay in cycles until the collector comes, which counts objects, not their bytes.
            gc.collect()
        return known[name, eps, embedded]

    return find


def gone(source, eps, folder, embedded):
    built, moved = folder / "built", folder / "far away"
    built.mkdir()
    steps = steps_of(source.path) if source.name in QUANTISED else [None] * len(source.reference)
    nodes = len(onnx.load(source.path, load_external_data=False).graph.node)

    compiler = epctx.ModelCompiler(with_eps(*eps), source.path, embedded)
    report = compiler.compile_to_file(built / "net_ctx.onnx")
    built.rename(moved)
    shutil.rmtree(source.path.parent)
    with epctx.InferenceSession(moved / "net_ctx.onnx") as session:
        outputs = session.run(None, source.inputs)

    graph = onnx.load(moved / "net_ctx.onnx").graph
    taken, contexts = {}, {}
    for partition in report.partitions:
        taken.setdefault(partition.ep, set()).update(partition.node_names)
    for node in (node for node in graph.node if node.op_type == "EPContext"):
        said = {a.name: a.s.decode() for a in node.attribute if a.name == "source"}
        file = [a.s.decode() for a in node.attribute if a.name == "ep_cache_context" and not embedded]
        contexts.setdefault(said["source"], set()).add(file[0] if file else None)
    return Way(
        taken=taken,
        nodes=nodes,
        contexts=contexts,
        left=sum(node.op_type != "EPContext" for node in graph.node),
        files={path.name for path in moved.iterdir()},
        required=set(report.required_files),
        outputs=outputs,
        reference=source.reference,
        steps=steps,
    )


def assert_files_are_each_eps_own(found, *, embedded):
    binaries = {} if embedded else {ep: f"net_{SUFFIXES[ep]}.bin" for ep in found.taken}
    assert found.files == found.required == {"net_ctx.onnx", *binaries.values()}
    assert found.contexts.keys() == found.taken.keys()
    for ep, names in found.contexts.items():
        assert names - {None} == ({binaries[ep]} if binaries else set())


def assert_each_node_is_in_one_place(found):
    sets = list(found.taken.values())
    together = set().union(*sets)
    assert sum(map(len, sets)) == len(together)
    assert len(together) + found.left == found.nodes


@MODES
@pytest.mark.parametrize(("name", "eps"), ALONE)
def test_a_network_on_one_ep_moved_and_reloaded_agrees_with_onnxruntime(way, name, eps, embedded):
    found = way(name, eps, embedded=embedded)

    assert_agree(found.outputs, found.reference, found.steps)
    assert_files_are_each_eps_own(found, embedded=embedded)
    assert_each_node_is_in_one_place(found)


@MODES
@pytest.mark.parametrize(("name", "eps"), TOGETHER)
def test_a_network_over_three_eps_moved_and_reloaded_agrees_with_onnxruntime(way, name, eps, embedded):
    found = way(name, eps, embedded=embedded)

    assert_agree(found.outputs, found.reference, found.steps)
    assert_files_are_each_eps_own(found, embedded=embedded)
    assert_each_node_is_in_one_place(found)


@pytest.mark.parametrize(("name", "eps"), TOGETHER)
def test_the_first_ep_takes_what_it_takes_alone_and_the_others_of_the_rest(way, name, eps):
    together = way(name, eps).taken
    alone = {ep: way(name, (ep,)).taken.get(ep, set()) for ep in eps}

    assert together.get(eps[0], set()) == alone[eps[0]]
    for ep in eps[1:]:
        assert together.get(ep, set()) <= alone[ep]


@pytest.mark.parametrize(("ep", "networks"), [(QNN, 6), (OPENVINO, 6), (VITISAI, 4)])
def test_each_ep_compiles_a_good_part_of_several_networks(way, ep, networks):
    names = QUANTISED if ep == VITISAI else LIGHT

    shares = {name: len(way(name, (ep,)).taken.get(ep, ())) / way(name, (ep,)).nodes for name in names}

    assert sum(share > 0.5 for share in shares.values()) >= networks, shares


def test_quantised_networks_are_split_over_three_eps(way):
    for name in ("shufflenet_int8", "squeezenet_int8"):
        found = way(name, (VITISAI, QNN, OPENVINO))

        assert found.contexts.keys() == {VITISAI, QNN, OPENVINO}, name
