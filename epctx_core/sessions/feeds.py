"""Inputs of a run that are not plainly what the model declares: checked, and converted where that is safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from epctx_core.errors import InvalidArgument, suggestion

if TYPE_CHECKING:
    from epctx_core.plugin import TensorType
    from epctx_core.plugin.types import Dimension
    from epctx_core.sessions.boundary import NodeArg


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
    if array.dtype != wanted.dtype and not _is_text(array, wanted):
        raise InvalidArgument(
            f"the input {argument.name!r} is {array.dtype}; the model takes {wanted.dtype}.",
            hint=f"Convert it: array.astype({str(wanted.dtype)!r}).",
        )
    if wanted.shape is not None and not _fits(array.shape, wanted.shape):
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


def _is_text(array: np.ndarray, wanted: TensorType) -> bool:
    return wanted.elem_type == onnx.TensorProto.STRING and array.dtype.kind in "OUST"


def _fits(shape: tuple[int, ...], wanted: tuple[Dimension, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        not isinstance(w, int) or s == w for s, w in zip(shape, wanted, strict=True)
    )
