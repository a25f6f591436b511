"""Scan with an EP's work in its body, on all ways."""

from __future__ import annotations

import numpy as np
import pytest
from support.agreement_of_routes import agreeing, compiled, loaded, model_of
from support.engine_eps import Alpha, Beta

import epctx_core as epctx

STATE = np.array([1, -2], np.float32)


def sequence(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_states_and_slices_go_through_the_body(tmp_path):
    model = model_of(
        """agraph (float[2] s, float[n, 2] x) => (float[2] t, float[n, 2] y) {
            t, y = Scan <num_scan_inputs = 1,
                body = b (float[2] a, float[2] v) => (float[2] c, float[2] d) { c = Add(a, v)  d = Relu(c) }
            > (s, x)
        }"""
    )

    report = agreeing(
        model, [{"s": STATE, "x": sequence(n, 2)} for n in (1, 5)], tmp_path
    )

    assert [p.operators for p in report.partitions] == [("Add", "Relu")]


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("direction", [0, 1])
def test_axes_and_directions_of_inputs_and_outputs(tmp_path, axis, direction):
    model = model_of(
        f"""agraph (float[3, 3, 3] x, float[3, 3, 3] z, float[3, 3] s)
            => (float[3, 3] t, float[3, 3, 3] p, float[3, 3, 3] q) {{
            t, p, q = Scan <num_scan_inputs = 2,
                scan_input_axes = [{axis}, 0], scan_input_directions = [{direction}, 1],
                scan_output_axes = [1, {axis}], scan_output_directions = [0, {direction}],
                body = b (float[3, 3] a, float[3, 3] v, float[3, 3] w)
                    => (float[3, 3] c, float[3, 3] d, float[3, 3] e) {{
                    f = Add(v, w)  c = Add(a, f)  d = Neg(f)  e = Mul(c, w)
                }}
            > (s, x, z)
        }}"""
    )
    feed = {
        "x": sequence(3, 3, 3),
        "z": sequence(3, 3, 3, seed=1),
        "s": sequence(3, 3, seed=2),
    }

    agreeing(model, [feed], tmp_path, [Alpha, Beta])


def test_several_states_scalars_and_outer_values(tmp_path):
    model = model_of(
        """agraph (float[2] s, float r, float[n] x, float[2] outer) => (float[2] t, float u, float[n] y)
        <float[2] w = {3, 4}> {
            far = Sigmoid(outer)
            t, u, y = Scan <num_scan_inputs = 1,
                body = b (float[2] a, float k, float v) => (float[2] c, float m, float d) {
                    e = Add(a, far)
                    g = Mul(e, w)
                    c = Add(g, v)
                    m = Add(k, v)
                    d = Neg(m)
                }
            > (s, r, x)
        }"""
    )
    feed = {
        "s": STATE,
        "r": np.array(0.5, np.float32),
        "x": sequence(4),
        "outer": STATE * 2,
    }

    agreeing(model, [feed], tmp_path, [Alpha, Beta])


def test_a_scan_without_states_over_strings_and_numbers(tmp_path):
    model = model_of(
        """agraph (string[n] s, float[n, 2] x) => (string[n] t, float[n, 2] y) {
            t, y = Scan <num_scan_inputs = 2,
                body = b (string a, float[2] v) => (string c, float[2] d) { c = StringConcat(a, a)  d = Relu(v) }
            > (s, x)
        }"""
    )
    feed = {"s": np.array(["a", "bc", ""], object), "x": sequence(3, 2)}

    agreeing(model, [feed], tmp_path)


def test_a_sequence_of_no_elements_leaves_the_states_and_gives_no_rows(tmp_path):
    model = model_of(
        """agraph (float[2] s, float[n, 2] x) => (float[2] t, float[n, 2] y) {
            t, y = Scan <num_scan_inputs = 1,
                body = b (float[2] a, float[2] v) => (float[2] c, float[2] d) { c = Add(a, v)  d = Relu(c) }
            > (s, x)
        }"""
    )

    report = compiled(model, tmp_path / "m.onnx")

    # onnxruntime fails here.
    with loaded(report.output) as session:
        given = STATE.copy()
        state, rows = session.run(None, {"s": given, "x": sequence(0, 2)})
    np.testing.assert_array_equal(state, STATE)
    assert rows.shape == (0, 2)
    assert rows.dtype == np.float32
    state[:] = 99
    np.testing.assert_array_equal(given, STATE)


def test_scan_inputs_of_different_lengths_are_refused(tmp_path):
    model = model_of(
        """agraph (float[n, 2] x, float[m, 2] z) => (float[k, 2] y) {
            y = Scan <num_scan_inputs = 2,
                body = b (float[2] v, float[2] w) => (float[2] d) { d = Add(v, w) }
            > (x, z)
        }"""
    )
    report = compiled(model, tmp_path / "m.onnx")

    with (
        loaded(report.output) as session,
        pytest.raises(epctx.RuntimeException, match=r"different lengths: \[2, 3\]"),
    ):
        session.run(None, {"x": sequence(2, 2), "z": sequence(3, 2)})


def test_a_scan_of_version_8_stays_whole(tmp_path):
    model = model_of(
        """agraph (float[1, 2] s, float[1, n, 2] x) => (float[1, 2] t, float[1, n, 2] y) {
            t, y = Scan <num_scan_inputs = 1,
                body = b (float[2] a, float[2] v) => (float[2] c, float[2] d) { c = Add(a, v)  d = Relu(c) }
            > ( , s, x)
        }"""
    )
    model.opset_import[0].version = 8
    model.ir_version = 4

    report = agreeing(model, [{"s": STATE[None], "x": sequence(1, 3, 2)}], tmp_path)

    assert report.partitions == ()
