"""What a host hands over by value: initializers, lengths of open dimensions, the callback that reads payloads.

Knows neither models nor onnx; what a value means for a model is found out where the model is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    import numpy as np

LARGEST_SIZE = (1 << 63) - 1
"""The longest payload that a host may allow: what a signed 64-bit number holds."""


@dataclass(frozen=True, kw_only=True)
class ModelOverrides:
    """What a host puts in place of what a model says.

    Attributes:
        initializers: name to the array that takes the initializer's place; not copied.
        dimensions: name of an open dimension to its length.
        denotations: denotation of an open dimension to its length.
    """

    initializers: Mapping[str, np.ndarray] = field(default_factory=dict)
    dimensions: Mapping[str, int] = field(default_factory=dict)
    denotations: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.initializers or self.dimensions or self.denotations)


@dataclass(frozen=True, kw_only=True)
class DataReader:
    """The host's callback for payloads outside of a model.

    Attributes:
        function: called with a payload's name and an `OrtEpContextDataBuffer`.
        max_size: bytes that a payload may have.
    """

    function: Callable[[str, Any], object]
    max_size: int


@dataclass(frozen=True, kw_only=True)
class InputBudget:
    """Bounds on what a model's bytes may decode to, counted before anything is decoded; of an `.ort` file, as it is decoded.

    The defaults let pass what real exporters write: a million nodes with their types, every weight of a large language
    model. A host that knows its models sets smaller ones.

    Attributes:
        messages: protobuf messages: nodes, attributes, tensors, types, dimensions, entries of metadata.
        bytes_per_message: length of the file for each message, beyond the first 262,144.
        nodes: nodes, those in subgraphs and functions, too.
        names: texts: names of nodes and values, keys, doc strings.
        bodies: graphs, the main graph and subgraphs.
        manifest_entries: entries of all lists and objects in the manifest.

    Raises:
        InvalidArgument: one is no whole number above 0.

    Example:
        >>> so = SessionOptions()
        >>> so.input_budget = InputBudget(nodes=100_000)
    """

    messages: int = 1 << 25
    bytes_per_message: int = 4
    nodes: int = 1 << 25
    names: int = 1 << 25
    bodies: int = 1 << 25
    manifest_entries: int = 1 << 23

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not is_whole(value) or value < 1:
                raise InvalidArgument(f"InputBudget: {name} is a whole number above 0, not {value!r:.80}.")


class HostData:
    """The part of `SessionOptions` that takes values. Names and arguments are ONNX Runtime's."""

    __slots__ = ("_data_reader", "_denotations", "_dimensions", "_initializers", "_source_model")

    def __init__(self) -> None:
        self._initializers: dict[str, np.ndarray] = {}
        self._dimensions: dict[str, int] = {}
        self._denotations: dict[str, int] = {}
        self._data_reader: DataReader | None = None
        self._source_model: memoryview | None = None

    def add_initializer(self, name: str, value: Any) -> None:
        """Put a value in the place of the model's initializer of that name, wherever that one lies.

        The array is not copied: the host may share it between sessions, and must not change it while
        one of them lives.

        Args:
            name: of an initializer of the main graph.
            value: an array, or an object with `numpy()` such as `onnxruntime.OrtValue`; of the
                initializer's type and shape, which is checked when a model is read.

        Raises:
            InvalidArgument: the name was given before, or the value is no array of numbers.
        """
        _check_text("add_initializer", "name", name)
        if name in self._initializers:
            raise InvalidArgument(
                f"add_initializer: {name!r} was given before.", hint="Give one value for each initializer."
            )
        self._initializers[name] = _as_array(name, value)

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Put values in the place of initializers, as `add_initializer` does for each.

        Raises:
            InvalidArgument: not one value for each name, or as `add_initializer`.
        """
        if isinstance(names, str) or len(names) != len(values):
            raise InvalidArgument(
                "add_external_initializers takes a list of names and a list of as many values."
            )
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Give the open dimension of that name, such as `batch`, a length, wherever the model names it.

        Raises:
            InvalidArgument: the name is no text, the length no whole number from 0 on, or another one
                than was given before.
        """
        _add_length("add_free_dimension_override_by_name", self._dimensions, name, value)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Give open dimensions of that denotation, such as `DATA_BATCH`, a length; see the other override."""
        _add_length("add_free_dimension_override_by_denotation", self._denotations, denotation, value)

    def set_ep_context_data_read_func(
        self, read_func: Callable[[str, Any], object], max_data_size: int
    ) -> None:
        """Have payloads outside of a context model read by a function instead of from files.

        A session made from these options calls it once for each payload that its nodes name; several
        sessions may call it at the same time. No file is opened, and the name is passed as the model
        has it. What the model's manifest says about a payload is checked against what the function gave.

        Args:
            read_func: `f(name, buffer)`; it calls `buffer.allocate(size)` exactly once and then
                `buffer.write(data, offset)`. What it raises is the `__cause__` of a Fail.
            max_data_size: bytes that a payload may have; a larger one is refused before it has memory.

        Raises:
            InvalidArgument: no function, or no finite size above 0.
        """
        if not callable(read_func):
            raise InvalidArgument(
                f"the EPContext data read callback must be a function, not {read_func!r:.80}.",
                hint="clear_ep_context_data_read_func takes a callback away.",
            )
        if not is_whole(max_data_size) or not 0 < max_data_size <= LARGEST_SIZE:
            raise InvalidArgument(
                f"max_data_size must be a finite number of bytes above 0, not {max_data_size!r:.80}.",
                hint="Name the most that a payload may take of this process's memory.",
            )
        self._replace_reader(DataReader(function=read_func, max_size=int(max_data_size)))

    def clear_ep_context_data_read_func(self) -> None:
        """Read payloads from files again; sessions that exist are not changed."""
        self._replace_reader(None)

    def set_weightless_source_model_buffer(self, buffer: Buffer | None) -> None:
        """Give the bytes of the model from which a weightless context model was compiled; None takes them back.

        They go before `ep.context_source_model_path` and before a file beside the context model. Nothing is
        copied before a session needs weights out of it; the host must not change it while one lives.

        Raises:
            InvalidArgument: it is no buffer of bytes, or an empty one.
        """
        try:
            view = None if buffer is None else memoryview(buffer).cast("B").toreadonly()
        except TypeError as error:
            raise InvalidArgument(
                f"set_weightless_source_model_buffer takes the bytes of a model, not {buffer!r:.80}."
            ) from error
        if view is not None and not view:
            raise InvalidArgument("set_weightless_source_model_buffer: the buffer is empty.")
        self._source_model = view

    @property
    def source_model_buffer(self) -> memoryview | None:
        """The source of weightless context models, if the host gave its bytes."""
        return self._source_model

    def _replace_reader(self, reader: DataReader | None) -> None:
        # The former one goes when this returns: by then its finalizer finds the new state.
        former, self._data_reader = self._data_reader, reader
        del former

    @property
    def data_reader(self) -> DataReader | None:
        """The callback that reads payloads, if the host gave one."""
        return self._data_reader

    @property
    def model_overrides(self) -> ModelOverrides:
        """A read-only snapshot of what takes the place of what a model says."""
        return ModelOverrides(
            initializers=MappingProxyType(dict(self._initializers)),
            dimensions=MappingProxyType(dict(self._dimensions)),
            denotations=MappingProxyType(dict(self._denotations)),
        )

    def _own_data(self) -> None:
        """After a shallow copy: change apart from the original."""
        self._initializers = dict(self._initializers)
        self._dimensions = dict(self._dimensions)
        self._denotations = dict(self._denotations)


def is_whole(value: object) -> bool:
    """Whether a value is a whole number, numpy's included, and no truth value."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _check_text(method: str, what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"{method}: the {what} must be a text that is not empty, not {value!r:.80}.")


def _add_length(method: str, lengths: dict[str, int], name: str, value: Any) -> None:
    _check_text(method, "name", name)
    if not is_whole(value) or value < 0:
        raise InvalidArgument(
            f"{method}: the length of {name!r} must be a whole number from 0 on, not {value!r:.80}."
        )
    if lengths.setdefault(name, int(value)) != value:
        raise InvalidArgument(
            f"{method}: {name!r} was given the length {lengths[name]} before, and now {value}.",
            hint="Give each open dimension one length, or make new session options.",
        )


def _as_array(name: str, value: Any) -> np.ndarray:
    import numpy as np

    given = value.numpy() if callable(getattr(value, "numpy", None)) else value
    if not isinstance(given, np.ndarray) or given.dtype.hasobject or given.dtype.kind in "US":
        raise InvalidArgument(
            f"add_initializer: the value of {name!r} is a {type(given).__name__}, not an array of numbers.",
            hint="Give a numpy array or an onnxruntime.OrtValue that holds a tensor of numbers.",
        )
    return np.ascontiguousarray(given).reshape(given.shape)
