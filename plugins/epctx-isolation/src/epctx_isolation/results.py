"""Results of a child as its messages hold them: reports and descriptions field by field
as their classes declare them, values of a run by their shapes.

A field of another type than declared is a `ProtocolError`: nothing that a child says
becomes an object of another kind than the caller expects.
"""

from __future__ import annotations

import dataclasses
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from epctx_core.plugin import TensorType
from epctx_core.plugin.protos import ELEMENT_TYPES
from epctx_isolation.channel import ProtocolError, whole_numbers

if TYPE_CHECKING:
    from epctx_isolation.shared_memory import ChildMemory, HostMemory

T = TypeVar("T")
_PLAIN = (str, int, float, bool, bytes)
_LENGTH = np.dtype("<u8")
"""Length of each element of a tensor of text; all lengths precede the text in
UTF-8.
"""
_TEXT = "text"
_MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions by which decoding notices what cannot be decoded."""


def encode_fields(value: Any) -> Any:
    """Return a value as JSON can hold it: a dataclass as its fields, an enum as its
    name, a path as its text.
    """
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value):
        return {
            field.name: encode_fields(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {encode_fields(key): encode_fields(item) for key, item in value.items()}
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return [encode_fields(item) for item in value]
    return value


def decode_fields(expected: Any, value: Any) -> Any:
    """Return the value of a type that `encode_fields` encoded.

    Args:
        expected: a dataclass, an enum, or another type as in its annotations.
        value: JSON of a child.

    Raises:
        ProtocolError: it is another type's.
    """
    try:
        return _decode(expected, value)
    except _MALFORMED as error:
        shown = reprlib.repr(value)
        raise ProtocolError(f"{shown} is not a {expected}: {error}") from None


def decode_kept(expected: Any, told: Any) -> tuple[int, Any]:
    """Return the number of what a child keeps, and what it says of it; see
    `decode_fields`.
    """
    if type(told) is not dict or told.keys() != {"number", "facts"}:
        raise ProtocolError(f"{told!r:.80} are not number and facts")
    whole_numbers([told["number"]])
    return told["number"], decode_fields(expected, told["facts"])


def _decode(expected: Any, value: Any) -> Any:
    origin = typing.get_origin(expected)
    if expected is Any:
        decoded = value
    elif origin is not None:
        decoded = _decode_generic(origin, typing.get_args(expected), value)
    elif dataclasses.is_dataclass(expected):
        hints = _list_hints(cast("Any", expected))
        if _require(dict, value).keys() != hints.keys():
            raise ValueError(f"its fields are {[*hints]}")
        fields = {name: _decode(hints[name], item) for name, item in value.items()}
        decoded = cast("Any", expected)(**fields)
    elif issubclass(expected, Enum):
        decoded = expected[value]
    elif expected is Path:
        decoded = Path(_require(str, value))
    elif expected is float and type(value) is int:
        decoded = float(value)
    else:
        decoded = _require(expected, value)
    return decoded


def _decode_generic(origin: Any, arguments: Sequence[Any], value: Any) -> Any:
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, value)
    if issubclass(origin, Mapping):
        key_type, item_type = arguments
        return {
            _decode(key_type, key): _decode(item_type, item)
            for key, item in _require(dict, value).items()
        }
    items = [_decode(arguments[0], item) for item in _require(list, value)]
    return items if origin is list else tuple(items)


def _require(expected: type[T], value: Any) -> T:
    if type(value) is not expected:
        raise TypeError(f"{type(value).__name__} for {expected.__name__}")
    return value


def _decode_union(options: Sequence[Any], value: Any) -> Any:
    if value is None and type(None) in options:
        return None
    for option in options:
        try:
            if option is not type(None):
                return _decode(option, value)
        except (TypeError, ValueError, KeyError):
            continue
    raise TypeError(f"{type(value).__name__} for one of {options}")


@cache
def _list_hints(cls: type) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields; modules import some of them for type
    checkers only, and others of the core have them.
    """
    names: dict[str, Any] = {}
    for name, module in [*sys.modules.items()]:
        if name.startswith("epctx_core."):
            names.update(vars(module))
    # Those of its own module go before.
    names.update(vars(sys.modules[cls.__module__]))
    hints = typing.get_type_hints(cls, localns=names)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def make_outputs(
    expected: Sequence[TensorType], memory: ChildMemory
) -> list[tuple[int, np.ndarray] | None]:
    """Return arrays in shared memory behind what is there, into which a run may write,
    with their offsets; None for an output whose shape only a run tells, whatever the
    model declares.
    """
    rooms = memory.make_room([_count_bytes(tensor) for tensor in expected])
    return [
        (
            offset,
            np.ndarray(
                cast("Any", tensor.shape),
                tensor.dtype,
                view,
            ),
        )
        if view
        else None
        for tensor, (offset, view) in zip(expected, rooms, strict=True)
    ]


