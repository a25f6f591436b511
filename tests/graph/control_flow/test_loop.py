"""Loop with an EP's work in its body, on all ways."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from support.agreement_of_routes import (
    Everything,
    agreeing,
    assert_same,
    compiled,
    loaded,
    model_of,
)
from support.engine_eps import Alpha, Beta
from support.onnxruntime_results import onnxruntime_result
from support.small_models import saved

import epctx_core as epctx

X = np.array([-1.5, 2.5], np.float32)

GROWING = """agraph (int64 n, bool go, float[2] x) => (float[2] y, float[k, 2] rows, int64[k] counts) {
    limit = Constant <value = int64 {3}> ()
    y, rows, counts = Loop (n, go, x) <
        body = b (int64 i, bool before, float[2] c) => (bool after, float[2] d, float[2] row, int64 i2) {
            after = Less (i, limit)
            e = Relu(c)
            d = Add(e, x)
            row = Neg(d)
            i2 = Identity(i)
        }
    >
}"""


@pytest.mark.parametrize("given", [("n", "go"), ("n", ""), ("", "go"), ("", "")])
def test_a_loop_goes_on_while_its_trip_count_and_its_condition_let_it(tmp_path, given):
    model = model_of(GROWING)
    model.graph.node[1].input[:2] = given
    feeds = [
        {"n": np.array(n, np.int64), "go": np.array(go), "x": X}
        for n in (0, 1, 2, 9)
        for go in (True, False)
    ]

    report = agreeing(model, feeds, tmp_path)

    assert [p.operators for p in report.partitions] == [("Relu", "Add")]


def test_without_iterations_rows_have_the_declared_shape_and_type_and_states_are_copies(
    tmp_path,
):
    model = model_of(
        """agraph (int64 n, float[2] x) => (float[2] y, float[k, 2, m] f, int32[k] i, bool[k, 1] b) {
            y, f, i, b = Loop (n, , x) <
                body = b (int64 it, bool before, float[2] c)
                    => (bool before, float[2] d, float[2, m] f1, int32 i1, bool[1] b1)
                    <int64[2] shape = {2, -1}, int64[1] one = {1}> {
                        d = Add(c, c)
                        f1 = Reshape(d, shape)
                        i1 = Cast <to = 6> (it)
                        b0 = Cast <to = 9> (it)
                        b1 = Reshape(b0, one)
                }
            >
        }"""
    )
    feeds = [{"n": np.array(n, np.int64), "x": X} for n in (0, 2)]

    agreeing(model, feeds, tmp_path)

    with loaded(tmp_path / "far" / "m_ctx.onnx") as session:
        given = X.copy()
        result = session.run(["y"], {"n": np.array(0, np.int64), "x": given})[0]
        result[:] = 99
    np.testing.assert_array_equal(given, X)


def test_carried_values_may_change_their_shape(tmp_path):
    model = model_of(
        """agraph (int64 n, float[a, 2] x) => (float[b, 2] y) {
            y = Loop (n, , x) <
                body = b (int64 it, bool before, float[c, 2] c) => (bool before, float[d, 2] d) {
                    e = Add(c, c)
                    d = Concat <axis = 0> (c, e)
                }
            >
        }"""
    )
    feeds = [{"n": np.array(n, np.int64), "x": X[None]} for n in (0, 1, 4)]

    agreeing(model, feeds, tmp_path)


def test_carried_values_may_be_sequences(tmp_path):
    model = model_of(
        """agraph (int64 n, float[2] x) => (seq(float[2]) s, float[2] y) {
            empty = SequenceEmpty ()
            s, y = Loop (n, , empty, x) <
                body = b (int64 it, bool before, seq(float[2]) s0, float[2] c)
                    => (bool before, seq(float[2]) s1, float[2] d) {
                    d = Add(c, x)
                    s1 = SequenceInsert(s0, d)
                }
            >
        }"""
    )
    feeds = [{"n": np.array(n, np.int64), "x": X} for n in (0, 1, 3)]

    agreeing(model, feeds, tmp_path)


def test_carried_values_may_be_strings(tmp_path):
    model = model_of(
        """agraph (int64 n, string[2] s, float[2] x) => (string[2] t, float[2] y, string[k, 2] rows) {
            t, y, rows = Loop (n, , s, x) <
                body = b (int64 it, bool before, string[2] s0, float[2] c)
                    => (bool before, string[2] s1, float[2] d, string[2] row) {
                    d = Add(c, x)
                    s1 = StringConcat(s0, s)
                    row = Identity(s1)
                }
            >
        }"""
    )
    feeds = [
        {"n": np.array(n, np.int64), "s": np.array(["a", "bc"], object), "x": X}
        for n in (0, 1, 3)
    ]

    agreeing(model, feeds, tmp_path)


def test_a_body_may_hand_through_its_inputs_and_give_its_initializers(tmp_path):
    model = model_of(
        """agraph (int64 n, float[2] x, float[2] z) => (float[2] p, float[2] q, float[k, 2] r) {
            p, q, r = Loop (n, , x, z) <
                body = b (int64 it, bool before, float[2] c, float[2] d)
                    => (bool before, float[2] d, float[2] e, float[2] w) <float[2] w = {1, 2}> {
                    e = Add(c, d)
                }
            >
        }"""
    )
    feeds = [{"n": np.array(n, np.int64), "x": X, "z": X * 3} for n in (0, 1, 4)]

    report = agreeing(model, feeds, tmp_path)

    assert len(report.partitions) == 1


def test_an_iteration_number_handed_through_is_that_of_its_iteration(tmp_path):
    model = model_of(
        """agraph (int64 n, float[2] x) => (float[2] y, int64[k] i) {
            y, i = Loop (n, , x) <
                body = b (int64 it, bool before, float[2] c) => (bool before, float[2] d, int64 it) { d = Add(c, c) }
            >
        }"""
    )
    report = compiled(model, tmp_path / "m.onnx")

    with loaded(report.output) as session:
        (numbers,) = session.run(["i"], {"n": np.array(3, np.int64), "x": X})

    # onnxruntime counts on in the memory that it has handed out, and gives [1, 2, 3].
    np.testing.assert_array_equal(numbers, [0, 1, 2])


def test_outputs_that_the_node_omits_are_dropped(tmp_path):
    feed = {"n": np.array(3, np.int64), "go": np.array(True), "x": X}
    whole, omitting = model_of(GROWING), model_of(GROWING)
    omitting.graph.node[1].output[1] = ""
    del omitting.graph.output[1]
    expected = onnxruntime_result(saved(whole, tmp_path / "whole.onnx"), feed)
    report = compiled(omitting, tmp_path / "m.onnx")

    with loaded(report.output) as session:
        results = session.run(None, feed)

    assert len(report.partitions) == 1
    assert_same(results, [expected[0], expected[2]])


def test_if_in_a_loop_in_an_if_with_work_at_every_depth(tmp_path):
    model = model_of(
        """agraph (bool c, int64 n, float[2] x) => (float[2] y, float[2] z) <float[2] w = {0.5, -0.5}> {
            top = Relu(x)
            y = If (c) <
                then_branch = t () => (float[2] a) <float[2] tw = {2, 3}> {
                    start = Add(top, tw)
                    a = Loop (n, , start) <
                        body = b (int64 it, bool before, float[2] s) => (bool before, float[2] s2) {
                            two = Constant <value = int64 {2}> ()
                            odd = Mod(it, two)
                            flag = Cast <to = 9> (odd)
                            s2 = If (flag) <
                                then_branch = tt () => (float[2] r) { q = Add(s, w)  m = Neg(q)  r = Mul(m, tw) },
                                else_branch = ee () => (float[2] r) { q = Mul(s, top)  r = Add(q, x) }
                            >
                        }
                    >
                },
                else_branch = e () => (float[2] a) { a = Sub(top, w) }
            >
            z = Neg(y)
        }"""
    )
    feeds = [
        {"c": np.array(c), "n": np.array(n, np.int64), "x": X}
        for c in (True, False)
        for n in (0, 1, 4)
    ]

    report = agreeing(model, feeds, tmp_path, [Alpha, Beta])

    assert len(report.partitions) >= 6


def test_terminate_stops_a_loop_that_would_never_end(tmp_path):
    model = model_of(
        """agraph (float[2] x) => (float[2] y) {
            y = Loop ( , , x) <
                body = b (int64 it, bool before, float[2] c) => (bool before, float[2] d) { d = Relu(c) }
            >
        }"""
    )
    report = compiled(model, tmp_path / "m.onnx")
    options = epctx.RunOptions()
    stopper = threading.Timer(0.2, lambda: setattr(options, "terminate", True))

    with loaded(report.output) as session:
        stopper.start()
        started = time.monotonic()
        with pytest.raises(epctx.RuntimeException, match="terminate"):
            session.run(None, {"x": X}, options)

    assert time.monotonic() - started < 10


def test_an_error_of_an_ep_inside_a_body_names_the_ep_and_its_partition(tmp_path):
    model = model_of(
        """agraph (int64 n, float[a] x, float[b] z) => (float[c] y) {
            y = Loop (n, , x) <
                body = b (int64 it, bool before, float[d] c) => (bool before, float[e] d) { d = Add(c, z) }
            >
        }"""
    )
    report = compiled(model, tmp_path / "m.onnx")

    with (
        loaded(report.output) as session,
        pytest.raises(
            epctx.RuntimeException, match=r"AlphaExecutionProvider .* failed"
        ) as caught,
    ):
        session.run(
            None, {"n": np.array(1, np.int64), "x": X, "z": np.zeros(3, np.float32)}
        )

    assert caught.value.ep == Alpha.name
    assert caught.value.node == report.partitions[0].name


def test_a_value_of_a_body_is_let_go_after_its_last_reader(tmp_path):
    alive = []

    class Watching(Everything):
        name = "WatchingExecutionProvider"

        def _runnable(self, model):
            run = super()._runnable(model)

            def watched(inputs, outputs=None):
                gc.collect()
                alive.append(sum(ref() is not None for ref in refs))
                results = run(inputs, outputs)
                refs.extend(weakref.ref(result) for result in results)
                return results

            return watched if run else None

    refs: list = []
    model = model_of(
        """agraph (int64 n, float[2] x) => (float[2] y) {
            y = Loop (n, , x) <
                body = b (int64 it, bool before, float[2] c) => (bool before, float[2] d) { d = Relu(c) }
            >
        }"""
    )
    report = compiled(model, tmp_path / "m.onnx", Watching)

    with loaded(report.output, Watching) as session:
        session.run(None, {"n": np.array(6, np.int64), "x": X})

    assert max(alive) <= 2
