"""Inputs, outputs and metadata of a model as hosts see them, and the inputs of a run in
that form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_core.errors import InvalidArgument, suggestion
from epctx_core.frozen import dataclass
from epctx_core.graph.type_table import may_have_shape
from epctx_core.plugin.protos import ELEMENT_TYPES

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto

    from epctx_core.graph.type_table import TypeTable
    from epctx_core.plugin import Dimension, TensorType


@dataclass(frozen=True, kw_only=True)
class NodeArg:
    """An input or output of a model; attributes as `onnxruntime.NodeArg`.

    Attributes:
        name: the value's name.
        type: ONNX Runtime's spelling, such as `tensor(float)`.
        shape: a length, a symbolic name or None for each dimension.
    """

    name: str
    type: str
    shape: list[Dimension]
    tensor_type: TensorType = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """Metadata of a model; attributes as `onnxruntime.ModelMetadata`."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: Mapping[str, str]


def describe_value(name: str, types: TypeTable) -> NodeArg:
    """Return the name, type and shape of an input or output."""
    tensor = types.get(name)
    proto = types.get_proto(name)
    text = "unknown" if proto is None else _spell_type(proto)
    return NodeArg(
        name=name, type=text, shape=list(tensor.shape or ()), tensor_type=tensor
    )


