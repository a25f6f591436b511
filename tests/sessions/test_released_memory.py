"""Memory of a compile or a session is released with it, without waiting for the garbage
collector.

Weights and mappings are far too large to lie in reference cycles until the collector
comes by, which a host may have switched off. The network has a weight in each place
where one can be: taken by an EP, left to the CPU EP, in the bodies of an If, and in a
quantised group.
"""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from epctx_sim_qnn.provider import QnnProvider
from onnx import TensorProto, helper, numpy_helper
from support.sim_eps import CPU, OPENVINO, QNN, VITISAI, short, with_eps
from support.small_models import finished, tensor

import epctx_core as epctx
from epctx_core.graph.mapping import MappedFile
from epctx_core.graph.weights import Weight
from epctx_core.plugin import Compatibility, hookimpl
from epctx_core.sessions.providers import ProviderSession
from epctx_core.sessions.source import OpenModel

pytestmark = pytest.mark.internal

SIDE = 512
SMALLEST = SIDE * SIDE
"""Bytes of the smallest weight that counts: the quantised one."""

ATTEMPTS = 3

EPS = [(QNN,), (OPENVINO,), (VITISAI,), (QNN, OPENVINO, VITISAI), (CPU,)]
FEEDS = {"x": np.ones((1, SIDE), np.float32), "c": np.array(True)}


def network() -> onnx.ModelProto:
    random = np.random.default_rng(0)

    def weight(name: str) -> TensorProto:
        return numpy_helper.from_array(
            random.standard_normal((SIDE, SIDE), np.float32), name
        )

    def branch(name: str) -> onnx.GraphProto:
        product = helper.make_node("MatMul", ["b", f"{name}_w"], [f"{name}_y"])
        result = tensor(f"{name}_y", shape=[1, SIDE])
        return helper.make_graph([product], name, [], [result], [weight(f"{name}_w")])

    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("CumSum", ["a", "axis"], ["s"]),
        helper.make_node("Einsum", ["s", "t"], ["b"], equation="ij,jk->ik"),
        helper.make_node(
            "If", ["c"], ["d"], then_branch=branch("yes"), else_branch=branch("no")
        ),
        helper.make_node("QuantizeLinear", ["d", "scale", "zero"], ["e"]),
        helper.make_node("DequantizeLinear", ["e", "scale", "zero"], ["f"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["g"]),
        helper.make_node("MatMul", ["f", "g"], ["h"]),
        helper.make_node("QuantizeLinear", ["h", "scale", "zero"], ["m"]),
        helper.make_node("DequantizeLinear", ["m", "scale", "zero"], ["y"]),
    ]
    weights = [
        weight("v"),
        weight("t"),
        numpy_helper.from_array(np.array(1), "axis"),
        numpy_helper.from_array(np.array(0.1, np.float32), "scale"),
        numpy_helper.from_array(np.array(0, np.int8), "zero"),
        numpy_helper.from_array(random.integers(-9, 9, (SIDE, SIDE), np.int8), "q"),
    ]
    ends = [tensor("x", shape=[1, SIDE]), tensor("c", TensorProto.BOOL, [])]
    return finished(nodes, ends, [tensor("y", shape=[1, SIDE])], weights)


