"""Tensors as a model's protobuf has them: where they stand, what shapes they may have, how many bytes they need.

Knows ONNX only; whose bytes are where is `weights`' business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto

from epctx_core.errors import InvalidGraph
from epctx_core.graph.bodies import bodies

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, NodeProto

MAX_RANK = 32
"""Dimensions that every numpy takes."""
_MAX_ELEMENTS = (1 << 63) // 16 - 1
"""So that the bytes of the widest type (complex128) still have a number of 63 bits."""

PACKED_BITS: dict[int, int] = {
    TensorProto.UINT4: 4, TensorProto.INT4: 4, TensorProto.FLOAT4E2M1: 4,
    # onnx 1.19 does not have these yet.
    **({TensorProto.UINT2: 2, TensorProto.INT2: 2} if hasattr(TensorProto, "INT2") else {}),
    **({TensorProto.FLOAT6E2M3: 6, TensorProto.FLOAT6E3M2: 6} if hasattr(TensorProto, "FLOAT6E2M3") else {}),
}  # fmt: skip
"""Of types of which several elements share a byte, the bits of one."""


def raw_size(elem_type: int, shape: tuple[int, ...]) -> int:
    """Return the length in bytes of a tensor's raw data (sub-byte types are packed)."""
    count = math.prod(shape)
    bits = PACKED_BITS.get(elem_type)
    if bits is not None:
        return (count * bits + 7) // 8
    return count * int(onnx.helper.tensor_dtype_to_np_dtype(elem_type).itemsize)


def checked_shape(tensor: TensorProto) -> tuple[int, ...]:
    """Return a tensor's shape, which has bounds also where it has no elements: numpy multiplies the other dimensions.

    Raises:
        InvalidGraph: a negative dimension, too many of them, or a product beyond 63 bits.
    """
    if len(tensor.dims) > MAX_RANK:
        raise InvalidGraph(
            f"initializer {tensor.name!r} has {len(tensor.dims):,} dimensions; at most {MAX_RANK} are possible."
        )
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise InvalidGraph(f"initializer {tensor.name!r} has a negative dimension: {list(shape)}.")
    if math.prod(d or 1 for d in shape) > _MAX_ELEMENTS:
        raise InvalidGraph(f"initializer {tensor.name!r} has a shape that no memory holds: {list(shape)}.")
    return shape


def is_detached(tensor: TensorProto) -> bool:
    """Whether a tensor stands for a weight whose bytes are kept outside the protobuf."""
    return tensor.data_location == TensorProto.EXTERNAL


def all_tensors(graph: GraphProto, functions: Sequence[FunctionProto] = ()) -> Iterator[TensorProto]:
    """Yield every tensor of a model: initializers, sparse ones, those in attributes, bodies and functions."""
    yield from graph.initializer
    yield from inner_tensors(graph, functions)


def inner_tensors(graph: GraphProto, functions: Sequence[FunctionProto] = ()) -> Iterator[TensorProto]:
    """Yield all of them but the main graph's initializers."""
    yield from _other_tensors(graph)
    for function in functions:
        yield from _node_tensors(function.node)


def _other_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the tensors that are no initializers of the graph itself: sparse, attributes, in bodies."""
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        attributes = node.attribute
        if not attributes:
            continue
        for attribute in attributes:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            yield from attribute.tensors
        for body in bodies(node):
            yield from body.initializer
            yield from _other_tensors(body)