def _spell_type(proto: TypeProto) -> str:
    """Return a type as ONNX Runtime writes it, such as
    `seq(map(string,tensor(float)))`.
    """
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({_spell_type(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({_spell_type(proto.optional_type.elem_type)})"
    if kind == "map_type":
        return (
            f"map({ELEMENT_TYPES[proto.map_type.key_type]},"
            f"{_spell_type(proto.map_type.value_type)})"
        )
    if kind == "sparse_tensor_type":
        return f"sparse_tensor({ELEMENT_TYPES[proto.sparse_tensor_type.elem_type]})"
    return (
        f"tensor({ELEMENT_TYPES[proto.tensor_type.elem_type]})"
        if proto.tensor_type.elem_type
        else "unknown"
    )


def describe_model(proto: ModelProto) -> ModelMetadata:
    """Return the metadata of a model."""
    return ModelMetadata(
        producer_name=proto.producer_name,
        graph_name=proto.graph.name,
        domain=proto.domain,
        description=proto.doc_string,
        graph_description=proto.graph.doc_string,
        version=proto.model_version,
        custom_metadata_map={p.key: p.value for p in proto.metadata_props},
    )


def unknown_name_error(
    kind: str, name: object, names: Sequence[str]
) -> InvalidArgument:
    """Return the error for an input or output that a model does not have."""
    return InvalidArgument(
        f"the model has no {kind} {name!r}.{suggestion(str(name), names)}",
        hint=f"Its {kind}s: {', '.join(names) or 'none'}.",
    )


def make_feed_order(
    arguments: Sequence[NodeArg], defaults: Mapping[str, np.ndarray]
) -> Callable[[Mapping[str, Any]], list[Any]]:
    """Return a function that puts the inputs of a run into the model's order and checks
    them.

    Args:
        arguments: the model's inputs.
        defaults: inputs that the caller may leave out (overridable initializers), with
            their values.
    """
    # (name, dtype, shape, fixed axes) of an input that needs nothing but comparisons.
    declared = [
        (
            a.name,
            a.tensor_type.dtype,
            a.tensor_type.shape,
            [(i, n) for i, n in enumerate(a.shape) if isinstance(n, int)],
        )
        for a in arguments
    ]

    def order(feeds: Mapping[str, Any]) -> list[Any]:
        if isinstance(feeds, dict) and len(feeds) == len(declared):
            # The common case, a comparison each: all inputs there, as the model
            # declares them.
            ordered = []
            for name, dtype, shape, fixed in declared:
                value = feeds.get(name)
                if (
                    type(value) is not np.ndarray
                    or value.dtype != dtype
                    or not value.flags.c_contiguous
                ):
                    break
                lengths = value.shape
                if lengths != shape and (
                    shape is None
                    or len(lengths) != len(shape)
                    or [n for i, n in fixed if lengths[i] != n]
                ):
                    break
                ordered.append(value)
            else:
                return ordered
        return _convert_feeds(feeds, arguments, defaults)

    return order


def _convert_feeds(
    feeds: Mapping[str, Any],
    arguments: Sequence[NodeArg],
    defaults: Mapping[str, np.ndarray],
) -> list[Any]:
    """Return the inputs of a run as arrays in the model's order.

    Raises:
        InvalidArgument: an unknown or missing name, a wrong type or a wrong shape.
    """
    names = [argument.name for argument in arguments]
    if not isinstance(feeds, Mapping):
        raise InvalidArgument(
            "run takes a mapping of input names to arrays, not a "
            f"{type(feeds).__name__}."
        )

    for name in feeds:
        if name not in names:
            raise unknown_name_error("input", name, names)
    for argument in arguments:
        if argument.name not in feeds and argument.name not in defaults:
            tensor = argument.tensor_type
            kind = argument.type if tensor.dtype is None else tensor
            raise InvalidArgument(
                f"the input {argument.name!r} ({kind}) is missing.",
                hint=f"The model's inputs: {', '.join(names)}.",
            )

    return [
        _convert_value(a, feeds[a.name]) if a.name in feeds else defaults[a.name]
        for a in arguments
    ]


def _convert_value(argument: NodeArg, value: Any) -> Any:
    """Return a value as an array of an input's type.

    Raises:
        InvalidArgument: it has another type or shape.
    """
    expected = argument.tensor_type
    if expected.dtype is None:
        return value
    try:
        array = np.asarray(value)
        if isinstance(value, (list, tuple)) and _are_numbers(array, expected.dtype):
            # Python's numbers have no type of ONNX's: as with onnxruntime they get the
            # input's.
            with np.errstate(all="ignore"):
                array = np.array(value, expected.dtype)
        if array.dtype.kind in "ST" and has_type(array, expected):
            # onnxruntime reads past the end of text of numpy's own kinds.
            array = (
                np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
            ).astype(object)
    except UnicodeDecodeError as error:
        problem = f"the input {argument.name!r} has bytes that are not UTF-8: {error}."
        raise InvalidArgument(problem) from error
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(
            f"the input {argument.name!r} is not an array of {expected.dtype}: "
            f"{str(error).rstrip('.')}.",
            hint="Give a numpy array, or a list of numbers nested evenly.",
        ) from error

    if not has_type(array, expected):
        raise _make_type_error(argument.name, array.dtype, expected.dtype)

    if not has_shape(array, expected):
        raise InvalidArgument(
            f"the input {argument.name!r} has the shape {list(array.shape)}; the "
            f"model takes {expected}.",
            hint="Give an array of that shape.",
        )

    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _make_type_error(
    name: str, actual: np.dtype[Any], expected: np.dtype[Any]
) -> InvalidArgument:
    """Return the error for an input of another type."""
    wanted = "text" if expected.kind == "O" else str(expected)
    hint = f"Convert it: array.astype({wanted!r})."
    if expected.kind == "O" or actual.kind in "OSU":
        # What numpy makes of these is no number, or no text, that anybody meant.
        hint = f"Give an array of {wanted}."
    elif (actual.itemsize, expected.kind) == (expected.itemsize, "V"):
        hint = (
            f"Convert numbers by array.astype({wanted!r}), or bits of {wanted} by "
            f"array.view({wanted!r})."
        )
    return InvalidArgument(
        f"the input {name!r} is {actual}; the model takes {wanted}.", hint=hint
    )


def _are_numbers(array: np.ndarray, expected: np.dtype[Any]) -> bool:
    """Return whether a list became numbers of the expected kind; an empty one fits any,
    and long integers are objects.
    """
    if not array.size or expected.kind == "O":
        return not array.size
    if array.dtype.kind == "O":
        return all(isinstance(element, Number) for element in array.flat)
    return array.dtype.kind in "biufc"


def has_type(array: np.ndarray, expected: TensorType) -> bool:
    """Return whether an array has a type."""
    # Text comes as objects or as one of numpy's own kinds.
    return array.dtype == expected.dtype or (
        expected.dtype == object and array.dtype.kind in "OUST"
    )


def fits(value: object, expected: TensorType) -> bool:
    """Return whether a value is an array of a type and a shape."""
    return (
        isinstance(value, np.ndarray)
        and has_type(value, expected)
        and has_shape(value, expected)
    )


def describe_array(dtype: object, shape: Sequence[int]) -> str:
    """Return dtype and shape of an array for messages, such as `float32[1, 8]`."""
    return f"{dtype}{list(shape)}"


def check_memory(output: NodeArg, array: Any) -> None:
    """Raise InvalidArgument unless a run can write an output into an array."""
    expected = output.tensor_type
    if fits(array, expected) and array.flags.c_contiguous and array.flags.writeable:
        return
    described = type(array).__name__
    if isinstance(array, np.ndarray):
        described = describe_array(array.dtype, array.shape)
    raise InvalidArgument(
        f"the memory given for the output {output.name!r}, {described}, is not a "
        f"C-contiguous, writable array of {expected}.",
        hint="Make it by np.empty(shape, dtype).",
    )


def has_shape(array: np.ndarray, expected: TensorType) -> bool:
    """Return whether an array has a shape, as far as that is known."""
    return array.shape == expected.shape or may_have_shape(expected, array.shape)
