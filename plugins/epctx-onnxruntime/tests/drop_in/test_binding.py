"""`OrtValue` and `io_binding` on sessions of epctx."""

from __future__ import annotations

import epctx_onnxruntime as onnxruntime
import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from epctx_onnxruntime import OrtValue
from epctx_onnxruntime.capi import onnxruntime_pybind11_state as native

from epctx_core.errors import InvalidArgument

X = np.array([-1.0, 2.0, 3.0], np.float32)


def session_of(body, inputs="float[n] x", outputs="float[n] y", **arguments):
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 19, "ai.onnx.ml": 3]> g '
        f"({inputs}) => ({outputs}) {{ {body} }}"
    )
    return onnxruntime.InferenceSession(model.SerializeToString(), **arguments)


@pytest.fixture
def doubling():
    return session_of("y = Add (x, x)")


@pytest.fixture
def binding(doubling):
    binding = doubling.io_binding()
    binding.bind_cpu_input("x", X)
    return binding


def test_values_are_inputs_and_outputs_of_runs(doubling):
    value = OrtValue.ortvalue_from_numpy(X)

    (result,) = doubling.run_with_ort_values(["y"], {"x": value})
    (array,) = doubling.run(None, {"x": value})

    assert isinstance(result, OrtValue)
    np.testing.assert_array_equal(result.numpy(), X * 2)
    np.testing.assert_array_equal(array, X * 2)


def test_a_value_of_another_frameworks_tensor_shares_its_memory(doubling):
    tensor = X.copy()
    value = OrtValue.from_dlpack(tensor)
    tensor[0] = 5

    (result,) = doubling.run(None, {"x": value})

    assert result[0] == 10
    np.testing.assert_array_equal(
        np.from_dlpack(doubling.run_with_ort_values(None, {"x": value})[0]), tensor * 2
    )


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        ("bfloat16", X.astype(ml_dtypes.bfloat16)),
        ("float8e4m3fn", X.astype(ml_dtypes.float8_e4m3fn)),
        ("float16", X.astype(np.float16)),
        ("bool", X > 0),
        ("uint8", np.array([1, 2, 255], np.uint8)),
        ("int64", np.array([1, 2, 3])),
        ("double", X.astype(np.float64)),
    ],
)
def test_values_of_any_element_type_go_through_a_session(kind, array):
    session = session_of("y = Identity (x)", f"{kind}[n] x", f"{kind}[n] y")
    element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(array, element)
    written = OrtValue.ortvalue_from_shape_and_type([3], element)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("y", written)

    session.run_with_iobinding(binding)
    (result,) = session.run_with_ort_values(None, {"x": value})

    assert result.element_type() == element
    assert binding.get_outputs() == [written]
    for given in (result, written):
        (copied,) = session.run(None, {"x": given})
        assert copied.tobytes() == array.tobytes()


@pytest.mark.parametrize("eps", [[], ["QNN"], ["OpenVINO"]], ids=str)
def test_arrays_of_results_outlive_their_values(eps):
    session = session_of("y = Add (x, x)", "float[64] x", "float[64] y", providers=eps)
    binding = session.io_binding()
    binding.bind_output("y")
    arrays, expected = [], []
    for number in range(8):
        x = np.full(64, number, np.float32)
        expected += [x * 2] * 3
        (value,) = session.run_with_ort_values(None, {"x": x})
        arrays += [value.numpy(), np.from_dlpack(value)]
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        arrays.append(binding.get_outputs()[0].numpy())
        del value

    np.testing.assert_array_equal(arrays, expected)


def test_a_bound_value_may_be_dropped_by_the_host(doubling):
    binding = doubling.io_binding()
    binding.bind_ortvalue_input(
        "x", OrtValue.ortvalue_from_numpy(np.full(4096, 5, "f"))
    )
    binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(np.zeros(4096, "f")))
    others = [np.full(4096, 100, np.float32) for _ in range(64)]

    doubling.run_with_iobinding(binding)

    assert len(others) == 64
    np.testing.assert_array_equal(
        binding.get_outputs()[0].numpy(), np.full(4096, 10, "f")
    )


def test_an_empty_sequence_has_the_type_of_its_output():
    session = session_of(
        "y = SequenceEmpty <dtype = 7> ()", "float[n] x", "seq(int64[n]) y"
    )

    (value,) = session.run_with_ort_values(None, {"x": X})

    assert value.data_type() == "seq(tensor(int64))"


def test_text_and_sequences_and_maps_are_values_of_results():
    text = session_of("y = Identity (x)", "string[n] x", "string[n] y")
    words = np.array(["a", "ü"], object)
    (value,) = text.run_with_ort_values(None, {"x": words})
    assert value.data_type() == "tensor(string)"
    assert value.numpy().tolist() == ["a", "ü"]
    assert text.run(None, {"x": value})[0].tolist() == ["a", "ü"]

    listing = session_of("y = SequenceConstruct (x, x)", outputs="seq(float[n]) y")
    (value,) = listing.run_with_ort_values(None, {"x": X})
    assert value.is_tensor_sequence()
    reading = session_of("y = SequenceLength (x)", "seq(float[n]) x", "int64 y")
    assert reading.run(None, {"x": value}) == [2]

    zipping = session_of(
        "y = ai.onnx.ml.ZipMap <classlabels_int64s = [4, 5]> (x)",
        "float[n, 2] x",
        "seq(map(int64, float)) y",
    )
    (value,) = zipping.run_with_ort_values(None, {"x": np.ones((3, 2), np.float32)})
    assert value.data_type() == "seq(map(int64,tensor(float)))"


