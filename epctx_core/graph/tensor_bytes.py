"""Bytes of a model's tensors: inline, in typed fields or in an external file, and
detached from the protobuf.

Large ones are detached, so that handling a model's structure costs nothing for its
weights. No path is opened here: the caller supplies a function that opens files named
by a model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from epctx_core.errors import InvalidGraph
from epctx_core.graph.mapping import MappedFile, OpenedFile
from epctx_core.graph.walks import (
    WITH_SUBGRAPHS,
    iter_subgraphs,
    walk_inner_tensors,
)
from epctx_core.graph.weights import (
    INLINE_LIMIT,
    MAX_RANK,
    WHOLE,
    ModelContent,
    OpenExternal,
    Weight,
    compute_raw_size,
    is_detached,
    make_detached_tensor,
    replace_data,
)
from epctx_core.plugin.protos import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    SparseTensorProto,
    TensorProto,
    tensor_dtype_to_np_dtype,
)

if TYPE_CHECKING:
    from epctx_core.graph.weights import Weights

_MAX_ELEMENTS = (1 << 63) // 16 - 1
"""So that the bytes of the widest type (complex128) still have a number of 63 bits."""
COPIED_LIMIT = 256 << 20
"""Bytes that tensors of attributes and subgraphs may take in memory beyond the size of
the files they lie in.
"""
_OF_32_BITS = (
    TensorProto.INT32, TensorProto.INT16, TensorProto.INT8,
    TensorProto.UINT16, TensorProto.UINT8, TensorProto.BOOL,
)  # fmt: skip
_TYPED_FIELDS: dict[int, tuple[str, str]] = {
    **dict.fromkeys(_OF_32_BITS, ("int32_data", "i4")),
    TensorProto.FLOAT: ("float_data", "f4"),
    TensorProto.DOUBLE: ("double_data", "f8"),
    TensorProto.INT64: ("int64_data", "i8"),
}
"""The fields of the types whose numbers they hold as they are, and their own type; onnx
knows the others.
"""
_LONGEST_NUMBER = 20
"""Digits of the largest 64-bit number; Python refuses to read very long ones."""


def _tensor_error(tensor: TensorProto, what: str) -> InvalidGraph:
    return InvalidGraph(f"initializer {tensor.name!r} {what}.")


def _check_shape(tensor: TensorProto) -> tuple[tuple[int, ...], int]:
    """Return a tensor's shape and size in bytes; an empty shape is bounded, too: numpy
    multiplies the other dimensions.

    Raises:
        InvalidGraph: a negative dimension, too many of them, a product beyond 63 bits,
            or an unknown element type.
    """
    if len(tensor.dims) > MAX_RANK:
        raise _tensor_error(
            tensor,
            f"has {len(tensor.dims):,} dimensions; at most {MAX_RANK} are possible",
        )
    shape = tuple(tensor.dims)
    if min(shape, default=0) < 0:
        raise _tensor_error(tensor, f"has a negative dimension: {list(shape)}")
    if math.prod(filter(None, shape)) > _MAX_ELEMENTS:
        raise _tensor_error(tensor, f"has a shape that no memory holds: {list(shape)}")
    try:
        return shape, compute_raw_size(tensor.data_type, shape)
    except (KeyError, TypeError) as error:
        raise _tensor_error(
            tensor, f"has no known element type ({tensor.data_type})"
        ) from error


def detach_weights(
    graph: GraphProto,
    open_external: OpenExternal,
    functions: Sequence[FunctionProto] = (),
    *,
    files: bool = True,
    model: ModelContent = WHOLE,
) -> Weights:
    """Detach the initializers' bytes from a graph.

    Those above `INLINE_LIMIT` bytes then stand in the graph as external tensors at
    `DETACHED_LOCATION`, small ones inline; string tensors are not weights. Other
    external tensors, as in subgraphs, are read in, and sparse tensors become dense
    ones.

    Args:
        graph: changed in place.
        open_external: opens a file named by the model.
        functions: the model's own; external tensors in them are read in, too.
        files: False if no tensor is known to be in a file: attributes and subgraphs are
            not searched.
        model: has the raw data that the graph was decoded without, if it was.

    Returns:
        All initializers by name.

    Raises:
        InvalidGraph: the bytes of a tensor do not fit its shape, or it names no file.
    """
    opened: dict[str, MappedFile] = {}
    if files:
        _inline_files(walk_inner_tensors(graph, functions), opened, open_external)
    make_dense(graph, functions)
    weights = read_initializers(graph, opened, open_external, model=model)
    for tensor in graph.initializer:
        weight = weights.get(tensor.name)
        if weight is None:
            continue
        if weight.nbytes > INLINE_LIMIT:
            replace_data(tensor, make_detached_tensor(weight))
        elif is_detached(tensor):
            replace_data(tensor, weight.make_tensor_proto())
    return weights


def _inline_files(
    tensors: Iterable[TensorProto],
    opened: dict[str, MappedFile],
    open_external: OpenExternal,
) -> None:
    """Copy the bytes of tensors in files into the protobuf; each tensor gets a copy,
    even of the same bytes.
    """
    copied = 0
    counted = 0
    limit = COPIED_LIMIT
    for tensor in tensors:
        if not is_detached(tensor):
            continue
        weight = read_weight(tensor, opened, open_external)
        copied += weight.nbytes
        if len(opened) > counted:
            counted = len(opened)
            limit = limit + next(reversed(opened.values())).size
        if copied > limit:
            raise InvalidGraph(
                "tensors in attributes and bodies name the same bytes of files again "
                f"and again; with {tensor.name!r} they would take {copied:,} bytes of "
                "memory.",
                hint=(
                    "Make such a tensor an initializer of the main graph, which is "
                    "not copied."
                ),
            )
        replace_data(tensor, weight.make_tensor_proto())


def make_dense(graph: GraphProto, functions: Iterable[FunctionProto] = ()) -> None:
    """Make sparse initializers and Constants dense, in place and in subgraphs too, as
    onnxruntime does for EPs.

    Raises:
        InvalidGraph: elements outside of the shape, or more bytes in all than
            `COPIED_LIMIT`.
    """
    left = COPIED_LIMIT

    def dense(sparse: SparseTensorProto, name: str) -> TensorProto:
        nonlocal left
        tensor = _make_dense_tensor(sparse, name, left)
        left -= compute_raw_size(tensor.data_type, tuple(tensor.dims))
        return tensor

    pending: list[GraphProto | FunctionProto] = [graph, *functions]
    while pending:
        graph = pending.pop()
        if isinstance(graph, GraphProto) and graph.sparse_initializer:
            graph.initializer.extend(
                [dense(s, s.values.name) for s in graph.sparse_initializer]
            )
            del graph.sparse_initializer[:]
        for node in graph.node:
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.HasField("sparse_tensor"):
                        tensor = dense(attribute.sparse_tensor, "")
                        attribute.CopyFrom(
                            AttributeProto(
                                name="value", type=AttributeProto.TENSOR, t=tensor
                            )
                        )
            elif node.domain or node.op_type in WITH_SUBGRAPHS:
                pending += iter_subgraphs(node)


def _make_dense_tensor(sparse: SparseTensorProto, name: str, limit: int) -> TensorProto:
    """Return a sparse tensor written out.

    Args:
        sparse: the tensor.
        name: of the result.
        limit: bytes that it may take.
    """
    shape, size = _check_shape(
        TensorProto(name=name, dims=sparse.dims, data_type=sparse.values.data_type)
    )
    if sparse.values.data_type == TensorProto.STRING:
        raise InvalidGraph(
            f"the sparse tensor {name!r} contains text; sparse tensors contain "
            "numbers, as in onnxruntime.",
            hint="Store it dense, as an initializer of the main graph.",
        )

    values = read_weight(sparse.values, {}, _refuse_file).array()
    if size > limit:
        raise InvalidGraph(
            f"the sparse tensor {name!r} of shape {list(shape)} needs more than the "
            f"{limit:,} bytes that sparse tensors may still take when they are written "
            "out.",
            hint="Store it dense, as an initializer of the main graph.",
        )

    indices = read_weight(sparse.indices, {}, _refuse_file).array()
    if indices.ndim == 2:  # noqa: PLR2004 - an index for each dimension
        inside = indices.shape[1] == len(shape) and bool(
            ((indices >= 0) & (indices < shape)).all()
        )
        flat = np.ravel_multi_index(tuple(indices.T), shape) if inside else indices
    else:
        inside = bool(((indices >= 0) & (indices < math.prod(shape))).all())
        flat = indices

    if not inside or indices.dtype != np.int64 or flat.shape != (values.size,):
        raise InvalidGraph(
            f"the sparse tensor {name!r} of shape {list(shape)} has elements outside "
            "of it."
        )

    array = np.zeros(math.prod(shape), values.dtype)
    array[flat] = values.reshape(-1)
    from onnx import numpy_helper

    return numpy_helper.from_array(array.reshape(shape), name)


def _refuse_file(location: str, tensor: str) -> OpenedFile:
    raise InvalidGraph(
        f"the tensor {tensor!r} names the file {location!r}, which was not read."
    )


def read_initializers(
    graph: GraphProto,
    opened: dict[str, MappedFile],
    open_external: OpenExternal = _refuse_file,
    *,
    model: ModelContent = WHOLE,
    names: Collection[str] | None = None,
) -> Weights:
    """Return a graph's initializers by name; their bytes stay where they are (see
    `detach_weights`).

    Args:
        graph: not changed.
        opened: the mapped files by location; gets those that are opened.
        open_external: opens a file named by the model; a subgraph's are in none.
        model: has the raw data that the graph was decoded without, if it was.
        names: of the initializers to read; None for all.

    Raises:
        InvalidGraph: the bytes of a tensor do not fit its shape, or it names no file.
    """
    weights: Weights = {}
    for position, tensor in enumerate(graph.initializer):
        if names is not None and tensor.name not in names:
            continue
        extent = model.extents.get(position)
        is_text = tensor.data_type == TensorProto.STRING
        if is_detached(tensor) or (extent is None and not is_text):
            weights[tensor.name] = read_weight(tensor, opened, open_external)
        elif extent is not None:
            if is_text:
                raise _tensor_error(tensor, "is text, and has raw data")
            offset, length = extent
            data = model.view[offset : offset + length]
            weights[tensor.name] = make_weight(
                tensor, data, mapped=model.file, offset=offset
            )
    return weights


def read_weight(
    tensor: TensorProto, files: dict[str, MappedFile], open_external: OpenExternal
) -> Weight:
    """Return a tensor as a weight; `files` are the mapped files by location.

    See `detach_weights`.
    """
    if tensor.data_type == TensorProto.STRING:
        raise _tensor_error(tensor, "keeps text in a file, which ONNX does not allow")
    if tensor.data_location == TensorProto.EXTERNAL:
        return _read_external(tensor, files, open_external)
    if tensor.HasField("raw_data"):
        return make_weight(tensor, tensor.raw_data)
    if tensor.data_type in _TYPED_FIELDS:
        name, dtype = _TYPED_FIELDS[tensor.data_type]
        numbers = np.array(getattr(tensor, name), dtype)
        own = numbers.astype(tensor_dtype_to_np_dtype(tensor.data_type), copy=False)
        return make_weight(tensor, own.tobytes())

    from onnx import numpy_helper

    _check_shape(tensor)  # onnx takes both for granted
    try:
        data = numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
    except (ValueError, TypeError) as error:
        raise _tensor_error(
            tensor, f"has data that does not fit its shape: {error}"
        ) from error
    return make_weight(tensor, data)


def make_weight(
    tensor: TensorProto,
    data: bytes | memoryview,
    *,
    mapped: MappedFile | None = None,
    offset: int = 0,
) -> Weight:
    """Return a tensor as a weight over its raw bytes, in a file or in memory.

    Raises:
        InvalidGraph: they do not fit the tensor's shape.
    """
    shape, size = _check_shape(tensor)
    if len(data) != size:
        raise _tensor_error(
            tensor, f"of shape {list(shape)} needs {size:,} bytes and has {len(data):,}"
        )
    return Weight(
        tensor.name, tensor.data_type, shape, data, mapped=mapped, offset=offset
    )


def _read_external(
    tensor: TensorProto, files: dict[str, MappedFile], open_external: OpenExternal
) -> Weight:
    shape, size = _check_shape(tensor)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    offset = _parse_number(tensor, "offset", entries)
    length = _parse_number(tensor, "length", entries, default=size)
    mapped = files.get(location)
    if mapped is None:
        file = open_external(location, tensor.name)
        try:
            mapped = files[location] = MappedFile(file.fileno(), file.path)
        finally:
            file.close()

    if length != size:
        fault = (
            f"of shape {list(shape)} needs {size:,} bytes; its external data has "
            f"{length:,}"
        )
        raise _tensor_error(tensor, fault)

    if offset + size > mapped.size:
        raise InvalidGraph(
            f"initializer {tensor.name!r} ends at byte {offset + size:,} of "
            f"{location!r}, which has {mapped.size:,}.",
            path=mapped.path,
            hint=(
                "The weights file is truncated or belongs to another model; fetch "
                "both again."
            ),
        )

    data = mapped.view[offset : offset + size]
    return Weight(
        tensor.name, tensor.data_type, shape, data, mapped=mapped, offset=offset
    )


def _parse_number(
    tensor: TensorProto, key: str, entries: Mapping[str, str], default: int = 0
) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not isinstance(text, str) or not text.isdecimal() or len(text) > _LONGEST_NUMBER:
        # Bytes if not UTF-8.
        raise _tensor_error(
            tensor, f"has the external data {key} {text!r}, which is not a whole number"
        )
    return int(text)
