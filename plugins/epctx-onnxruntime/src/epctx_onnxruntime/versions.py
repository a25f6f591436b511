"""Properties of the installed onnxruntime, such as the versions that it reads, and its
options and values as all modules here make them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epctx_core.errors import NotImplementedByProvider
from epctx_core.plugin.protos import ModelProto
from epctx_onnxruntime.real import native, onnxruntime

if TYPE_CHECKING:
    import numpy as np

CPU_EP = "CPUExecutionProvider"
CPU_MEMORY = native.OrtDevice(
    native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0
)
FATAL_ONLY = 4
"""Level of onnxruntime's log without messages that are in its exceptions, too."""
NAME = f"onnxruntime {onnxruntime.__version__}"
"""The engine's name."""
SURE_IR = 10
SURE_OPSETS = {"": 21, "ai.onnx": 21, "ai.onnx.ml": 4}
"""Versions that every supported onnxruntime reads."""


_SHARED_THREADS: list[tuple[int, int]] = []


def share_threads(intra_op_num_threads: int, inter_op_num_threads: int) -> None:
    """Have all later sessions of onnxruntime in this process use threads in common."""
    onnxruntime.set_global_thread_pool_sizes(intra_op_num_threads, inter_op_num_threads)
    _SHARED_THREADS.append((intra_op_num_threads, inter_op_num_threads))


def make_options() -> onnxruntime.SessionOptions:
    """Return new options of a session of onnxruntime."""
    options = onnxruntime.SessionOptions()
    # onnxruntime refuses sessions with threads of their own beside common ones.
    options.use_per_session_threads = not _SHARED_THREADS
    return options


def quiet_options() -> onnxruntime.SessionOptions:
    """Return options of a session that runs nothing: without thread pools and log."""
    options = make_options()
    options.log_severity_level = FATAL_ONLY
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options


def compile_model(compiler: onnxruntime.ModelCompiler) -> ModelProto:
    """Return the model that onnxruntime's compiler makes.

    Its `compile_to_bytes` never frees the memory of the bytes that it returns a copy of
    (measured on 1.31 and 1.32), so they are taken as a stream.
    """
    parts: list[bytes] = []
    compiler.compile_to_stream(parts.append)
    compiled: ModelProto = ModelProto.FromString(b"".join(parts))
    return compiled


def ort_value(array: np.ndarray) -> onnxruntime.OrtValue:
    """Return a value over the memory of an array, which must outlive it.

    Raises:
        NotImplementedByProvider: onnxruntime has no values of its type.
    """
    return onnxruntime.OrtValue(native_value(array), array)


def native_value(array: np.ndarray) -> Any:
    """Return a native value over the memory of an array; see `ort_value`."""
    value = native.OrtValue
    if array.dtype.isbuiltin != 1:
        from onnx import helper

        return value.ortvalue_from_numpy_with_onnx_type(
            array, helper.np_dtype_to_tensor_dtype(array.dtype)
        )
    if array.dtype.kind == "c":
        raise NotImplementedByProvider(
            f"onnxruntime has no values of the type {array.dtype}"
        )
    return value.ortvalue_from_numpy(array, CPU_MEMORY)
