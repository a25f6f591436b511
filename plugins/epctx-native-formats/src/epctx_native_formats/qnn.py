"""Context binaries of Qualcomm's QNN, as its SDK, AI Hub, Genie and onnxruntime-qnn
write them.

Qualcomm's library libQnnSystem, which the wheel onnxruntime-qnn contains, describes
them without a device. It runs in another process, which calls `qnn_system`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.errors import NotImplementedByProvider
from epctx_native_formats.binaries import NativeBinary

if TYPE_CHECKING:
    from epctx_native_formats.binaries import BinaryReader

_MAGIC = b"\x00\x00\x00\x02"
_WHEEL = "onnxruntime_qnn"
_LIBRARY = "libQnnSystem.so"


def matches(head: bytes) -> bool:
    """Return whether a binary begins as QNN's do."""
    return head.startswith(_MAGIC)


def find_library() -> Path:
    """Return the path of Qualcomm's library.

    Raises:
        NotImplementedByProvider: the wheel is not installed, or lacks it.
    """
    spec = find_spec(_WHEEL)
    folders = (spec.submodule_search_locations or ()) if spec else ()
    for folder in folders:
        if (path := Path(folder, _LIBRARY)).is_file():
            return path
    raise NotImplementedByProvider(
        f"{_LIBRARY}, which reads QNN's context binaries, is not installed.",
        hint="pip install onnxruntime-qnn",
    )


def read(content: memoryview, name: str, reader: BinaryReader) -> NativeBinary:
    """Return the description of a context binary; see `NativeFormat.read`."""
    from epctx_native_formats import qnn_system

    arguments = str(find_library()), reader.share(content), name
    return reader.call(qnn_system.describe, *arguments, name=name, result=NativeBinary)
