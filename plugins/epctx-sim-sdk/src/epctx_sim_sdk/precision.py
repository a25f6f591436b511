"""Storing float32 weights as float16: what an NPU's half-precision mode does to a
network's numbers.

Changes a graph and its weights before they are laid out. Bytes are converted piece by
piece.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epctx_core.plugin import Extent, TensorView

_FLOAT32 = np.dtype("<f4")
_FLOAT16 = np.dtype("<f2")
_KEEP_FULL = frozenset({"QuantizeLinear", "DequantizeLinear", "Resize", "Upsample"})
"""Their float parameters are scales, which a device holds apart from the data."""


class HalfTensor:
    """A float32 weight seen as float16.

    Finite values too large for float16 are clamped to its range.
    """

    def __init__(self, base: TensorView) -> None:
        self.base = base
        self.name = base.name
        self.source_name: str | None = None
        self.dtype: np.dtype[Any] = _FLOAT16
        self.elem_type: int = onnx.TensorProto.FLOAT16
        self.shape = base.shape
        self.nbytes = base.nbytes // 2
        self.extent: Extent | None = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the float16 bytes."""
        total = hashlib.sha256()
        for chunk in self.chunks():
            total.update(chunk)
        return total.hexdigest()

    def array(self) -> np.ndarray:
        """Return the converted values; a new, read-only array."""
        array = to_half(self.base.array())
        array.flags.writeable = False
        return array

    def chunks(self) -> Iterator[memoryview]:
        """Yield the converted bytes in pieces half as long as those of the float32
        weight.
        """
        rest = b""
        for chunk in self.base.chunks():
            whole = memoryview(rest + bytes(chunk)) if rest else chunk
            usable = len(whole) - len(whole) % _FLOAT32.itemsize
            rest = bytes(whole[usable:])
            values = np.frombuffer(whole[:usable], _FLOAT32)
            yield to_half(values).data.cast("B")


def to_half(values: np.ndarray) -> np.ndarray:
    """Round to float16; infinities and NaN stay, other values are clamped to what
    float16 can hold.
    """
    limit = np.float32(np.finfo(_FLOAT16).max)
    inside = np.clip(values, -limit, limit)
    clamped = np.where(np.isfinite(values), inside, values)
    return np.ascontiguousarray(clamped.astype(_FLOAT16))


def store_as_half(
    model: onnx.ModelProto, weights: dict[str, TensorView]
) -> dict[str, TensorView]:
    """Turn a graph's float32 weights into float16 ones, each with a Cast back to
    float32.

    Scalars stay as they are: they are epsilons and factors that float16 would round to
    nothing. So do the scales of quantisation and resizing.

    Args:
        model: changed in place.
        weights: the views behind those initializers that stand as external tensors.

    Returns:
        The views behind the external initializers of the changed graph.
    """
    graph = model.graph
    keep = {
        name
        for node in graph.node
        if node.op_type in _KEEP_FULL
        for name in node.input[1:]
    }
    result = dict(weights)
    casts = []
    for tensor in graph.initializer:
        if (
            tensor.data_type != onnx.TensorProto.FLOAT
            or not tensor.dims
            or tensor.name in keep
        ):
            continue
        full = tensor.name
        half = f"{tensor.name}:float16"
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            result[half] = HalfTensor(result.pop(full))
            tensor.data_type = onnx.TensorProto.FLOAT16
        else:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(
                    to_half(onnx.numpy_helper.to_array(tensor))
                )
            )
        tensor.name = half
        casts.append(
            onnx.helper.make_node("Cast", [half], [full], to=onnx.TensorProto.FLOAT)
        )
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return result
