"""The host of a session or compile: its arguments, checked before anything is read, its
progress callback and cancellation.

Also a model's inputs, outputs and metadata as hosts see them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import onnx

from epctx_core.errors import InvalidArgument, concealed, convert_errors, suggestion
from epctx_core.graph.type_table import may_have_shape
from epctx_core.graph.weights import known_digests
from epctx_core.options import CancellationFlag, SessionOptions
from epctx_core.registry.guard import blame_host
from epctx_core.sessions.providers import Progress, logged_names, no_progress

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto

    from epctx_core.graph.mapping import ModelInput
    from epctx_core.graph.type_table import TypeTable
    from epctx_core.plugin import TensorType
    from epctx_core.plugin.types import Dimension
    from epctx_core.sessions.providers import ProviderRequest

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")
_POLLED_EVERY = 0.05
"""Seconds between two checks of the host's flag while an EP waits."""


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
    text = "unknown" if proto is None else _spelled(proto)
    return NodeArg(
        name=name, type=text, shape=list(tensor.shape or ()), tensor_type=tensor
    )


def _spelled(proto: TypeProto) -> str:
    """Return a type as ONNX Runtime writes it, such as
    `seq(map(string,tensor(float)))`.
    """
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({_spelled(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({_spelled(proto.optional_type.elem_type)})"
    if kind == "map_type":
        return (
            f"map({_element(proto.map_type.key_type)},"
            f"{_spelled(proto.map_type.value_type)})"
        )
    if kind == "sparse_tensor_type":
        return f"sparse_tensor({_element(proto.sparse_tensor_type.elem_type)})"
    return (
        f"tensor({_element(proto.tensor_type.elem_type)})"
        if proto.tensor_type.elem_type
        else "unknown"
    )


def _element(elem_type: int) -> str:
    name: str = onnx.TensorProto.DataType.Name(elem_type)
    return name.lower()


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
    kind: str, name: object, known: Sequence[str]
) -> InvalidArgument:
    """Return the error for an input or output that a model does not have."""
    return InvalidArgument(
        f"the model has no {kind} {name!r}.{suggestion(str(name), known)}",
        hint=f"Its {kind}s: {', '.join(known) or 'none'}.",
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
    # (name, dtype, shape) of an input that needs nothing but a comparison.
    types = [(argument.name, argument.tensor_type) for argument in arguments]
    declared = [
        (name, kind.dtype, kind.shape if kind.is_static else None)
        for name, kind in types
    ]

    def order(feeds: Mapping[str, Any]) -> list[Any]:
        if isinstance(feeds, dict) and len(feeds) == len(declared):
            # The common case, a comparison each: all inputs there, as the model
            # declares them.
            ordered = []
            for name, dtype, shape in declared:
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
        return _converted(feeds, arguments, defaults)

    return order


def _converted(
    feeds: Mapping[str, Any],
    arguments: Sequence[NodeArg],
    defaults: Mapping[str, np.ndarray],
) -> list[Any]:
    """Return the inputs of a run as arrays in the model's order.

    Raises:
        InvalidArgument: an unknown or missing name, a wrong type or a wrong shape.
    """
    known = [argument.name for argument in arguments]
    if not isinstance(feeds, Mapping):
        raise InvalidArgument(
            "run takes a mapping of input names to arrays, not a "
            f"{type(feeds).__name__}."
        )

    for name in feeds:
        if name not in known:
            raise unknown_name_error("input", name, known)
    for argument in arguments:
        if argument.name not in feeds and argument.name not in defaults:
            raise InvalidArgument(
                f"the input {argument.name!r} ({argument.tensor_type}) is missing.",
                hint=f"The model's inputs: {', '.join(known)}.",
            )

    return [
        _array(a, feeds[a.name]) if a.name in feeds else defaults[a.name]
        for a in arguments
    ]


def _array(argument: NodeArg, value: Any) -> Any:
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
        raise InvalidArgument(
            f"the input {argument.name!r} is {array.dtype}; the model takes "
            f"{expected.dtype}.",
            hint=f"Convert it: array.astype({str(expected.dtype)!r}).",
        )

    if not has_shape(array, expected):
        raise InvalidArgument(
            f"the input {argument.name!r} has the shape {list(array.shape)}; the "
            f"model takes {expected}.",
            hint=(
                "A length that is a name is open; a free dimension override of the "
                "session options fixes it."
            ),
        )

    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


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


def has_shape(array: np.ndarray, expected: TensorType) -> bool:
    """Return whether an array has a shape, as far as that is known."""
    return array.shape == expected.shape or may_have_shape(expected, array.shape)


def check_model_argument(model: object) -> ModelInput:
    """Return a model that is a path or bytes.

    Raises:
        InvalidArgument: it is neither, or empty.
    """
    if not isinstance(model, (str, os.PathLike, bytes)) or not model:
        changeable = isinstance(model, (bytearray, memoryview))
        found = f"a {type(model).__name__}" if changeable else repr(model)
        raise InvalidArgument(
            f"a model is a path or bytes, not {found:.80}.",
            hint="Give bytes(model)."
            if changeable
            else "Give the path of an ONNX file.",
        )
    return model


def copy_options(options: object) -> SessionOptions:
    """Return a copy of session options.

    Raises:
        InvalidArgument: they are not epctx's.
    """
    return check_class("sess_options", options, SessionOptions).copy()


def check_class(name: str, value: object, expected: type[R]) -> R:
    """Return an argument that is of a class of epctx.

    Raises:
        InvalidArgument: it is not.
    """
    if not isinstance(value, expected):
        found = f"{type(value).__module__}.{type(value).__name__}"
        cls = expected.__name__
        raise InvalidArgument(
            f"{name} is an object of type {found}, not a {cls}.",
            hint=f"Give an epctx_core.{cls}; that of onnxruntime is another class.",
        )
    return value


def check_function(name: str, function: F) -> F:
    """Return a function of the host, checked.

    Raises:
        InvalidArgument: it cannot be called.
    """
    if not callable(function):
        raise InvalidArgument(
            f"{name} takes a function, not {function!r:.80}.",
            hint="Give something that can be called.",
        )
    return function


def read_request(
    options: SessionOptions | None,
    providers: Sequence[str | ProviderRequest] | None,
    provider_options: Sequence[Mapping[str, object]] | None,
) -> tuple[SessionOptions, Sequence[ProviderRequest] | None]:
    """Return a copy of a host's options, and its EPs with theirs; None if it named
    none.

    Raises:
        InvalidArgument: the options are not epctx's; or EPs are given twice, or not in
            a form that `InferenceSession` takes.
    """
    own = copy_options(SessionOptions() if options is None else options)
    if providers is None and provider_options is None:
        return own, list(own.providers) or None
    if isinstance(providers, str):
        raise InvalidArgument(
            f"providers must be a list of EPs, not a string: [{providers!r:.80}]."
        )
    items = _list_of("EPs", "providers", () if providers is None else providers)
    if own.providers:
        raise InvalidArgument(
            "EPs were given both to the session options and as providers.",
            hint=(
                "Use add_provider of the session options, or the argument providers, "
                "not both."
            ),
        )

    further: list[object] = [{}] * len(items)
    if provider_options is not None:
        further = _list_of("mappings", "provider_options", provider_options)
    if len(further) != len(items):
        raise InvalidArgument(
            f"there are {len(items)} providers and {len(further)} provider_options."
        )
    return own, [
        _name_and_options(item, more) for item, more in zip(items, further, strict=True)
    ]


def _list_of(items: str, name: str, given: object) -> list[object]:
    if not isinstance(given, Iterable):
        kind = type(given).__name__
        raise InvalidArgument(
            f"{name} must be a list of {items}, not an object of type {kind}."
        )
    return list(given)


def _name_and_options(item: object, more: object) -> ProviderRequest:
    """Return an entry of `providers`, and what belongs to it of `provider_options`, as
    name and options.
    """
    name, options = item if isinstance(item, tuple) and len(item) == 2 else (item, {})  # noqa: PLR2004
    if not isinstance(name, str) or not isinstance(options, Mapping):
        # Without its values, which may be secret.
        parts = item if isinstance(item, (tuple, list)) else ()
        types = ", ".join(type(part).__name__ for part in parts[:4])
        raise InvalidArgument(
            "an entry of providers is an object of type "
            f"{type(item).__name__}{types and f' of {types}'}.",
            hint=(
                'Each is an EP name, or a tuple of EP name and options: ("QNN", '
                '{"htp_arch": "73"}).'
            ),
        )
    if not isinstance(more, Mapping):
        raise InvalidArgument(
            f"provider_options of {name} is of type {type(more).__name__}, not a "
            "mapping."
        )
    return name, {**options, **more}


class CompileCancellation(CancellationFlag):
    """Cancellation of one compile, by the host's flag or by Ctrl-C; the host's flag
    itself is never changed.
    """

    def __init__(self, host: CancellationFlag) -> None:
        super().__init__()
        self._host = host

    @property
    def requested(self) -> bool:
        """True once the host cancelled."""
        return self._host.requested or super().requested

    def wait(self, seconds: float) -> bool:
        """Wait for cancellation, at most so long; return whether it was requested."""
        end = time.monotonic() + seconds
        while not self.requested and (left := end - time.monotonic()) > 0:
            super().wait(min(left, _POLLED_EVERY))
        return self.requested

    @contextmanager
    def by_interrupt(self) -> Iterator[None]:
        """Cancel on a Ctrl-C in the block, which then goes on up: EPs are still there
        and may have threads.
        """
        try:
            yield
        except KeyboardInterrupt:
            self.set(True)
            raise


@contextmanager
def host_call(doing: str) -> Iterator[None]:
    """Make the block, or the function that this decorates, one call of a host, whatever
    steps and further calls it takes.

    Each skipped EP is named once, each weight digested once, and only typed errors
    leave it; see `convert_errors`.
    """
    logged = logged_names.set(logged_names.get(set()))
    digests = known_digests.set(known_digests.get({}))
    try:
        with convert_errors(doing):
            yield
    finally:
        logged_names.reset(logged)
        known_digests.reset(digests)


def wrap_progress(progress: Progress | None) -> Progress:
    """Return a host's progress callback as the core and EPs call it, or one that shows
    nothing.

    An exception of the callback becomes Fail.
    """
    if progress is None:
        return no_progress

    def report(stage: str, done: int, total: int) -> None:
        with blame_host(f"the progress callback raised at stage {stage!r}"):
            progress(concealed(stage), done, total)

    return report


def check_optional(
    check: Callable[[str, Any], R], name: str, value: object
) -> R | None:
    """Return the result of a check of an argument, None for one that was left out."""
    return None if value is None else check(name, value)


def get_model_path(model: ModelInput) -> Path | None:
    """Return a model's path, None if it was given as bytes."""
    return None if isinstance(model, bytes) else Path(model)


def check_path(name: str, path: object) -> str:
    """Return a path as text.

    Raises:
        InvalidArgument: it is not a path.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(
        text := os.fspath(path), str
    ):
        raise InvalidArgument(
            f"{name} is {path!r:.80}, which is not a path.",
            hint="Give a text or a Path.",
        )
    return text
