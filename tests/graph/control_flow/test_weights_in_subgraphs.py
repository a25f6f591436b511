"""Weights of bodies and of the graphs around them: large ones, in files, strings,
sparse, overridable.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support.agreement_of_routes import (
    Everything,
    agreeing,
    compiled,
    graphs_of,
    loaded,
    model_of,
    registry_of,
)
from support.engine_eps import Alpha
from support.onnxruntime_results import onnxruntime_result
from support.small_models import saved

import epctx_core as epctx
from epctx_core.plugin import hookimpl

LARGE = np.arange(2000, dtype=np.float32)
X = np.linspace(-1, 1, 2000, dtype=np.float32)
FEEDS = [{"c": np.array(c), "x": X} for c in (True, False)]
READING = """agraph (bool c, float[2000] x) => (float[2000] y) {
    y = If (c) <
        then_branch = t () => (float[2000] a) { b = Add(x, outer)  a = Add(b, inner) },
        else_branch = e () => (float[2000] a) { b = Sub(x, inner)  a = Sub(b, outer) }
    >
}"""


def with_large_weights():
    model = model_of(READING)
    model.graph.initializer.append(numpy_helper.from_array(LARGE, "outer"))
    for number, attribute in enumerate(model.graph.node[0].attribute):
        attribute.g.initializer.append(
            numpy_helper.from_array(LARGE * (number + 2), "inner")
        )
    return model


def test_large_weights_of_bodies_and_around_them_are_taken_or_left(tmp_path):
    agreeing(with_large_weights(), FEEDS, tmp_path)

    main, then_branch, else_branch = graphs_of(tmp_path / "far" / "m_ctx.onnx")
    assert [t.name for t in main.initializer] == ["outer"]
    assert [t.name for t in then_branch.initializer] == []
    assert [t.name for t in else_branch.initializer] == ["inner"]


def test_no_byte_of_a_weight_is_left_where_eps_take_all_its_readers(tmp_path):
    report = compiled(with_large_weights(), tmp_path / "m.onnx", Everything)

    assert LARGE.tobytes() not in report.output.read_bytes()
    assert not [t for graph in graphs_of(report.output) for t in graph.initializer]


def test_an_ep_gets_the_weights_of_a_body_and_of_its_scope_as_views(tmp_path):
    seen = {}

    class Looking(Alpha):
        name = "LookingExecutionProvider"

        @hookimpl
        def compile(self, partitions):
            seen.update(
                {
                    name: w.array()[1]
                    for p in partitions
                    for name, w in p.weights.items()
                }
            )
            return super().compile(partitions)

    compiled(with_large_weights(), tmp_path / "m.onnx", Looking)

    assert seen == {"outer": 1, "inner": 2}


def test_weights_of_bodies_may_lie_in_files(tmp_path):
    model = with_large_weights()
    expected = [
        onnxruntime_result(saved(model, tmp_path / "whole.onnx"), feed)
        for feed in FEEDS
    ]
    for graph in graphs_of(model):
        for tensor in graph.initializer:
            name = f"{graph.name}.weights"
            (tmp_path / name).write_bytes(tensor.raw_data)
            onnx.external_data_helper.set_external_data(tensor, name)
            tensor.ClearField("raw_data")

    report = compiled(model, tmp_path / "m.onnx")
    for path in tmp_path.glob("*.weights"):
        path.unlink()

    with loaded(report.output) as session:
        for feed, (result,) in zip(FEEDS, expected, strict=True):
            np.testing.assert_array_equal(session.run(None, feed)[0], result)


def test_a_body_reads_a_default_that_the_caller_may_override(tmp_path):
    model = model_of(READING)
    model.graph.input.append(
        helper.make_tensor_value_info("outer", onnx.TensorProto.FLOAT, [2000])
    )
    model.graph.initializer.append(numpy_helper.from_array(LARGE, "outer"))
    for attribute in model.graph.node[0].attribute:
        attribute.g.initializer.append(numpy_helper.from_array(LARGE * 2, "inner"))

    agreeing(model, [*FEEDS, *({**feed, "outer": X * 3} for feed in FEEDS)], tmp_path)

    main, *_ = graphs_of(tmp_path / "far" / "m_ctx.onnx")
    assert [t.name for t in main.initializer] == ["outer"]


def test_bodies_read_string_initializers_of_their_scope(tmp_path):
    model = model_of(
        """agraph (bool c, float[2] x) => (float[2] y, string[2] s) {
            y, s = If (c) <
                then_branch = t () => (float[2] a, string[2] t1) { a = Relu(x)  t1 = StringConcat(words, words) },
                else_branch = e () => (float[2] a, string[2] t2) { a = Add(x, x)  t2 = Identity(words) }
            >
        }"""
    )
    words = helper.make_tensor("words", onnx.TensorProto.STRING, [2], [b"one", b"two"])
    model.graph.initializer.append(words)
    feeds = [{"c": np.array(c), "x": X[:2]} for c in (True, False)]

    agreeing(model, feeds, tmp_path)


def test_an_ep_takes_a_node_in_a_body_that_reads_a_sparse_initializer_of_the_scope(
    tmp_path,
):
    model = model_of(
        """agraph (bool c, float[3] x) => (float[3] y) {
            y = If (c) <
                then_branch = t () => (float[3] a) { a = Add(x, few) },
                else_branch = e () => (float[3] a) { a = Tanh(x) }
            >
        }"""
    )
    values = numpy_helper.from_array(np.array([5], np.float32), "few")
    indices = numpy_helper.from_array(np.array([1], np.int64))
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, indices, [3])
    )
    feeds = [{"c": np.array(c), "x": X[:3]} for c in (True, False)]

    agreeing(model, feeds, tmp_path)

    main, *_ = graphs_of(tmp_path / "far" / "m_ctx.onnx")
    assert not main.sparse_initializer


def test_a_weight_of_a_body_whose_bytes_do_not_fit_is_refused_by_name(tmp_path):
    model = with_large_weights()
    model.graph.node[0].attribute[0].g.initializer[0].raw_data = b"\0" * 12
    registry, options = registry_of(Alpha)

    with pytest.raises(epctx.InvalidGraph, match="inner"):
        epctx.InferenceSession(
            saved(model, tmp_path / "m.onnx"), options, registry=registry
        )