def _count_bytes(tensor: TensorType) -> int:
    """Return the bytes of a tensor; 0 for one whose shape only a run tells, or of
    text.
    """
    is_known = tensor.is_static and tensor.is_proven
    if tensor.dtype is None or tensor.dtype.hasobject or not is_known:
        return 0
    return prod(cast("tuple[int, ...]", tensor.shape)) * tensor.dtype.itemsize


def encode_values(
    values: Sequence[Any],
    memory: ChildMemory,
    outputs: Sequence[tuple[int, np.ndarray] | None] = (),
) -> list[Any]:
    """Return the values of a run as JSON can hold them, their arrays in shared memory.

    Args:
        values: the values.
        memory: gets their arrays behind what is there.
        outputs: arrays that are there already; see `make_outputs`.

    Raises:
        TypeError, UnicodeError: an element of a tensor of text is not text.
    """
    arrays: list[np.ndarray] = []
    encoded = [_encode_value(value, arrays) for value in values]
    given = [output for output in outputs if output is not None]
    there = {id(array): offset for offset, array in given}
    new = [array for array in arrays if id(array) not in there]
    for array, (offset, view) in zip(
        new, memory.make_room([array.nbytes for array in new]), strict=True
    ):
        there[id(array)] = offset
        np.copyto(np.ndarray(array.shape, array.dtype, view or None), array)
    return [encoded, [there[id(array)] for array in arrays]]


