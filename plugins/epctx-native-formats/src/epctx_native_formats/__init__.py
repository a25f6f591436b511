"""Vendors' binaries without an ONNX model around them: what is in them, and ONNX models
that load them.

Owns the formats; the core loads, verifies and publishes. The packages that have an EP
of OpenVINO read and write its container by `epctx_native_formats.openvino`. Names are
imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctx_native_formats.binaries import (
        BinaryReader,
        NativeBinary,
        NativeFormat,
        NativeGraph,
        NativeTensor,
        Quantization,
        describe_binary,
    )
    from epctx_native_formats.wrapping import wrap_binary

__version__ = "0.1.0"
__all__ = [
    "BinaryReader",
    "NativeBinary",
    "NativeFormat",
    "NativeGraph",
    "NativeTensor",
    "Quantization",
    "__version__",
    "describe_binary",
    "wrap_binary",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "wrapping" if name == "wrap_binary" else "binaries"
    return getattr(import_module(f"{__name__}.{home}"), name)
