"""What a host puts in place of what a model says: values of initializers, lengths of open dimensions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto

from epctx_core.errors import InvalidArgument, suggestion
from epctx_core.graph.tensors import is_detached, raw_size
from epctx_core.graph.weights import INLINE_LIMIT, Weight, detached_tensor

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

    from epctx_core.graph.model_io import SourceModel
    from epctx_core.options import ModelOverrides

_Dimension = onnx.TensorShapeProto.Dimension


def given_weights(proto: ModelProto, initializers: Mapping[str, np.ndarray]) -> dict[str, Weight]:
    """Return a host's values as weights; an initializer that lies in a file gets the bytes, so that no file is needed.

    Args:
        proto: as it was read; changed in place.
        initializers: name to array.

    Raises:
        InvalidArgument: the model has no such initializer, or one of another type or shape.
    """
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer} if initializers else {}
    given: dict[str, Weight] = {}
    for name, array in initializers.items():
        if name not in tensors:
            raise InvalidArgument(
                f"add_initializer: the model's main graph has no initializer {name!r}.{suggestion(name, tensors)}",
                hint="The value of an input is given to run.",
            )
        given[name] = _as_weight(tensors[name], array)
        if is_detached(tensors[name]):
            _fill(tensors[name], given[name].tensor_proto())
    return given


def apply_overrides(source: SourceModel, overrides: ModelOverrides, given: Mapping[str, Weight]) -> None:
    """Put values and lengths into a model that was read and checked.

    Raises:
        InvalidArgument: no input has such a dimension, or one gets two lengths.
    """
    for tensor in source.proto.graph.initializer if given else ():
        weight = given.get(tensor.name)
        if weight is not None:
            source.weights[weight.name] = weight
            _fill(tensor, detached_tensor(weight) if weight.nbytes > INLINE_LIMIT else weight.tensor_proto())
    _set_lengths(source.proto.graph, overrides)


def overridden_digest(digest: str, overrides: ModelOverrides, weights: Mapping[str, Weight]) -> str:
    """Return the digest (hex) of a model as it is with what the host put in place; its own without that."""
    if not overrides:
        return digest
    values = {name: weights[name].digest for name in overrides.initializers}
    lengths = {**overrides.dimensions}, {**overrides.denotations}
    parts = [digest, *(repr(sorted(part.items())) for part in (values, *lengths))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _as_weight(tensor: TensorProto, array: np.ndarray) -> Weight:
    found, wanted = (array.dtype, array.shape), (_dtype(tensor), tuple(tensor.dims))
    if found != wanted:
        raise InvalidArgument(
            f"add_initializer: the value of {tensor.name!r} is {found[0]}{list(found[1])}; the model's initializer "
            f"is {wanted[0]}{list(wanted[1])}.",
            hint="Give an array of the same type and shape.",
        )
    if array.nbytes == raw_size(tensor.data_type, array.shape):
        data: bytes | memoryview = array.reshape(-1).view(np.uint8).data if array.size else b""
    else:  # types of less than a byte are packed
        data = onnx.numpy_helper.from_array(array).raw_data
    return Weight(tensor.name, tensor.data_type, array.shape, data)


def _dtype(tensor: TensorProto) -> np.dtype[Any]:
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError, ValueError):
        return np.dtype(object)


def _fill(tensor: TensorProto, other: TensorProto) -> None:
    """Make a tensor another one; what it says about itself stays."""
    doc = tensor.doc_string
    tensor.CopyFrom(other)
    if doc:
        tensor.doc_string = doc


def _set_lengths(graph: GraphProto, overrides: ModelOverrides) -> None:
    """Give open dimensions their lengths, wherever the graph names them."""
    if not overrides.dimensions and not overrides.denotations:
        return
    lengths = dict(overrides.dimensions)
    seen: set[str] = set()
    for dimension in _dimensions(graph.input):
        seen |= {dimension.dim_param, dimension.denotation}
        _set_by_denotation(dimension, overrides.denotations, lengths)
    for what, given in (("dimension", overrides.dimensions), ("denotation", overrides.denotations)):
        for name in given:
            if name not in seen:
                raise InvalidArgument(
                    f"free dimension override: no input of the model has the {what} {name!r}.{suggestion(name, seen)}",
                    hint="It names an open dimension of an input, as get_inputs shows it.",
                )
    for dimension in _dimensions([*graph.input, *graph.output, *graph.value_info]):
        if dimension.dim_param in lengths:
            dimension.dim_value = lengths[dimension.dim_param]


def _set_by_denotation(
    dimension: _Dimension, denotations: Mapping[str, int], lengths: dict[str, int]
) -> None:
    """Give an open dimension the length of its denotation; its name means that everywhere."""
    length = denotations.get(dimension.denotation) if not dimension.HasField("dim_value") else None
    if length is None:
        return
    name = dimension.dim_param
    if not name:
        dimension.dim_value = length
    elif lengths.setdefault(name, length) != length:
        raise InvalidArgument(
            f"free dimension override: the dimension {name!r} would get two lengths, {lengths[name]} and {length}.",
            hint="Give a length by name or by denotation, not both.",
        )


def _dimensions(values: Iterable[onnx.ValueInfoProto]) -> Iterator[_Dimension]:
    for value in values:
        if value.type.HasField("tensor_type"):
            yield from value.type.tensor_type.shape.dim
