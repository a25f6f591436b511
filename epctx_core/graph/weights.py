"""Weights of a model: views over mapped files or the model's bytes, their proxies in a
protobuf, and their digests.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from epctx_core.frozen import dataclass
from epctx_core.graph.mapping import (
    Digest,
    ExtentDigests,
    MappedFile,
    OpenedFile,
    known_digests,
    read_chunks,
)
from epctx_core.plugin import Extent
from epctx_core.plugin.protos import TensorProto, tensor_dtype_to_np_dtype

MAX_RANK = 32
"""Dimensions that every numpy takes."""
PACKED_BITS: dict[int, int] = {
    TensorProto.UINT2: 2, TensorProto.INT2: 2, TensorProto.UINT4: 4,
    TensorProto.INT4: 4, TensorProto.FLOAT4E2M1: 4, TensorProto.FLOAT6E2M3: 6,
    TensorProto.FLOAT6E3M2: 6,
}  # fmt: skip
"""Of types of which several elements share a byte, the bits of one."""


def compute_raw_size(elem_type: int, shape: tuple[int, ...]) -> int:
    """Return the length in bytes of a tensor's raw data (sub-byte types are packed)."""
    bits = (
        PACKED_BITS.get(elem_type) or 8 * tensor_dtype_to_np_dtype(elem_type).itemsize
    )
    return (math.prod(shape) * bits + 7) // 8


def is_detached(tensor: TensorProto) -> bool:
    """Return whether a tensor's bytes are outside the protobuf."""
    return tensor.data_location == TensorProto.EXTERNAL


Weights: TypeAlias = "dict[str, Weight]"
"""Weights by name."""
OpenExternal: TypeAlias = Callable[[str, str], OpenedFile]
"""`open_external(location, tensor_name)` opens a file named by a model, or raises
InvalidGraph.
"""


@dataclass(frozen=True, kw_only=True)
class ModelContent:
    """Bytes of a model, of which the raw data of initializers may lie outside of what
    is decoded.

    Attributes:
        view: all of them.
        structure: those to decode; see `separate_weights`.
        extents: the raw data that these lack, by the position of their initializer.
        file: the mapped file that they are; None for bytes in memory.
        path: of the file that they were read from, if any.
    """

    view: memoryview
    structure: bytes
    extents: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    file: MappedFile | None = None
    path: Path | None = None


WHOLE = ModelContent(view=memoryview(b""), structure=b"")
"""Content of no interest: of a graph that was decoded with all its data."""

DETACHED_LOCATION = "epctx-weight"
"""The location that a detached initializer carries.

Also the name of an empty file in epctx-onnxruntime, which has to be there: onnxruntime
refuses a model whose weights name a file that does not exist, even if it gets their
bytes and never reads it.
"""

INLINE_LIMIT = 1024
"""Initializers up to this many bytes stay in the protobuf: shape inference reads such
values.
"""

PARALLEL_FROM = 1 << 20
"""Bytes from which a weight's digest is worth a thread."""


