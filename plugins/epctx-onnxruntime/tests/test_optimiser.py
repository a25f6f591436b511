"""Optimising a model: what changes, what stays, and that weights are left where they
lie.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from epctx_onnxruntime import optimiser
from epctx_onnxruntime.optimiser import CONTRIB, Allowed, optimize
from onnx import TensorProto, numpy_helper
from support.graph_models import model, node, value
from support.graph_reading import opened
from support.optimised_networks import convolution_and_normalisation, drawn, gelu

from epctx_core.context.paths import ModelFolder
from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.errors import InvalidGraph, NotImplementedByProvider
from epctx_core.graph.weights import is_detached
from epctx_core.options import GraphOptimizationLevel
from epctx_core.plugin import EnginePolicy

pytestmark = pytest.mark.internal

BASIC, EXTENDED = (
    GraphOptimizationLevel.ORT_ENABLE_BASIC,
    GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
)
ONNX_ONLY = Allowed()


def results(found, x):
    engine = CpuEngine(EnginePolicy())
    return engine.prepare(found[0], {n: w.array() for n, w in found[1].items()}).run(
        [x]
    )


def operators(found):
    return [n.op_type for n in found.graph.node]


class Untouchable:
    """A weight in a file; reading it through the view is an error."""

    def __init__(self, weight):
        self.name, self.shape, self.nbytes = weight.name, weight.shape, weight.nbytes
        self.elem_type, self.extent, self.dtype = (
            weight.elem_type,
            weight.extent,
            weight.dtype,
        )

    def array(self):
        raise AssertionError(f"the weight {self.name} is read")

    chunks = array


@pytest.mark.parametrize("ir_version", [3, 10])
def test_nodes_become_fewer_and_results_stay(ir_version):
    source = opened(convolution_and_normalisation(ir_version))
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16), np.float32)

    found = optimize(source.proto, source.weights, BASIC, ONNX_ONLY)

    assert operators(found.model) == ["Conv", "MatMul"]
    del found.model.graph.input[1:]
    found.model.ir_version = 10
    plain = opened(convolution_and_normalisation())
    before = results((plain.proto, plain.weights), x)[0]
    assert np.max(np.abs(results(found, x)[0] - before)) <= 1e-5 * np.max(
        np.abs(before)
    )


@pytest.mark.parametrize("ir_version", [3, 10])
def test_what_a_model_says_about_itself_stays(ir_version):
    source = opened(convolution_and_normalisation(ir_version))

    found = optimize(source.proto, source.weights, EXTENDED, ONNX_ONLY).model

    for field in ("ir_version", "producer_name", "doc_string"):
        assert getattr(found, field) == getattr(source.proto, field)
    assert found.metadata_props == source.proto.metadata_props
    assert found.opset_import == source.proto.opset_import
    assert found.graph.doc_string == "about the graph"
    assert found.graph.input[0] == source.proto.graph.input[0]
    assert found.graph.output == source.proto.graph.output
    listed = {v.name for v in found.graph.input[1:]}
    assert listed == (
        {t.name for t in found.graph.initializer} if ir_version < 4 else set()
    )


def test_the_model_given_is_not_changed():
    source = opened(convolution_and_normalisation())
    before = source.proto.SerializeToString(deterministic=True)

    optimize(source.proto, source.weights, BASIC, ONNX_ONLY)

    assert source.proto.SerializeToString(deterministic=True) == before


def test_an_unchanged_weight_stays_the_view_that_was_given_and_a_changed_one_is_new():
    source = opened(convolution_and_normalisation())

    found = optimize(source.proto, source.weights, BASIC, ONNX_ONLY)

    assert found.weights["dense"] is source.weights["dense"]
    (folded,) = [w for n, w in found.weights.items() if n != "dense"]
    assert folded.shape == (32, 3, 3, 3)
    assert not np.array_equal(folded.array(), source.weights["w"].array())
    assert {
        t.name for t in found.model.graph.initializer if is_detached(t)
    } == found.weights.keys()


def test_an_unchanged_weight_in_a_file_is_not_read(tmp_path):
    made = convolution_and_normalisation()
    onnx.save(
        made,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.weights",
        size_threshold=0,
    )
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    folder = ModelFolder(tmp_path)
    source = opened(
        proto, lambda name, tensor: folder.open(name, what="weights", node=tensor)
    )
    views = {name: Untouchable(weight) for name, weight in source.weights.items()}

    found = optimize(source.proto, views, BASIC, ONNX_ONLY)

    assert found.weights["dense"] is views["dense"]
    assert operators(found.model) == ["Conv", "MatMul"]


@pytest.fixture
def in_a_file(tmp_path):
    """The network with its weights in a file of another folder, and that file."""
    made = convolution_and_normalisation()
    onnx.save(
        made,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.weights",
        size_threshold=0,
    )
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    folder = ModelFolder(tmp_path)
    source = opened(
        proto, lambda name, tensor: folder.open(name, what="weights", node=tensor)
    )
    return source, tmp_path / "m.weights"


def test_what_was_computed_from_another_file_put_in_the_place_of_the_weights_is_not_used(
    in_a_file,
):
    source, weights = in_a_file
    other = weights.with_name("other")
    other.write_bytes(bytes(weights.stat().st_size))
    other.replace(weights)

    with pytest.raises(NotImplementedByProvider, match=r"m\.weights.* was replaced"):
        optimize(source.proto, source.weights, BASIC, ONNX_ONLY)


def test_a_weights_file_that_was_written_to_is_named(in_a_file):
    source, weights = in_a_file
    weights.write_bytes(bytes(weights.stat().st_size))
    os.utime(weights, ns=(1, 1))

    with pytest.raises(InvalidGraph, match="was written to while it was in use"):
        optimize(source.proto, source.weights, BASIC, ONNX_ONLY)


def test_onnxruntimes_own_operators_come_only_where_they_are_allowed():
    source = opened(gelu())

    without = optimize(source.proto, source.weights, EXTENDED, ONNX_ONLY).model
    with_them = optimize(
        source.proto, source.weights, EXTENDED, Allowed(contrib=True)
    ).model

    assert {n.domain for n in without.graph.node} == {""}
    assert [(n.domain, n.op_type) for n in with_them.graph.node] == [(CONTRIB, "Gelu")]
    assert [(o.domain, o.version) for o in with_them.opset_import] == [
        ("", 13),
        (CONTRIB, 1),
    ]


MOVES_THE_BATCH_OF_HALVES = """
import sys
import epctx_core as epctx
with epctx.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"]) as session:
    print(session.get_outputs()[0].shape)
