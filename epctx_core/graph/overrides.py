"""Values and lengths that a host sets in place of parts of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.inliner
from onnx import GraphProto, ModelProto, TensorProto

from epctx_core.errors import InvalidArgument, suggestion
from epctx_core.graph.type_table import list_dimensions
from epctx_core.graph.weights import (
    INLINE_LIMIT,
    PACKED_BITS,
    Weight,
    is_detached,
    make_detached_tensor,
    replace_data,
)

if TYPE_CHECKING:
    from epctx_core.graph.model_io import SourceModel
    from epctx_core.graph.weights import Weights
    from epctx_core.options import ModelOverrides


def check_initializers(
    proto: ModelProto, initializers: Mapping[str, np.ndarray]
) -> Weights:
    """Return a host's values as weights; an initializer in a file gets the bytes, so
    that no file is needed.

    Args:
        proto: as it was read; changed in place.
        initializers: name to array.

    Raises:
        InvalidArgument: the model has no such initializer, or one of another type or
            shape.
    """
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    weights: Weights = {}
    for name, array in initializers.items():
        if name not in tensors:
            raise InvalidArgument(
                "add_initializer: the model's main graph has no initializer "
                f"{name!r}.{suggestion(name, tensors)}",
                hint="Pass the value of an input to run.",
            )
        weights[name] = _make_weight(tensors[name], array)
        if is_detached(tensors[name]):
            replace_data(tensors[name], weights[name].make_tensor_proto())
    return weights


def apply_overrides(
    source: SourceModel, overrides: ModelOverrides, weights: Weights
) -> None:
    """Apply values and lengths to a model that was read and checked.

    Raises:
        InvalidArgument: no input has such a dimension, or one gets two lengths.
    """
    for tensor in source.proto.graph.initializer:
        weight = weights.get(tensor.name)
        if weight is not None:
            source.weights[weight.name] = weight
            is_large = weight.nbytes > INLINE_LIMIT
            replace_data(
                tensor,
                make_detached_tensor(weight)
                if is_large
                else weight.make_tensor_proto(),
            )
    _set_lengths(source.proto.graph, overrides)


def digest_overrides(digest: str, overrides: ModelOverrides, weights: Weights) -> str:
    """Return the digest (hex) of a model together with the host's overrides."""
    values = {name: weights[name].digest for name in overrides.initializers}
    lengths = {**overrides.dimensions}, {**overrides.denotations}
    parts = [digest, *(repr(sorted(part.items())) for part in (values, *lengths))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _make_weight(tensor: TensorProto, array: np.ndarray) -> Weight:
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError, ValueError):
        dtype = np.dtype(object)
    if (array.dtype, array.shape) != (dtype, tuple(tensor.dims)):
        raise InvalidArgument(
            f"add_initializer: the value of {tensor.name!r} is "
            f"{array.dtype}{list(array.shape)}; the model's initializer is "
            f"{dtype}{list(tensor.dims)}.",
            hint="Pass an array of the same type and shape.",
        )

    # Types of less than a byte are packed.
    data: bytes | memoryview = (
        onnx.numpy_helper.from_array(array).raw_data
        if tensor.data_type in PACKED_BITS
        else array.reshape(-1).view(np.uint8).data
    )
    return Weight(tensor.name, tensor.data_type, array.shape, data)


def _set_lengths(graph: GraphProto, overrides: ModelOverrides) -> None:
    """Set the lengths of open dimensions, wherever the graph names them."""
    inputs = list_dimensions(graph.input)
    names = {name for dim in inputs for name in (dim.dim_param, dim.denotation)}
    lengths = dict(overrides.dimensions)
    for dimension in inputs:
        name = dimension.dim_param
        length = overrides.denotations.get(dimension.denotation)
        if length is None or dimension.HasField("dim_value"):
            continue
        if not name:
            dimension.dim_value = length
        # The name of an open dimension means the same length everywhere.
        elif lengths.setdefault(name, length) != length:
            raise InvalidArgument(
                f"free dimension override: the dimension {name!r} would get two "
                f"lengths, {lengths[name]} and {length}.",
                hint="Set a length by name or by denotation, not both.",
            )

    kinds = dict.fromkeys(overrides.denotations, "denotation")
    kinds |= dict.fromkeys(overrides.dimensions, "dimension")
    for name, kind in kinds.items():
        if name not in names:
            raise InvalidArgument(
                f"free dimension override: no input of the model has the {kind} "
                f"{name!r}.{suggestion(name, names)}",
                hint="It names an open dimension of an input, as get_inputs shows it.",
            )

    for dimension in list_dimensions([*graph.input, *graph.output, *graph.value_info]):
        if dimension.dim_param in lengths:
            dimension.dim_value = lengths[dimension.dim_param]