class Weight:
    """An initializer; implements `epctx_core.plugin.TensorView`.

    Attributes:
        nbytes: length of the raw bytes.
    """

    source_name: str | None = None

    def __init__(
        self,
        name: str,
        elem_type: int,
        shape: tuple[int, ...],
        data: bytes | memoryview,
        *,
        mapped: MappedFile | None = None,
        offset: int = 0,
    ) -> None:
        self.name = name
        self.elem_type = elem_type
        self.shape = shape
        self._data = memoryview(data).cast("B") if len(data) else memoryview(b"")
        self.nbytes = len(self._data)
        self._mapped = mapped
        self._offset = offset
        self.lazy_digest = Digest()

    def __repr__(self) -> str:
        return f"Weight({self.name!r}, {self.dtype}, {list(self.shape)})"

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Element type (numpy or ml_dtypes)."""
        return tensor_dtype_to_np_dtype(self.elem_type)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the raw bytes."""
        return self.lazy_digest.of(self.chunks)

    @property
    def extent(self) -> Extent | None:
        """Location of the bytes in a file, or None for an inline weight."""
        return (
            None
            if self._mapped is None
            else Extent(self._mapped.path, self._offset, self.nbytes)
        )

    @property
    def mapping(self) -> tuple[MappedFile, int] | None:
        """Mapped file and offset of the bytes, or None for an inline weight."""
        return None if self._mapped is None else (self._mapped, self._offset)

    def array(self) -> np.ndarray:
        """Return a read-only array: a view for whole-byte types, unpacked for sub-byte
        ones.
        """
        if self.elem_type in PACKED_BITS:
            from onnx import numpy_helper

            array = numpy_helper.to_array(self.make_tensor_proto())
        else:
            array = np.frombuffer(self._data, self.dtype).reshape(self.shape)
        array.setflags(write=False)
        return array

    def chunks(self) -> Iterator[memoryview]:
        """Return the raw bytes in chunks of 8 MiB; of a mapping, one chunk is resident
        at a time.

        Raises:
            InvalidGraph: the file they lie in was written to.
        """
        return read_chunks(self._data, self._mapped, self._offset)

    def make_tensor_proto(self) -> TensorProto:
        """Return the weight as an inline tensor."""
        data = bytes(self._data)
        return TensorProto(
            name=self.name, data_type=self.elem_type, dims=self.shape, raw_data=data
        )


_KEPT = frozenset({"name", "data_type", "doc_string", "metadata_props"})


def replace_data(tensor: TensorProto, other: TensorProto) -> None:
    """Replace a tensor's data and shape by another's; its doc string and metadata
    stay.
    """
    for field_, _ in tensor.ListFields():
        if field_.name not in _KEPT:
            tensor.ClearField(field_.name)
    tensor.MergeFrom(other)


def make_detached_tensor(weight: Weight) -> TensorProto:
    """Return the tensor that represents a detached weight in a protobuf."""
    tensor = TensorProto(
        name=weight.name,
        data_type=weight.elem_type,
        dims=weight.shape,
        data_location=TensorProto.EXTERNAL,
    )
    tensor.external_data.add(key="location", value=DETACHED_LOCATION)
    return tensor


def set_external_location(tensor: TensorProto, location: str, offset: int) -> None:
    """Set the location of a detached tensor's bytes: a file beside the model, and the
    offset in it.
    """
    size = compute_raw_size(tensor.data_type, tuple(tensor.dims))
    del tensor.external_data[:]
    for key, value in (
        ("location", location),
        ("offset", str(offset)),
        ("length", str(size)),
    ):
        tensor.external_data.add(key=key, value=value)


def share_digests(
    weights: Iterable[Weight], digests: ExtentDigests | None = None
) -> None:
    """Share digests of the same location between weights, by default all those of the
    host's call.
    """
    if digests is None and (digests := known_digests.get(None)) is None:
        return
    for weight in weights:
        if weight.mapping is not None:
            file, offset = weight.mapping
            location = file.identity, offset, weight.nbytes
            weight.lazy_digest = digests.setdefault(location, weight.lazy_digest)


@contextmanager
def compute_digests_ahead(weights: Iterable[Weight]) -> Iterator[None]:
    """Make the digests of large weights in this order, several at once, while the block
    runs.

    Hashing gives up the interpreter's lock, so weights are hashed while earlier ones
    are written. When the block ends, also by an error, the threads stop at their next
    chunk and are joined.
    """
    large = [weight for weight in weights if weight.nbytes >= PARALLEL_FROM]
    if not large:
        yield
        return
    # Few loads have such weights, and the import takes milliseconds.
    from concurrent.futures import ThreadPoolExecutor

    stopped = threading.Event()
    pool = ThreadPoolExecutor(
        max_workers=os.cpu_count(), thread_name_prefix="epctx-digest"
    )
    try:
        for weight in large:
            weight.lazy_digest.begin(weight.chunks, pool, stopped.is_set)
        yield
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
