"""Properties of the installed onnxruntime, such as the versions that it reads."""

from __future__ import annotations

from onnx import ModelProto

from epctx_onnxruntime.real import onnxruntime

CPU_EP = "CPUExecutionProvider"
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
    content = bytearray()
    compiler.compile_to_stream(content.extend)
    compiled: ModelProto = ModelProto.FromString(bytes(content))
    return compiled


def fit_versions(model: ModelProto) -> None:
    """Lower a model's version numbers in place to those that onnxruntime reads, if that
    changes nothing else.
    """
    imports = (
        model.opset_import,
        *(function.opset_import for function in model.functions),
    )
    if model.ir_version > SURE_IR or any(
        opset.version > SURE_OPSETS.get(opset.domain, opset.version)
        for opsets in imports
        for opset in opsets
    ):
        from epctx_onnxruntime.newest_versions import lower_versions

        lower_versions(model)
