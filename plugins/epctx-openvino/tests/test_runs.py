"""Runs: open dimensions, types, arrays of the caller, and many threads."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import FLOAT, INT64, model_of, single, two_partitions
from support.contract_eps import one_at_a_time

import epctx_core as epctx


def matrices(rows, seed=0):
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(
        (rows, 32), dtype=np.float32
    )


def test_one_compile_runs_at_many_lengths(harness, compile_into):
    model = two_partitions(rows="n")
    path, _ = compile_into(harness, model)
    reference = epctx.InferenceSession(
        model, registry=epctx.Registry(entry_points=False)
    )

    with harness.session(path) as session:
        for rows in (3, 1, 17, 0, 3):
            x = matrices(rows, rows)
            np.testing.assert_allclose(
                session.run(None, {"x": x})[0],
                reference.run(None, {"x": x})[0],
                rtol=1e-4,
                atol=1e-4,
            )


def test_results_whose_number_only_the_run_knows_have_their_length(harness):
    model = single("NonZero", {"x": (FLOAT, ["n"])}, {"y": (INT64, [1, "m"])})
    x = np.array([0, 1, 0, 2, 3], np.float32)

    assert harness.run(model, {"x": x})[0].tolist() == [[1, 3, 4]]
    assert harness.run(model, {"x": x[:1]})[0].shape == (1, 0)


@pytest.mark.parametrize(
    ("elem_type", "dtype"),
    [
        (TensorProto.FLOAT, np.float32),
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.INT32, np.int32),
        (TensorProto.INT8, np.int8),
        (TensorProto.UINT8, np.uint8),
        (TensorProto.BOOL, np.bool_),
    ],
)
@pytest.mark.parametrize("shape", [[], [3], [2, 0], ["n", 2]])
def test_types_and_shapes_pass_through_unchanged(harness, elem_type, dtype, shape):
    model = single("Transpose", {"x": (elem_type, shape)}, {"y": (elem_type, None)})
    lengths = [3 if length == "n" else length for length in shape]
    x = np.arange(1, 1 + np.prod(lengths)).reshape(lengths).astype(dtype)

    (y,) = harness.run(model, {"x": x})

    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x.T)


@pytest.fixture
def compiled(harness):
    """Give one compiled partition as the core has it, with a fixed and an open
    length.
    """

    def make(length):
        model = single(
            "Relu", {"x": (FLOAT, [length, 32])}, {"y": (FLOAT, [length, 32])}
        )
        stepwise, calls = one_at_a_time(harness)
        sessions.append(stepwise.session(model))
        return calls[0].compiled

    sessions = []
    yield make
    for session in sessions:
        session.close()


@pytest.mark.parametrize("length", [4, "n"])
def test_results_are_written_into_the_callers_arrays(compiled, length):
    x, y = matrices(4), np.full((4, 32), 9, np.float32)

    results = compiled(length).run([x], [y])

    assert results[0] is y
    np.testing.assert_array_equal(y, np.maximum(x, 0))


@pytest.mark.parametrize("length", [4, "n"])
def test_an_array_of_another_shape_is_an_error_and_the_next_run_works(compiled, length):
    run = compiled(length).run

    with pytest.raises(RuntimeError):
        run([matrices(4)], [np.empty((5, 32), np.float32)])

    np.testing.assert_array_equal(run([matrices(4)])[0], np.maximum(matrices(4), 0))


@pytest.mark.parametrize("length", [4, "n"])
def test_after_a_run_nothing_refers_to_the_callers_arrays(compiled, length):
    run = compiled(length).run
    x, y = matrices(4), np.empty((4, 32), np.float32)
    seen = [weakref.ref(x), weakref.ref(y)]

    run([x], [y])
    made = run([x])[0]
    seen.append(weakref.ref(made))
    del x, y, made
    gc.collect()

    assert [each() for each in seen] == [None, None, None]


@pytest.mark.parametrize("length", [4, "n"])
def test_a_result_is_the_callers_and_no_later_run_changes_it(compiled, length):
    run = compiled(length).run
    first = run([matrices(4, 1)])[0]
    before = first.copy()

    run([matrices(4, 2)])

    np.testing.assert_array_equal(first, before)


@pytest.mark.parametrize("streams", [1, 2])
def test_many_threads_run_at_once(harness_with, compile_into, streams):
    harness = harness_with(num_streams=str(streams))
    path, _ = compile_into(harness, two_partitions(rows="n"))
    with harness.session(path) as session, ThreadPoolExecutor(8) as pool:
        alone = [session.run(None, {"x": matrices(1 + i % 5, i)})[0] for i in range(40)]
        together = list(
            pool.map(
                lambda i: session.run(None, {"x": matrices(1 + i % 5, i)})[0], range(40)
            )
        )

    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_input_that_openvino_drops_is_still_an_input(harness):
    """The frontend resolves the length of an input by its type, and drops the input."""
    model = model_of(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Cast", ["s"], ["f"], to=FLOAT),
            helper.make_node("Add", ["f", "y"], ["z"]),
        ],
        {"x": (FLOAT, [5, 7]), "y": (FLOAT, [2])},
        {"z": (FLOAT, [2])},
    )
    x, y = np.zeros((5, 7), np.float32), np.ones(2, np.float32)

    assert harness.run(model, {"x": x, "y": y})[0].tolist() == [6, 8]


def test_a_mask_that_nobody_reads_does_not_cut_a_network(harness, compile_into):
    """ONNX infers no shape for it at these opsets."""
    model = model_of(
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("Dropout", ["r"], ["d", "mask"], ratio=0.5),
            helper.make_node("Neg", ["d"], ["y"]),
        ],
        {"x": (FLOAT, [2])},
        {"y": (FLOAT, [2])},
        opset=9,
    )

    _, report = compile_into(harness, model)

    assert report.refusals == ()
    assert len(report.partitions) == 1
    x = np.array([-1, 2], np.float32)
    assert harness.run(model, {"x": x})[0].tolist() == [0, -2]


def test_a_ratio_that_only_a_run_knows_does_not_cut_a_network(harness, compile_into):
    # Without training a Dropout ignores it.
    model = model_of(
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("Dropout", ["r", "ratio"], ["d"]),
            helper.make_node("Neg", ["d"], ["y"]),
        ],
        {"x": (FLOAT, [2]), "ratio": (FLOAT, [])},
        {"y": (FLOAT, [2])},
    )

    _, report = compile_into(harness, model)

    assert report.refusals == ()
    given = {"x": np.array([-1, 2], np.float32), "ratio": np.array(0.5, np.float32)}
    assert harness.run(model, given)[0].tolist() == [0, -2]


@pytest.mark.parametrize("op_type", ["Dropout", "Sum", "Max", "Mean"])
def test_a_result_that_is_an_input_is_a_copy_and_leaves_the_others_alone(
    harness, op_type
):
    """OpenVINO drops the operator, and has one tensor for input and result."""
    model = model_of(
        [
            helper.make_node(op_type, ["x"], ["same"]),
            helper.make_node("Relu", ["x"], ["y"]),
        ],
        {"x": (FLOAT, ["n"])},
        {"same": (FLOAT, ["n"]), "y": (FLOAT, ["n"])},
    )
    x = np.array([-1, 2], np.float32)

    with harness.session(model) as session:
        for _ in range(2):
            same, y = session.run(None, {"x": x})
            assert (same.tolist(), y.tolist()) == ([-1, 2], [0, 2])
            assert not np.shares_memory(same, x)
