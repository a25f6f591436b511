"""Weights that stay outside of a model: its initializers name a location in their place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onnx import TensorProto

if TYPE_CHECKING:
    from onnx import TensorProto as Tensor

LOCATION = "epctx-weight"
"""The location that a detached initializer carries."""

PLACEHOLDER = Path(__file__).with_name(LOCATION)
"""An empty file, which has to exist: onnxruntime refuses a model whose weights name a file that does not exist, even
where it is given their bytes and never reads it."""

INLINE_LIMIT = 1024
"""Weights up to this many bytes stay in a model."""


def is_detached(tensor: Tensor) -> bool:
    """Whether an initializer's data is outside of the model."""
    return tensor.data_location == TensorProto.EXTERNAL
