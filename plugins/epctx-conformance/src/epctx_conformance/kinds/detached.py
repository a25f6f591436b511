"""Models whose large weights are beside them, as the core gives them to engines and to
graph transformers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onnx import TensorProto, numpy_helper

if TYPE_CHECKING:
    import numpy as np
    import onnx

INLINE = 1024
"""Bytes up to which the core leaves weights in models."""


@dataclass(frozen=True)
class ArrayView:
    """Weight in memory; implements `epctx_core.plugin.TensorView`."""

    name: str
    values: np.ndarray
    elem_type: int
    source_name: str | None = None
    extent: None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        return self.values.shape

    @property
    def nbytes(self) -> int:
        """Length of the bytes."""
        return self.values.nbytes

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes."""
        return hashlib.sha256(self.values.tobytes()).hexdigest()

    def array(self) -> np.ndarray:
        """Return the read-only values."""
        return self.values

    def chunks(self, size: int = 1 << 20) -> Iterator[memoryview]:
        """Yield the bytes in parts."""
        data = memoryview(self.values.tobytes())
        yield from (data[at : at + size] for at in range(0, len(data), size))


def detach(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, ArrayView]]:
    """Return a model whose large weights are beside it, and all of its weights, as the
    core gives them to a transformer.
    """
    detached = deepcopy(model)
    weights = {}
    for tensor in detached.graph.initializer:
        if tensor.data_type == TensorProto.STRING:
            continue
        array = numpy_helper.to_array(tensor).copy()
        array.flags.writeable = False
        weights[tensor.name] = ArrayView(tensor.name, array, tensor.data_type)
        if array.nbytes > INLINE:
            tensor.CopyFrom(
                TensorProto(
                    name=tensor.name,
                    dims=tensor.dims,
                    data_type=tensor.data_type,
                    data_location=TensorProto.EXTERNAL,
                )
            )
            tensor.external_data.add(key="location", value="epctx-weight")
    return detached, weights
