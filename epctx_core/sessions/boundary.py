"""Boundary of a session: inputs, outputs and metadata of its model, and what a run is given, checked and converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from epctx_core.errors import InvalidArgument, suggestion
from epctx_core.sessions.ep_calls import has_shape, has_type

if TYPE_CHECKING:
    from onnx import TypeProto

    from epctx_core.graph.type_table import TypeTable
    from epctx_core.plugin import TensorType
    from epctx_core.plugin.types import Dimension
    from epctx_core.sessions.source import OpenModel


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
    tensor_type: TensorType


@dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """What a model says about itself; attributes as `onnxruntime.ModelMetadata`."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: Mapping[str, str]


def node_arg(name: str, types: TypeTable) -> NodeArg:
    """Return a value as hosts see it."""
    tensor, proto = types.get(name), types.proto(name)
    text = "unknown" if proto is None else _spelled(proto)
    return NodeArg(name=name, type=text, shape=list(tensor.shape or ()), tensor_type=tensor)


def _spelled(proto: TypeProto) -> str:
    """Return a type as ONNX Runtime writes it, such as `seq(map(string,tensor(float)))`."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({_spelled(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({_spelled(proto.optional_type.elem_type)})"
    if kind == "map_type":
        return f"map({_element(proto.map_type.key_type)},{_spelled(proto.map_type.value_type)})"
    if kind == "sparse_tensor_type":
        return f"sparse_tensor({_element(proto.sparse_tensor_type.elem_type)})"
    return f"tensor({_element(proto.tensor_type.elem_type)})" if proto.tensor_type.elem_type else "unknown"


def _element(elem_type: int) -> str:
    name: str = onnx.TensorProto.DataType.Name(elem_type)
    return name.lower()


def model_metadata(model: OpenModel) -> ModelMetadata:
    """Return what a model says about itself."""
    proto = model.source.proto
    return ModelMetadata(
        producer_name=proto.producer_name,
        graph_name=proto.graph.name,
        domain=proto.domain,
        description=proto.doc_string,
        graph_description=proto.graph.doc_string,
        version=proto.model_version,
        custom_metadata_map={p.key: p.value for p in proto.metadata_props},
    )


class FeedOrder:
    """Puts what `run` is given into the model's order and checks it.

    Args:
        arguments: the model's inputs.
        defaults: inputs that the caller may leave out (overridable initializers), with their values.
    """

    def __init__(self, arguments: Sequence[NodeArg], defaults: Mapping[str, np.ndarray]) -> None:
        self._arguments = arguments
        self._defaults = defaults
        # (name, dtype, shape) of an input that needs nothing but a comparison.
        self._plain = [
            (a.name, a.tensor_type.dtype, a.tensor_type.shape if a.tensor_type.is_static else None)
            for a in arguments
        ]

    def order(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the values in the model's order.

        Raises:
            InvalidArgument: an unknown or missing name, a wrong type or a wrong shape.
        """
        ordered: list[Any] = []
        if isinstance(feeds, dict) and len(feeds) == len(self._plain):
            # The common case, a comparison each: all inputs there, as the model declares them.
            for name, dtype, shape in self._plain:
                value = feeds.get(name)
                if (
                    type(value) is not np.ndarray
                    or value.dtype != dtype
                    or value.shape != shape
                    or not value.flags.c_contiguous
                ):
                    break
                ordered.append(value)
            else:
                return ordered
        return checked_feeds(self._arguments, self._defaults, feeds)


def checked_feeds(
    arguments: Sequence[NodeArg], defaults: Mapping[str, np.ndarray], feeds: Mapping[str, Any]
) -> list[Any]:
    """Return what `run` was given in the model's order, converted where its values allow it; see `FeedOrder`.

    Raises:
        InvalidArgument: an unknown or missing name, a wrong type or a wrong shape.
    """
    known = [argument.name for argument in arguments]
    if not isinstance(feeds, Mapping):
        raise InvalidArgument(
            f"run takes inputs as a mapping of name to array, not a {type(feeds).__name__}."
        )
    for name in feeds:
        if name not in known:
            raise InvalidArgument(
                f"the model has no input {name!r}.{suggestion(str(name), known)}",
                hint=f"Its inputs: {', '.join(known) or 'none'}.",
            )
    ordered = []
    for argument in arguments:
        if argument.name in feeds:
            ordered.append(_checked(argument, feeds[argument.name]))
        elif argument.name in defaults:
            ordered.append(defaults[argument.name])
        else:
            raise InvalidArgument(
                f"the input {argument.name!r} ({argument.tensor_type}) is missing.",
                hint=f"The model's inputs: {', '.join(known)}.",
            )
    return ordered


def _checked(argument: NodeArg, value: Any) -> Any:
    wanted = argument.tensor_type
    if wanted.dtype is None:
        return value
    try:
        array = np.asarray(value)
        if isinstance(value, (list, tuple)) and _are_numbers(array, wanted.dtype):
            # Python's numbers have no type of ONNX's: as with onnxruntime they get the input's.
            with np.errstate(all="ignore"):
                array = np.array(value, wanted.dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(
            f"the input {argument.name!r} is no array of {wanted.dtype}: {error}.",
            hint="Give a numpy array, or a list of numbers nested evenly.",
        ) from error
    if not has_type(array, wanted):
        raise InvalidArgument(
            f"the input {argument.name!r} is {array.dtype}; the model takes {wanted.dtype}.",
            hint=f"Convert it: array.astype({str(wanted.dtype)!r}).",
        )
    if not has_shape(array, wanted):
        raise InvalidArgument(
            f"the input {argument.name!r} has the shape {list(array.shape)}; the model takes {wanted}.",
            hint="A length that is a name is open; a free dimension override of the session options fixes it.",
        )
    if array.dtype.kind in "ST":
        array = _as_objects(argument, array)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _are_numbers(array: np.ndarray, wanted: np.dtype[Any]) -> bool:
    """Whether a list became numbers where such are wanted; nothing is any type's, and long integers are objects."""
    if not array.size or wanted.kind == "O":
        return not array.size
    if array.dtype.kind == "O":
        return all(isinstance(element, Number) for element in array.flat)
    return array.dtype.kind in "biufc"


def _as_objects(argument: NodeArg, array: np.ndarray) -> np.ndarray:
    """Return text of numpy's own kinds as an array of `str`: onnxruntime reads past the end of these kinds."""
    try:
        text = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"the input {argument.name!r} has bytes that are no UTF-8: {error}.") from error
    return text.astype(object)
