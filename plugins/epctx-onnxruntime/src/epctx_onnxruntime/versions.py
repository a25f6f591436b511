"""Properties of the installed onnxruntime: versions that it reads, and its layout on
this CPU.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

from epctx_onnxruntime.real import onnxruntime

if TYPE_CHECKING:
    from onnx import ModelProto

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


@cache
def block_size() -> int:
    """Return the channels in a block of onnxruntime's layout on this CPU; 0 without
    such a layout.
    """
    size = 0

    def look(
        _name: str, value: onnxruntime.OrtValue, _info: object
    ) -> onnxruntime.OrtExternalInitializerInfo | None:
        nonlocal size
        shape = value.shape()
        if len(shape) == 4:  # noqa: PLR2004 - that of a filter
            size = shape[0] if shape[0] > 1 else 0
        return None

    weight = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")
    values = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 1, 2, 2])
        for n in "xy"
    ]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "probe",
        values[:1],
        values[1:],
        [weight],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    try:
        onnxruntime.ModelCompiler(
            quiet_options(),
            model.SerializeToString(),
            graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
            get_initializer_location_func=look,
        ).compile_to_bytes()
    except Exception:  # noqa: BLE001 - onnxruntime's exceptions have no base; without an answer there is no layout
        return 0
    return size


def layout_of_this_cpu() -> str:
    """Return the name of the layout on this CPU: engine and block size."""
    return f"{NAME} nchwc{block_size()}"