"""


def test_halves_whose_batch_is_moved_before_a_product_do_not_end_the_process(tmp_path):
    halves = TensorProto.FLOAT16
    made = model(
        [
            node("Transpose", ["x"], ["moved"], perm=[1, 0, 2]),
            node("MatMul", ["moved", "w"], ["y"]),
        ],
        [value("x", halves, [2, 3, 8])],
        [value("y", halves, [3, 2, 8])],
        initializers=[numpy_helper.from_array(np.ones((8, 8), np.float16), "w")],
    )
    del made.graph.output[0].type.tensor_type.shape.dim[:]
    made.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(made, tmp_path / "m.onnx")

    child = subprocess.run(
        [sys.executable, "-c", MOVES_THE_BATCH_OF_HALVES, str(tmp_path / "m.onnx")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (child.returncode, child.stderr) == (0, "")


def test_an_optimiser_that_is_not_known_here_costs_a_level_and_no_more(monkeypatch):
    monkeypatch.setattr(optimiser, "_TO_CONTRIB", ("NoSuchFusion",))
    source = opened(convolution_and_normalisation())
    relu = source.proto.graph.node.add(op_type="Relu", input=["n"], output=["r"])
    source.proto.graph.node[2].input[0] = "r"
    nodes = [source.proto.graph.node[i] for i in (0, 1, 3, 2)]
    assert nodes[2] == relu
    ordered = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del source.proto.graph.node[:]
    source.proto.graph.node.extend(ordered)

    found = optimize(source.proto, source.weights, EXTENDED, ONNX_ONLY).model

    assert operators(found) == ["Conv", "Relu", "MatMul"]


def test_the_result_is_the_same_each_time():
    source = opened(convolution_and_normalisation())

    first, again = (
        optimize(source.proto, source.weights, EXTENDED, ONNX_ONLY) for _ in range(2)
    )

    assert first.model.SerializeToString(
        deterministic=True
    ) == again.model.SerializeToString(deterministic=True)
    assert {n: w.digest for n, w in first.weights.items()} == {
        n: w.digest for n, w in again.weights.items()
    }


def test_weights_inside_control_flow_stay_inside():
    inner = onnx.helper.make_graph(
        [node("Add", ["x", "large"], ["t"])],
        "inner",
        [],
        [value("t", shape=[400])],
        [drawn("large", 400)],
    )
    other = onnx.helper.make_graph(
        [node("Neg", ["x"], ["e"])], "other", [], [value("e", shape=[400])]
    )
    made = model(
        [node("If", ["c"], ["y"], then_branch=inner, else_branch=other)],
        [value("c", TensorProto.BOOL, []), value("x", shape=[400])],
        [value("y", shape=[400])],
        opsets=[("", 17)],
        ir_version=8,
    )
    source = opened(made)

    found = optimize(source.proto, source.weights, BASIC, ONNX_ONLY)

    x = np.ones(400, np.float32)
    prepared = CpuEngine(EnginePolicy()).prepare(found.model, {})
    assert np.array_equal(
        prepared.run([np.array(True), x])[0],
        x + numpy_helper.to_array(inner.initializer[0]),
    )


def test_a_model_that_would_need_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr(optimiser, "REWRITE_LIMIT", 1000)
    source = opened(convolution_and_normalisation())

    with pytest.raises(
        NotImplementedByProvider, match="bytes of weights would be rewritten"
    ):
        optimize(source.proto, source.weights, BASIC, ONNX_ONLY)


def test_a_model_that_onnxruntime_refuses_is_refused_with_its_words():
    source = opened(
        model(
            [node("Nothing", ["x"], ["y"], domain="nobody")],
            ["x"],
            ["y"],
            opsets=[("nobody", 1)],
        )
    )

    with pytest.raises(
        NotImplementedByProvider, match=r"onnxruntime refuses it: .*nobody"
    ):
        optimize(source.proto, source.weights, BASIC, ONNX_ONLY)


def test_an_engine_without_an_optimiser_optimises_nothing(caplog):
    source = opened(gelu())
    engine = CpuEngine(EnginePolicy(engine="onnx.reference"))

    with caplog.at_level(logging.INFO, logger="epctx.engines"):
        assert engine.optimize(source.proto, source.weights) is None

    assert "has no optimiser" in caplog.text
