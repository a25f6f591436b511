"""Uses of `IOBinding`."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from onnx import TensorProto
from uses import models
from uses.recording import caught, plain, uses
from uses.sessions import session

X = models.X


@uses("IOBinding.bind_cpu_input", "IOBinding.bind_output")
def bound_to_arrays():
    opened = session()
    binding = opened.io_binding()
    given = X.copy()
    binding.bind_cpu_input("x", given)
    binding.bind_output("y")
    opened.run_with_iobinding(binding)
    first = binding.copy_outputs_to_cpu()
    given[:] = 1
    opened.run_with_iobinding(binding)
    binding.bind_output("y", "cpu", 0)
    opened.run_with_iobinding(binding)
    return plain([first, binding.copy_outputs_to_cpu()])


@uses("IOBinding.bind_input")
def bound_to_memory():
    opened = session()
    given, made = np.ascontiguousarray(X), np.empty((2, 3), np.float32)
    address = ort.OrtValue.ortvalue_from_numpy(given)
    results = []
    for kind in (np.float32, TensorProto.FLOAT):
        made[:] = 0
        binding = opened.io_binding()
        binding.bind_input(
            name="x",
            device_type="cpu",
            device_id=0,
            element_type=kind,
            shape=given.shape,
            buffer_ptr=given.ctypes.data,
        )
        binding.bind_output(
            name="y",
            device_type="cpu",
            device_id=0,
            element_type=kind,
            shape=made.shape,
            buffer_ptr=made.ctypes.data,
        )
        opened.run_with_iobinding(binding)
        results.append(made.copy())
    binding.bind_input("x", "cpu", 0, np.float32, [2, 4], address.data_ptr())
    opened.run_with_iobinding(binding)
    return plain([results, made])


@uses("IOBinding.bind_ortvalue_input", "IOBinding.bind_ortvalue_output")
def bound_to_values():
    opened = session()
    x = ort.OrtValue.ortvalue_from_numpy(X.copy())
    y = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding = opened.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    opened.run_with_iobinding(binding)
    first = y.numpy().copy()
    x.update_inplace(np.zeros((2, 4), np.float32))
    opened.run_with_iobinding(binding)
    shared = binding.get_outputs()[0].data_ptr() == y.data_ptr()
    return [plain(first), plain(y.numpy()), shared]


@uses("IOBinding.bind_ortvalue_output", case="an output as the next input")
def loop_over_bindings():
    opened = session(models.two_outputs())
    binding = opened.io_binding()
    binding.bind_cpu_input("b", np.ones((2, 2), np.float32))
    state = ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 2), np.float32))
    for _ in range(3):
        binding.bind_ortvalue_input("a", state)
        binding.bind_output("sum")
        opened.run_with_iobinding(binding)
        state = binding.get_outputs()[0]
    return plain(state.numpy())


@uses("IOBinding.get_outputs", "IOBinding.copy_outputs_to_cpu")
def outputs():
    opened = session(models.two_outputs())
    binding = opened.io_binding()
    a, b = np.full((2, 2), 5, np.float32), np.eye(2, dtype=np.float32)
    binding.bind_cpu_input("a", a)
    binding.bind_cpu_input("b", b)
    for name in ("difference", "sum"):
        binding.bind_output(name)
    opened.run_with_iobinding(binding)
    values = binding.get_outputs()
    return [
        [[v.data_type(), v.shape(), plain(v.numpy())] for v in values],
        plain(binding.copy_outputs_to_cpu()),
    ]


@uses("IOBinding.get_outputs", case="lengths that change")
def outputs_of_changing_lengths():
    opened = session()
    binding = opened.io_binding()
    results = []
    for rows in (1, 2, 2):
        binding.bind_cpu_input("x", np.ascontiguousarray(X[:rows]))
        binding.bind_output("y")
        opened.run_with_iobinding(binding)
        results.append(binding.get_outputs()[0].numpy().copy())
    return plain(results)


@uses("IOBinding.get_outputs_as_ortvaluevector")
def outputs_as_vector():
    opened = session()
    binding = opened.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    opened.run_with_iobinding(binding)
    vector = binding.get_outputs_as_ortvaluevector()
    return [len(vector), plain(ort.OrtValue(vector[0]).numpy())]


@uses("IOBinding.clear_binding_inputs", "IOBinding.clear_binding_outputs")
def cleared():
    opened = session(models.two_outputs())
    binding = opened.io_binding()
    for name in ("a", "b"):
        binding.bind_cpu_input(name, np.ones((2, 2), np.float32))
    binding.bind_output("sum")
    binding.clear_binding_outputs()
    binding.bind_output("difference")
    opened.run_with_iobinding(binding)
    shown = plain(binding.copy_outputs_to_cpu())
    binding.clear_binding_inputs()
    return [shown, caught(opened.run_with_iobinding, binding)]


@uses("IOBinding.synchronize_inputs", "IOBinding.synchronize_outputs")
def synchronized():
    opened = session()
    binding = opened.io_binding()
    binding.bind_cpu_input("x", X)
    binding.synchronize_inputs()
    binding.bind_output("y")
    opened.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return plain(binding.copy_outputs_to_cpu())


@uses("IOBinding.bind_output", case="without a type for its memory")
def memory_without_type():
    return caught(session().io_binding().bind_output, "y", buffer_ptr=64)


@uses("IOBinding.bind_output", case="a device of nobody")
def device_of_nobody():
    return [
        caught(session().io_binding().bind_output, "y", "toaster"),
        caught(
            session().io_binding().bind_input, "x", "toaster", 0, np.float32, [1], 64
        ),
    ]


@uses("IOBinding.bind_output", case="a device that is not here")
def device_that_is_not_here():
    def run():
        opened = session()
        binding = opened.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("y", "cuda", 0)
        opened.run_with_iobinding(binding)

    return caught(run)


@uses("IOBinding.bind_cpu_input", case="a name that the model has not")
def unknown_names():
    binding = session().io_binding()
    return [
        caught(binding.bind_cpu_input, "z", X),
        caught(binding.bind_ortvalue_input, "z", ort.OrtValue.ortvalue_from_numpy(X)),
    ]


@uses("IOBinding.bind_output", case="a name that the model has not")
def unknown_output():
    def run():
        opened = session()
        binding = opened.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("z")
        opened.run_with_iobinding(binding)

    return caught(run)


@uses("IOBinding.bind_cpu_input", case="a wrong type or shape")
def wrong_inputs():
    def run(value):
        opened = session()
        binding = opened.io_binding()
        binding.bind_cpu_input("x", value)
        binding.bind_output("y")
        opened.run_with_iobinding(binding)

    return [
        caught(run, X.astype(np.float64)),
        caught(run, np.ascontiguousarray(X[:, :3])),
        caught(run, "text"),
    ]


@uses("IOBinding.bind_ortvalue_output", case="a wrong shape")
def output_of_a_wrong_shape():
    opened = session()
    binding = opened.io_binding()
    binding.bind_cpu_input("x", X)
    wrong = ort.OrtValue.ortvalue_from_shape_and_type([5, 3], np.float32)
    binding.bind_ortvalue_output("y", wrong)
    return caught(opened.run_with_iobinding, binding)