@pytest.fixture(scope="module", params=["in files", "inline"])
def source(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("released") / "m.onnx"
    # A file for each weight, those in bodies too.
    onnx.save(
        network(),
        path,
        save_as_external_data=request.param == "in files",
        location="m.data",
    )
    return path


WEIGHTS = {"v", "t", "axis", "scale", "zero", "q", "yes_w", "no_w"}


def held_objects() -> list[object]:
    """Return weights and mapped files of this network: a thread that another test left
    may hold some of its own.
    """
    found = gc.get_objects()
    weights = [o for o in found if type(o) is Weight and o.name in WEIGHTS]
    return [
        *weights,
        *(
            o
            for o in found
            if type(o) is MappedFile and Path(o.path).name.startswith(("m.", "m_"))
        ),
    ]


@pytest.fixture(scope="module", autouse=True)
def _without_the_collector():
    """Keep the collector from looking through the suite's own objects for each of these
    tests.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def assert_nothing_stays(action) -> None:
    """Do it twice: what the first time imports and caches does not count.

    What is left is left each time; a thread of an earlier test may allocate meanwhile.
    """
    action()
    gc.collect()
    others = held_objects()
    left = []
    while not left or (min(left) >= SMALLEST // 2 and len(left) < ATTEMPTS):
        tracemalloc.start()
        try:
            action()
            left.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()

    assert [o for o in held_objects() if not any(o is other for other in others)] == []
    assert min(left) < SMALLEST // 2


@pytest.mark.parametrize("eps", EPS, ids=short)
@pytest.mark.parametrize("embedded", [False, True])
def test_a_compile_leaves_no_weight_in_memory(source, eps, embedded, tmp_path):
    def compiled():
        epctx.ModelCompiler(with_eps(*eps), source, embedded).compile_to_file(
            tmp_path / "m_ctx.onnx"
        )

    assert_nothing_stays(compiled)


class Failing(QnnProvider):
    """QNN's operators, and an error once it holds their weights."""

    name = "FailingExecutionProvider"

    @hookimpl
    def compile(self, partitions):
        views = [
            view.array()
            for partition in partitions
            for view in partition.weights.values()
        ]
        raise ValueError(len(views))


def interrupted(stage, _done, _total):
    if stage == "write":
        raise ValueError(stage)


@pytest.mark.parametrize(
    ("ep", "progress"), [(QnnProvider, interrupted), (Failing, None)]
)
def test_a_compile_that_fails_leaves_no_weight_in_memory(
    source, ep, progress, tmp_path
):
    registry = epctx.Registry(entry_points=False)
    registry.register(ep)

    def failed():
        compiler = epctx.ModelCompiler(
            with_eps(ep.name), source, progress=progress, registry=registry
        )
        with pytest.raises((epctx.Fail, epctx.EPFail), match="ValueError"):
            compiler.compile_to_file(tmp_path / "m_ctx.onnx")

    assert_nothing_stays(failed)


class Unreadable(QnnProvider):
    """QNN, which refuses what it wrote when it reads it back."""

    name = "UnreadableExecutionProvider"

    @hookimpl
    def load_context(self, nodes, reader):
        views = [reader.payload(node).view for node in nodes]
        raise epctx.InvalidGraph(f"none of {len(views)} payloads has an end.")


def test_a_compile_whose_payload_cannot_be_read_back_leaves_no_weight_in_memory(
    source, tmp_path
):
    registry = epctx.Registry(entry_points=False)
    registry.register(Unreadable)

    def failed():
        compiler = epctx.ModelCompiler(
            with_eps(Unreadable.name), source, registry=registry
        )
        with pytest.raises(epctx.PluginError, match="cannot read back"):
            compiler.compile_to_file(tmp_path / "m_ctx.onnx")

    assert_nothing_stays(failed)


@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_a_session_that_cannot_be_made_leaves_no_weight_in_memory(
    source, damage, tmp_path
):
    epctx.ModelCompiler(with_eps(QNN), source).compile_to_file(tmp_path / "m_ctx.onnx")
    binary = tmp_path / "m_qnn.bin"
    if damage == "altered":
        binary.write_bytes(bytes(len(binary.read_bytes())))
    else:
        binary.unlink()

    def refused():
        with pytest.raises(epctx.InvalidGraph):
            epctx.InferenceSession(tmp_path / "m_ctx.onnx")

    assert_nothing_stays(refused)


class Unavailable(QnnProvider):
    """An EP whose availability raises an error of epctx."""

    @classmethod
    def availability(cls, purpose):
        raise epctx.NotFound(f"no driver to {purpose.value}")


class Older(QnnProvider):
    """An EP that recommends to compile the model again."""

    @classmethod
    def validate_compatibility(cls, info, options):
        return Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION


class Interrupted(QnnProvider):
    """An EP in whose shutdown the user presses Ctrl-C."""

    @hookimpl
    def shutdown(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("ep", "error"),
    [
        (Unavailable, epctx.NotFound),
        (Older, epctx.Fail),
        (Interrupted, KeyboardInterrupt),
    ],
)
def test_an_error_about_an_ep_keeps_no_model_and_no_session_in_memory(
    source, ep, error, tmp_path
):
    epctx.ModelCompiler(with_eps(QNN), source).compile_to_file(tmp_path / "m_ctx.onnx")
    registry = epctx.Registry(entry_points=False)
    registry.register(ep)
    options = epctx.SessionOptions()
    options.add_session_config_entry("session.fail_on_suboptimal_compiled_model", "1")

    def failed():
        with pytest.raises(error):
            epctx.InferenceSession(
                tmp_path / "m_ctx.onnx", options, registry=registry
            ).close()

    failed()
    gc.collect()
    others = {
        id(each)
        for each in gc.get_objects()
        if type(each) in {OpenModel, ProviderSession}
    }
    failed()
    assert [
        o
        for o in gc.get_objects()
        if type(o) in {OpenModel, ProviderSession} and id(o) not in others
    ] == []


@pytest.mark.parametrize("look", [epctx.verify_model, epctx.inspect_model])
def test_looking_at_a_model_leaves_no_weight_in_memory(source, look, tmp_path):
    epctx.ModelCompiler(with_eps(QNN, OPENVINO), source).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )

    def looked_at():
        look(tmp_path / "m_ctx.onnx")

    assert_nothing_stays(looked_at)


@pytest.mark.parametrize("eps", EPS, ids=short)
@pytest.mark.parametrize("route", ["source", "binary", "embedded"])
@pytest.mark.parametrize("end", ["close", "del"])
def test_a_session_leaves_no_weight_in_memory(source, eps, route, end, tmp_path):
    model = source
    if route != "source":
        model = tmp_path / "m_ctx.onnx"
        epctx.ModelCompiler(
            with_eps(*eps), source, route == "embedded"
        ).compile_to_file(model)
    kept = []

    def used():
        kept.clear()
        session = epctx.InferenceSession(model, with_eps(*eps))
        session.run(None, FEEDS)
        if end == "close":
            session.close()
            # A host may keep a closed session.
            kept.append(session)

    assert_nothing_stays(used)
