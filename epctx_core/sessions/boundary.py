"""Boundaries of a session and of its steps: what a host gives and what an EP gives, checked and converted.

What hosts give to `ModelCompiler` and `InferenceSession`: what is wrong is said before anything is read. Inputs, outputs and
metadata of a model, and what a run is given. What an EP's code gives in `run`: whether that is what it said, and what of a
model's declarations the values refute.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import onnx

from epctx_core.errors import InvalidArgument, InvalidGraph, PluginError, RuntimeException, suggestion
from epctx_core.options import SessionOptions
from epctx_core.plugin import TensorType, ValueInfo
from epctx_core.registry.guard import contract_broken, describe, plain

if TYPE_CHECKING:
    from onnx import TypeProto

    from epctx_core.graph.type_table import TypeTable
    from epctx_core.plugin.types import Dimension
    from epctx_core.registry.records import PluginRecord
    from epctx_core.sessions.plan import RunStep
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


def unknown_name(kind: str, name: object, known: Sequence[str]) -> InvalidArgument:
    """Return the error for an input or output that a model does not have."""
    return InvalidArgument(
        f"the model has no {kind} {name!r}.{suggestion(str(name), known)}",
        hint=f"Its {kind}s: {', '.join(known) or 'none'}.",
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
        known = [argument.name for argument in self._arguments]
        if not isinstance(feeds, Mapping):
            raise InvalidArgument(
                f"run takes inputs as a mapping of name to array, not a {type(feeds).__name__}."
            )
        for name in feeds:
            if name not in known:
                raise unknown_name("input", name, known)
        ordered = []
        for argument in self._arguments:
            if argument.name in feeds:
                ordered.append(_checked(argument, feeds[argument.name]))
            elif argument.name in self._defaults:
                ordered.append(self._defaults[argument.name])
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
        # onnxruntime reads past the end of text of numpy's own kinds.
        try:
            text = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"the input {argument.name!r} has bytes that are no UTF-8: {error}."
            ) from error
        array = text.astype(object)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _are_numbers(array: np.ndarray, wanted: np.dtype[Any]) -> bool:
    """Whether a list became numbers where such are wanted; nothing is any type's, and long integers are objects."""
    if not array.size or wanted.kind == "O":
        return not array.size
    if array.dtype.kind == "O":
        return all(isinstance(element, Number) for element in array.flat)
    return array.dtype.kind in "biufc"


class Boundary(NamedTuple):
    """What flows into a step and out of it.

    Attributes:
        outputs: what it has to give, as far as that is proven; of an omitted one nothing is known.
        hints: by place among the outputs, what is declared beyond that.
        input_hints: the same of the inputs.
    """

    outputs: Sequence[ValueInfo]
    hints: Mapping[int, ValueInfo]
    input_hints: Mapping[int, ValueInfo]

    @classmethod
    def of(cls, types: TypeTable, inputs: Sequence[str], outputs: Sequence[str]) -> Boundary:
        """Return the boundary of a step of a graph."""

        def hints(names: Sequence[str]) -> Mapping[int, ValueInfo]:
            return {
                place: ValueInfo(name, kind)
                for place, name in enumerate(names)
                if (kind := types.get(name)).shape is not None and kind != types.proven(name)
            }

        proven = [ValueInfo(name, types.proven(name)) for name in outputs]
        return cls(proven, hints(outputs), hints(inputs))


def checked(
    run: RunStep, record: PluginRecord, hook: str, boundary: Boundary, *, context_node: str | None = None
) -> RunStep:
    """Return an EP's `run` that looks at what it gives: number, types, proven lengths, and whose memory it is.

    Args:
        run: the EP's.
        record: whose it is.
        hook: what messages call it.
        boundary: what it has to give.
        context_node: the node that an EP loaded, of which only the file says what it gives.
    """
    outputs = boundary.outputs
    dtype, shape = (outputs[0].dtype, outputs[0].shape) if len(outputs) == 1 else (None, None)
    array, check = np.ndarray, _Results(record, hook, outputs, context_node).check

    def run_and_check(inputs: Sequence[Any], buffers: Sequence[np.ndarray] | None) -> Sequence[Any]:
        answer = run(inputs, buffers)
        # What most partitions give is told right by a few looks: they are most of what a check costs a tiny run.
        if dtype is not None and buffers is None and type(answer) is list and len(answer) == 1:
            (result,) = answer
            if (
                type(result) is array
                and result.dtype is dtype
                and result.shape == shape
                and result.flags.c_contiguous
                and type(result.base) is not array
            ):
                for value in inputs:
                    if value is result:
                        break
                else:
                    return answer
        return check(answer, inputs, buffers)

    if not boundary.hints and not boundary.input_hints:
        return run_and_check
    return tell_with_inputs(run_and_check, boundary, record)


