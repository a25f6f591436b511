"""Programs of a container, imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_core.errors import InvalidGraph
from epctx_openvino.native import core, import_openvino, shorten
from epctx_openvino.running import RunnableModel

if TYPE_CHECKING:
    from epctx_core.plugin import ContextNode
    from epctx_openvino.container import Blob


def import_program(node: ContextNode, blob: Blob, device: str, config: dict[str, Any]) -> RunnableModel:
    """Import a program from where it lies; the result keeps it mapped.

    Raises:
        InvalidGraph: OpenVINO refuses it, or its inputs and outputs are not the node's.
    """
    package = import_openvino()
    data = np.frombuffer(blob.data, np.uint8)
    try:
        # A tensor over the bytes: OpenVINO reads weights from there.
        model = core().import_model(package.Tensor(data, data.shape, package.Type.u8), device, config)
        return RunnableModel(model, node.inputs, node.outputs, data)
    except (RuntimeError, ValueError, TypeError) as error:
        raise InvalidGraph(
            f"OpenVINO refuses the program of the node {node.name!r}: {shorten(error)}",
            node=node.name,
            hint="It imports only what the same version compiled for the same device. Compile the model again.",
        ) from error
