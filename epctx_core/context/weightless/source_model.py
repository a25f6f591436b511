"""The initializers of a model, found where they lie: a model of any size is neither read nor decoded.

Of each initializer that is asked for, what it says about itself is decoded; its raw data stays a view.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from google.protobuf.message import DecodeError
from onnx import GraphProto, TensorProto

from epctx_core.context.fields import BYTES, DamagedError, FieldCursor
from epctx_core.errors import InvalidGraph, InvalidProtobuf
from epctx_core.graph.mapping import MappedFile
from epctx_core.graph.tensors import raw_size
from epctx_core.graph.weights import OpenExternal, Weight, detach_weights

_GRAPH = 7
"""Number of a field of onnx's ModelProto."""
_INITIALIZER = 5
"""Number of a field of onnx's GraphProto."""
_NAME, _RAW_DATA = 8, 9
"""Numbers of fields of onnx's TensorProto."""


def read_weights(
    model: memoryview | MappedFile,
    wanted: Collection[str] | None,
    open_external: OpenExternal,
    *,
    where: str,
) -> dict[str, Weight]:
    """Return initializers of a model's main graph by name.

    Args:
        model: its bytes, which the weights keep alive.
        wanted: which initializers; None for all.
        open_external: opens a file that the model names.
        where: names the model in messages.

    Raises:
        InvalidProtobuf: it is no model.
        InvalidGraph: a tensor whose bytes do not fit its shape, or that names no file.
    """
    mapped = model if isinstance(model, MappedFile) else None
    view = model.view if isinstance(model, MappedFile) else model
    found: dict[str, Weight] = {}
    others = GraphProto()
    try:
        for tensor, place, length in _initializers(view, wanted):
            if length and tensor.data_type != TensorProto.STRING:
                _check_size(tensor, length)
                data = view[place : place + length]
                found[tensor.name] = Weight(
                    tensor.name, tensor.data_type, tuple(tensor.dims), data, mapped=mapped, offset=place
                )
            else:
                others.initializer.append(tensor)
    except (DamagedError, DecodeError, UnicodeDecodeError) as error:
        raise InvalidProtobuf(f"{where} is not an ONNX model: {error}.", hint="Fetch it again.") from error
    return {**found, **detach_weights(others, open_external, files=False)}


def _check_size(tensor: TensorProto, length: int) -> None:
    try:
        size = raw_size(tensor.data_type, tuple(tensor.dims))
    except (KeyError, TypeError) as error:
        raise InvalidGraph(f"initializer {tensor.name!r} has no known element type.") from error
    if size != length or any(dim < 0 for dim in tensor.dims):
        raise InvalidGraph(
            f"initializer {tensor.name!r} of shape {list(tensor.dims)} needs {size:,} bytes and has {length:,}."
        )


def _initializers(view: memoryview, wanted: Collection[str] | None) -> Iterator[tuple[TensorProto, int, int]]:
    """Yield tensors without their raw data, and where that lies: place and length."""
    if not view:
        raise DamagedError("it is empty")
    cursor = FieldCursor(lambda place, length: bytes(view[place : place + length]), len(view))
    for graph, size in _messages(cursor, 0, len(view), _GRAPH):
        for start, length in _messages(cursor, graph, graph + size, _INITIALIZER):
            yield from _tensor(cursor, view, start, start + length, wanted)


def _tensor(
    cursor: FieldCursor, view: memoryview, start: int, end: int, wanted: Collection[str] | None
) -> Iterator[tuple[TensorProto, int, int]]:
    head = bytearray()
    name, raw = "", (0, 0)
    cursor.place = start
    while cursor.place < end:
        begin = cursor.place
        number, kind, length = cursor.field()
        place = cursor.place
        _step(cursor, length, end)
        if kind == BYTES and number == _RAW_DATA:
            raw = (place, length)
            continue
        if kind == BYTES and number == _NAME:
            name = bytes(view[place : place + length]).decode()
        head += view[begin : place + length]
    if wanted is None or name in wanted:
        yield TensorProto.FromString(bytes(head)), *raw


def _messages(cursor: FieldCursor, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield place and length of the messages of one number between two places."""
    cursor.place = start
    while cursor.place < end:
        number, kind, length = cursor.field()
        place = cursor.place
        _step(cursor, length, end)
        after = cursor.place
        if kind == BYTES and number == wanted:
            yield place, length
        cursor.place = after


def _step(cursor: FieldCursor, length: int, end: int) -> None:
    cursor.skip(length)
    if cursor.place > end:
        raise DamagedError("a field in it is longer than what holds it")