class _Results(NamedTuple):
    """What a step of an EP gives, looked at closely; attributes as arguments of `checked`."""

    record: PluginRecord
    hook: str
    outputs: Sequence[ValueInfo]
    context_node: str | None

    def check(
        self, results: Any, inputs: Sequence[Any], buffers: Sequence[np.ndarray] | None
    ) -> Sequence[Any]:
        """Check a whole answer.

        Raises:
            PluginError: it is not what the contract asks for.
            InvalidGraph: it is not what a context model declares.
        """
        kind = type(results).__name__
        results = plain(results)
        if type(results) is not list:
            raise self._broken(f"gave a {kind} instead of a list of arrays")
        if len(results) != len(self.outputs):
            raise self._broken(f"gave {len(results)} results for {len(self.outputs)} outputs")
        for place, result in enumerate(results):
            if buffers is None:
                self._check_one(place, result, inputs)
            elif result is not buffers[place]:
                raise self._broken(
                    f"was given memory for the output {self._name(place)} and gave back another array"
                )
        return results

    def _check_one(self, place: int, result: Any, inputs: Sequence[Any]) -> None:
        """Check one result; of a value that is no tensor, or of unknown type, only the memory.

        Raises:
            PluginError, InvalidGraph: see `check`.
        """
        name, wanted = self._name(place), self.outputs[place].type
        if isinstance(result, np.ndarray):
            if _shares_memory(result, inputs):
                raise self._broken(f"gave an output {name} that shares memory with an input")
        elif wanted.dtype is not None:
            raise self._broken(f"gave a {type(result).__name__} instead of an array for the output {name}")
        if wanted.dtype is None:
            return
        if not result.flags.c_contiguous:
            raise self._broken(f"gave an output {name} that is not C-contiguous")
        if not (has_type(result, wanted) and has_shape(result, wanted)):
            found = f"{result.dtype}{list(result.shape)}"
            if self.context_node is not None:
                raise InvalidGraph(
                    f"{self.record.label} gave {found} for the output {name}, which is {wanted} in the context model, "
                    f"in {self.hook}.",
                    node=self.context_node,
                    ep=self.record.name,
                    hint="The model was changed after it was compiled, or the EP computes wrongly: compile it again. If "
                    "the error stays, report it to the EP's vendor.",
                )
            raise self._broken(f"gave {found} for the output {name}, which is {wanted}")

    def _name(self, place: int) -> str:
        return repr(self.outputs[place].name)

    def _broken(self, what: str) -> PluginError:
        return contract_broken(self.record, self.hook, what)


def _shares_memory(result: np.ndarray, inputs: Sequence[Any]) -> bool:
    """Whether a result is an input, or a view of memory that an input is in."""
    is_view = isinstance(result.base, np.ndarray)
    return any(
        value is result or (is_view and isinstance(value, np.ndarray) and np.may_share_memory(result, value))
        for value in inputs
    )


def has_type(array: np.ndarray, wanted: TensorType) -> bool:
    """Whether an array has a type."""
    # Text comes as objects or as one of numpy's own kinds.
    return array.dtype == wanted.dtype or (wanted.dtype == object and array.dtype.kind in "OUST")


def has_shape(array: np.ndarray, wanted: TensorType) -> bool:
    """Whether an array has a shape, as far as that is known."""
    if wanted.shape is None or array.shape == wanted.shape:
        return True
    return len(array.shape) == len(wanted.shape) and all(
        not isinstance(dim, int) or dim == length
        for dim, length in zip(wanted.shape, array.shape, strict=True)
    )


def tell_of_outputs(run: RunStep, boundary: Boundary) -> RunStep:
    """Return a step's `run` that says once of each value that it has another shape than the model declares."""
    if not boundary.hints:
        return run
    left = dict(boundary.hints)

    def run_and_tell(inputs: Sequence[Any], buffers: Sequence[np.ndarray] | None) -> Sequence[Any]:
        answer = run(inputs, buffers)
        for place, value in list(left.items()):
            result = answer[place]
            other = isinstance(result, np.ndarray) and not has_shape(result, value.type)
            if other and left.pop(place, None) is not None:
                _log.warning("%s.", _falsely_declared(value, result))
        return answer

    return run_and_tell


def _falsely_declared(value: ValueInfo, found: np.ndarray) -> str:
    return (
        f"the model declares {value.type} for the value {value.name!r}, and its operators give "
        f"{found.dtype}{list(found.shape)}"
    )