def _encode_value(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        is_text = value.dtype.kind in "OUST"
        arrays.append(_encode_text(value) if is_text else value)
        kind = _TEXT if is_text else value.dtype.name
        return {
            "array": len(arrays) - 1,
            "type": kind,
            "shape": list(value.shape),
        }
    if isinstance(value, Mapping):
        items = [_encode_value(item, arrays) for item in value.values()]
        return {"keys": [_to_plain(key) for key in value], "items": items}
    if isinstance(value, list | tuple):
        return {"list": [_encode_value(item, arrays) for item in value]}
    return _to_plain(value)


def _to_plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def decode_values(
    results: Any,
    expected: Sequence[TensorType],
    memory: HostMemory,
    outputs: Sequence[np.ndarray | None] | None = None,
) -> list[Any]:
    """Return the values of a run, their arrays copied out of shared memory.

    Args:
        results: what `encode_values` returned.
        expected: the types of the model's outputs.
        memory: of the child.
        outputs: where arrays are copied to; None for new ones.

    Raises:
        ProtocolError: number, types or shapes differ from the model's, or the memory.
    """
    try:
        encoded, offsets = results
        return _decode_all(
            encoded,
            whole_numbers(offsets),
            expected,
            memory,
            outputs,
        )
    except _MALFORMED as error:
        raise ProtocolError(f"results {reprlib.repr(results)}: {error}") from None


def _decode_all(
    encoded: Sequence[Any],
    offsets: Sequence[int],
    expected: Sequence[TensorType],
    memory: HostMemory,
    outputs: Sequence[np.ndarray | None] | None,
) -> list[Any]:
    if len(encoded) != len(expected):
        raise ValueError(f"{len(encoded)} results for {len(expected)} outputs")
    read = memory.make_reader()
    given = outputs or [None] * len(expected)
    return [
        _decode_value(item, _Arrays(read, offsets, tensor, output))
        for item, tensor, output in zip(encoded, expected, given, strict=True)
    ]


class _Arrays(NamedTuple):
    """Arrays of the results of a run.

    Attributes:
        read_into: reads one from an offset.
        offsets: theirs.
        expected: the type of the model's output.
        output: where an array is copied to; None for a new one.
    """

    read_into: Callable[[int, np.ndarray], None]
    offsets: Sequence[int]
    expected: TensorType
    output: np.ndarray | None

    def read(self, item: Any) -> np.ndarray:
        """Return the array of an item.

        Raises:
            ValueError: it is another one than the model's.
        """
        offset = self.offsets[whole_numbers([item["array"]])[0]]
        shape = tuple(whole_numbers(item["shape"]))
        tensor = self.expected
        if item["type"] == _TEXT:
            array = self._read_text(shape, offset)
            is_fit = tensor.dtype is None or tensor.dtype.hasobject
        else:
            array = self._read_numbers(
                shape,
                _list_dtypes()[item["type"]],
                offset,
            )
            is_fit = tensor.dtype is None or array.dtype == tensor.dtype
        if not is_fit or not _has_shape(shape, tensor):
            raise ValueError(f"{array.dtype} {shape} for {tensor}")
        return array

    def _read_numbers(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int
    ) -> np.ndarray:
        array = self.output
        if array is None or (array.shape, array.dtype) != (shape, dtype):
            array = np.empty(shape, dtype)
        self.read_into(offset, array)
        return array

    def _read_text(self, shape: tuple[int, ...], offset: int) -> np.ndarray:
        """Return the array that `_encode_text` encoded, its elements as `str`."""
        lengths = np.empty(prod(shape), _LENGTH)
        self.read_into(offset, lengths)
        text = np.empty(sum(lengths.tolist()), np.uint8)
        self.read_into(offset + lengths.nbytes, text)
        array = np.empty(lengths.size, object)
        start = 0
        for index, length in enumerate(lengths.tolist()):
            array[index] = str(text[start : start + length].data, "utf-8")
            start += length
        return array.reshape(shape)


def _has_shape(shape: tuple[int, ...], tensor: TensorType) -> bool:
    """Return whether an array has the shape of an output, as far as that is proven."""
    if tensor.dtype is None or not tensor.is_proven or tensor.shape is None:
        return True
    if len(tensor.shape) != len(shape):
        return False
    return all(
        not isinstance(expected, int) or expected == length
        for expected, length in zip(tensor.shape, shape, strict=True)
    )


def _decode_value(item: Any, arrays: _Arrays) -> Any:
    if type(item) is dict and "array" in item:
        return arrays.read(item)
    if arrays.expected.dtype is not None:
        raise TypeError(f"{type(item).__name__} for {arrays.expected}")
    if item is None or type(item) in _PLAIN:
        return item
    if "list" in item:
        return [_decode_value(each, arrays) for each in item["list"]]
    values = [_decode_value(each, arrays) for each in item["items"]]
    return dict(zip(item["keys"], values, strict=True))


@cache
def _list_dtypes() -> Mapping[str, np.dtype[Any]]:
    """Return the types of elements that a run may give, by name."""
    dtypes = (TensorType(number, ()).dtype for number in ELEMENT_TYPES if number)
    return {dtype.name: dtype for dtype in dtypes if dtype and not dtype.hasobject}


def _encode_text(array: np.ndarray) -> np.ndarray:
    texts = []
    for index, text in enumerate(array.ravel().tolist()):
        if not isinstance(text, (str, bytes)):
            raise TypeError(
                f"element {index} of a tensor of text is a {type(text).__name__}"
            )
        texts.append(text.encode() if isinstance(text, str) else text)
    lengths = np.array([len(text) for text in texts], _LENGTH)
    return np.frombuffer(b"".join([lengths.tobytes(), *texts]), np.uint8)
