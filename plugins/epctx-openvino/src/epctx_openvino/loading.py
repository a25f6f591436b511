"""Programs of a container, imported."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_core.errors import InvalidGraph
from epctx_openvino.native import (
    import_openvino,
    read_requirements,
    shorten,
    working_core,
)
from epctx_openvino.running import RunnableModel

if TYPE_CHECKING:
    from epctx_core.plugin import ContextNode
    from epctx_openvino.container import Blob

_HINT = (
    "It imports only what the same version compiled for the same device. Compile the "
    "model again."
)
_HEADER = struct.Struct("<8sIQ")
"""Magic of the CPU device's programs, their version, and the length of the text that
follows.
"""
_MAGIC = b"RR_UPCVO"
_LONGEST_TEXT = 1 << 12


def check_program(node: ContextNode, blob: Blob, device: str) -> None:
    """Check what a program says of itself, without importing it.

    Raises:
        InvalidGraph: it is of another version of OpenVINO or for another instruction
            set.
    """
    if bytes(blob.data[: len(_MAGIC)]) != _MAGIC or len(blob.data) < _HEADER.size:
        return
    expected = read_requirements(device).encode()
    _, _, length = _HEADER.unpack(blob.data[: _HEADER.size])
    versions = bytes(
        blob.data[_HEADER.size : _HEADER.size + min(length, _LONGEST_TEXT)]
    )
    if versions != expected:
        raise InvalidGraph(
            f"OpenVINO here imports programs for {expected.decode()!r}, and that of "
            f"the node {node.name!r} is for "
            f"{versions.decode(errors='replace')!r:.200}.",
            node=node.name,
            hint=_HINT,
        )


def import_program(
    node: ContextNode, blob: Blob, device: str, config: dict[str, Any]
) -> RunnableModel:
    """Import a program from where it lies; the result keeps it mapped.

    Raises:
        InvalidGraph: OpenVINO refuses it, or its inputs and outputs are not the node's.
    """
    package = import_openvino()
    data = np.frombuffer(blob.data, np.uint8)
    try:
        # A tensor over the bytes: OpenVINO reads weights from there.
        model = working_core().import_model(
            package.Tensor(data, data.shape, package.Type.u8), device, config
        )
        return RunnableModel(model, node.inputs, node.outputs, data)
    except Exception as error:
        # For damaged programs: of any type, such as UnicodeDecodeError.
        raise InvalidGraph(
            f"OpenVINO refuses the program of the node {node.name!r}: {shorten(error)}",
            node=node.name,
            hint=_HINT,
        ) from error