def tell_with_inputs(run: RunStep, boundary: Boundary, record: PluginRecord) -> RunStep:
    """Return an EP's `run` that tells of its outputs, and names a false declaration of an input where the EP fails."""
    if not boundary.input_hints:
        return tell_of_outputs(run, boundary)

    def run_with_hints(inputs: Sequence[Any], buffers: Sequence[np.ndarray] | None) -> Sequence[Any]:
        try:
            return run(inputs, buffers)
        except Exception as error:
            for place, value in boundary.input_hints.items():
                if isinstance(inputs[place], np.ndarray) and not has_shape(inputs[place], value.type):
                    raise RuntimeException(
                        f"{_falsely_declared(value, inputs[place])}; {record.name} was given what is declared, and "
                        f"fails: {describe(error)}",
                        ep=record.name,
                        hint=f"Remove the value_info {value.name!r} from the model and compile it again.",
                    ) from error
            raise

    return tell_of_outputs(run_with_hints, boundary)


_log = logging.getLogger("epctx.session")
F = TypeVar("F", bound=Callable[..., object])


def given_model(model: object) -> str | os.PathLike[str] | bytes:
    """Return a model that is a path or bytes.

    Raises:
        InvalidArgument: it is neither, or empty.
    """
    if isinstance(model, (bytearray, memoryview)):
        raise InvalidArgument(
            f"a model is a path or bytes, not a {type(model).__name__}: what is mapped must not change.",
            hint="Give bytes(model), or the path of its file.",
        )
    if not isinstance(model, (str, os.PathLike, bytes)) or not model:
        raise InvalidArgument(
            f"a model is a path or bytes, not {model!r:.80}.", hint="Give the path of an ONNX file."
        )
    return model


def given_options(options: object) -> SessionOptions:
    """Return a copy of session options.

    Raises:
        InvalidArgument: they are none of epctx's.
    """
    if not isinstance(options, SessionOptions):
        kind = f"{type(options).__module__}.{type(options).__name__}"
        raise InvalidArgument(
            f"sess_options is a {kind}, not a SessionOptions.",
            hint="Give an epctx_core.SessionOptions; that of onnxruntime is another class.",
        )
    return options.copy()


def given_function(name: str, function: F) -> F:
    """Return a function of the host's.

    Raises:
        InvalidArgument: it cannot be called.
    """
    if not callable(function):
        raise InvalidArgument(
            f"{name} takes a function, not {function!r:.80}.", hint="Give something that can be called."
        )
    return function


def requested_providers(
    options: SessionOptions,
    providers: Sequence[str | tuple[str, Mapping[str, object]]] | None,
    provider_options: Sequence[Mapping[str, object]] | None,
) -> list[tuple[str, Mapping[str, object]]] | None:
    """Return the host's EPs with their options; None if it named none.

    Raises:
        InvalidArgument: they are given twice over, or not in a form that `InferenceSession` takes.
    """
    if providers is None:
        if provider_options is not None:
            raise InvalidArgument("provider_options was given without providers.")
        return list(options.providers) or None
    if options.providers:
        raise InvalidArgument(
            "EPs were given both to the session options and as providers.",
            hint="Use add_provider of the session options, or the argument providers, not both.",
        )
    if provider_options is not None and len(provider_options) != len(providers):
        raise InvalidArgument(
            f"there are {len(providers)} providers and {len(provider_options)} provider_options."
        )
    if isinstance(providers, str):
        raise InvalidArgument(f"providers is a list of EPs, not the text {providers!r}.")
    requested: list[tuple[str, Mapping[str, object]]] = []
    for place, item in enumerate(providers):
        name, given = _name_and_options(item)
        further = provider_options[place] if provider_options is not None else {}
        if not isinstance(further, Mapping):
            raise InvalidArgument(f"provider_options of {name} is a {type(further).__name__}, not a mapping.")
        requested.append((name, {**given, **further}))
    return requested


def _name_and_options(item: object) -> tuple[str, Mapping[str, object]]:
    """Return an entry of `providers` as name and options."""
    if isinstance(item, str):
        return item, {}
    if isinstance(item, tuple) and len(item) == 2:  # noqa: PLR2004 - name and options
        name, options = item
        if isinstance(name, str) and isinstance(options, Mapping):
            return name, options
    raise InvalidArgument(
        f"an entry of providers is {_form(item)}.",
        hint='Each is an EP type, or a tuple of EP type and options: ("QNN", {"htp_arch": "73"}).',
    )


def _form(item: object) -> str:
    """Return what an entry is, without its values, which may be secret."""
    if isinstance(item, (tuple, list)):
        return (
            f"a {type(item).__name__} of {', '.join(type(each).__name__ for each in item[:4]) or 'nothing'}"
        )
    return f"an object of type {type(item).__name__}"
