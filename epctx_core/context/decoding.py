"""Models of either format as ONNX: a serialized ONNX model, or ONNX Runtime's own format (`.ort`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.context.kernel_types import write_kernel_types
from epctx_core.forwarding import import_installed
from epctx_core.graph.counting import counter
from epctx_core.graph.model_io import is_ort_format, parse_model
from epctx_core.options import InputBudget

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto


def decode_model(data: bytes, path: Path | None, budget: InputBudget | None = None) -> ModelProto:
    """Decode a model of either format.

    Large weights of an `.ort` file are external tensors in that file; those of bytes are copied.

    Args:
        data: the whole file.
        path: where it was read from, None for bytes.
        budget: limits of what an `.ort` file may decode to; None for the defaults. `read_model` counts those of ONNX.

    Raises:
        InvalidGraph: an `.ort` file decodes to more than the budget.
        InvalidProtobuf: neither ONNX nor ONNX Runtime's format, damaged, or of an unknown version.
        PackageMissing: it is in ONNX Runtime's format, and epctx-onnxruntime is not installed.
    """
    if not is_ort_format(data):
        return parse_model(data, path)
    name = path.name if path else "the model given as bytes"
    reader = import_installed(
        "epctx_onnxruntime.ort_format", needed_by=f"{name}, which is in ONNX Runtime's own format (.ort),"
    )
    proto: ModelProto
    proto, operators = reader.decode(data, path, counter(len(data), budget or InputBudget(), path))
    write_kernel_types(proto, operators)
    return proto