def test_a_bound_output_without_memory_gets_some_and_keeps_it(doubling, binding):
    binding.bind_output("y")
    assert binding.get_outputs() == []

    doubling.run_with_iobinding(binding)
    (first,) = binding.get_outputs()
    binding.bind_cpu_input("x", X + 1)
    doubling.run_with_iobinding(binding)
    (second,) = binding.get_outputs()

    assert second is first
    np.testing.assert_array_equal(first.numpy(), (X + 1) * 2)
    (copied,) = binding.copy_outputs_to_cpu()
    assert copied.ctypes.data != first.data_ptr()
    np.testing.assert_array_equal(copied, first.numpy())


def test_inputs_of_another_length_get_outputs_of_theirs(doubling, binding):
    binding.bind_output("y")
    doubling.run_with_iobinding(binding)
    (first,) = binding.get_outputs()

    binding.bind_cpu_input("x", np.ones(5, np.float32))
    doubling.run_with_iobinding(binding)

    assert binding.get_outputs()[0].shape() == [5]
    np.testing.assert_array_equal(first.numpy(), X * 2)


@pytest.mark.parametrize(
    ("kind", "array"),
    [("float", X), ("bool", np.array([True, False, True])), ("int64", np.arange(3))],
)
def test_a_result_that_the_host_changed_is_bound_as_it_is_then(kind, array):
    session = session_of("y = Identity (x)", f"{kind}[n] x", f"{kind}[n] y")
    binding = session.io_binding()
    binding.bind_cpu_input("x", array)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    (result,) = binding.get_outputs()

    result.update_inplace(array[::-1].copy())
    binding.bind_ortvalue_input("x", result)
    binding.bind_output("y")
    session.run_with_iobinding(binding)

    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), array[::-1])


def test_a_result_that_is_bound_as_the_next_input_is_not_written_over(doubling):
    binding = doubling.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    doubling.run_with_iobinding(binding)
    (first,) = binding.get_outputs()

    binding.bind_ortvalue_input("x", first)
    doubling.run_with_iobinding(binding)

    np.testing.assert_array_equal(first.numpy(), X * 2)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), X * 4)


def test_memory_is_bound_by_its_address(doubling):
    binding = doubling.io_binding()
    written = np.zeros(3, np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, [3], X.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, [3], written.ctypes.data)

    doubling.run_with_iobinding(binding)

    np.testing.assert_array_equal(written, X * 2)


def test_outputs_are_in_the_order_in_which_they_were_bound():
    session = session_of("y = Neg (x) z = Exp (x)", outputs="float[n] y, float[n] z")
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("z")
    binding.bind_output("y")

    session.run_with_iobinding(binding)
    z, y = binding.get_outputs()
    np.testing.assert_array_equal(y.numpy(), -X)
    np.testing.assert_allclose(z.numpy(), np.exp(X), rtol=1e-6)

    binding.clear_binding_outputs()
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert len(binding.get_outputs()) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda b: (b.bind_output("y"), b.copy_outputs_to_cpu()), "no run"),
        (
            lambda b: b.bind_input("x", "cpu", 0, 999, [3], X.ctypes.data),
            "element type 999",
        ),
        (
            lambda b: b.bind_input("x", "cpu", 0, "bogus", [3], X.ctypes.data),
            "element type 'bogus'",
        ),
        (
            lambda b: b.bind_input("x", "cpu", 0, np.float32, [-4], X.ctypes.data),
            "shape",
        ),
        (lambda b: b.bind_input("x", None, 0, np.float32, [3], 1), "device None"),
        (lambda b: b.bind_ortvalue_output("y", None), "NoneType"),
        (lambda b: b.bind_cpu_input("z", X), "no input 'z'"),
        (lambda b: b.bind_output("z"), "no output 'z'"),
        (lambda b: b.bind_output("y", "cuda"), "device cuda:0"),
        (lambda b: b.bind_output("y", buffer_ptr=1), "no type or shape"),
        (
            lambda b: b.bind_input("x", "cpu", 0, onnx.TensorProto.STRING, [1], 1),
            "no addresses",
        ),
    ],
)
def test_a_binding_refuses_what_it_cannot_bind(binding, wrong, said):
    with pytest.raises(InvalidArgument, match=said) as caught:
        wrong(binding)
    assert isinstance(caught.value, native.InvalidArgument)


def test_a_run_refuses_bindings_of_others_and_empty_ones(doubling, binding):
    other = session_of("y = Neg (x)")

    with pytest.raises(InvalidArgument, match="binding of this session"):
        other.run_with_iobinding(binding)
    with pytest.raises(InvalidArgument, match="no output is bound"):
        doubling.run_with_iobinding(binding)
    binding.bind_output("y")
    binding.clear_binding_inputs()
    with pytest.raises(native.InvalidArgument, match=r"'x' .* is missing"):
        doubling.run_with_iobinding(binding)


def test_memory_of_another_type_or_length_is_refused(doubling, binding):
    binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(np.zeros(3)))
    with pytest.raises(native.InvalidArgument, match="memory given for the output"):
        doubling.run_with_iobinding(binding)

    binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(np.zeros(9, "f")))
    with pytest.raises(native.RuntimeException, match=r"9.*3|3.*9"):
        doubling.run_with_iobinding(binding)
