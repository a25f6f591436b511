"""Session options of a host; `table` defines the keys.

Names, arguments and meanings are ONNX Runtime's. A misspelt key or value, which
onnxruntime ignores, is an `InvalidArgument` with a suggestion. Provider options
(`ep.<ep name>.<key>`) are checked by each EP's schema.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy as shallow_copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from epctx_core.errors import Fail, InvalidArgument, ModelLoadCanceled
from epctx_core.options.choices import (
    PROFILE,
    DataReader,
    ExecutionMode,
    GraphOptimizationLevel,
    InputBudget,
    ModelOverrides,
    is_whole,
)
from epctx_core.options.strict import CHECKED, Strict
from epctx_core.options.table import SESSION_OPTIONS, SessionConfig

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    import numpy as np

MAX_KEY_LENGTH = 1024
MAX_VALUE_LENGTH = 8192
LARGEST_SIZE = (1 << 63) - 1
"""Maximum size of a payload: the largest signed 64-bit number."""
_NUMBERS = frozenset(
    {"inter_op_num_threads", "intra_op_num_threads", "log_severity_level"}
)


class CancellationFlag:
    """Cancellation, set from any thread; the core and well-behaved EPs poll it between
    units of work.
    """

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self, requested: bool) -> None:
        """Request cancellation, or withdraw the request."""
        if requested:
            self._event.set()
        else:
            self._event.clear()

    @property
    def requested(self) -> bool:
        """True if the host has requested cancellation."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for cancellation, at most so many seconds; return whether it was
        requested.
        """
        return self._event.wait(seconds)

    def raise_if_requested(self) -> None:
        """Raise ModelLoadCanceled if the host has requested cancellation."""
        if self.requested:
            raise ModelLoadCanceled(
                "cancelled: the host set the load cancellation flag."
            )


_DEFAULTS: Mapping[str, object] = {
    **{name: default for name, (default, _) in CHECKED["SessionOptions"].items()},
    "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
    "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
    "intra_op_num_threads": 0,
    "inter_op_num_threads": 0,
    "log_severity_level": 2,
    "_data_reader": None,
    "_source_model": None,
    "_libraries": (),
    "_host_plugins": (),
    "providers": list,
    "cancellation": CancellationFlag,
    "input_budget": InputBudget,
    "_entries": dict,
    "_initializers": dict,
    "_dimensions": dict,
    "_denotations": dict,
}
"""Attribute to its default; a class where each object gets an instance of its own."""


class SessionOptions(Strict):
    """Options of a session or a compiler, with the names of
    `onnxruntime.SessionOptions`.

    Attributes that epctx does not have are errors, never ignored. With
    `graph_optimization_level` ORT_ENABLE_ALL, the default, or LAYOUT the CPU EP
    optimises its groups of nodes one by one; with BASIC or EXTENDED the whole model is
    optimised before EPs see it; both need onnxruntime.

    With `enable_profiling` a session or a compile writes a profile when it is closed or
    its `end_profiling` is called: `<profile_file_prefix>_<time>.json`, events of Chrome
    traces; it needs epctx-bench.

    Examples:
        >>> so = SessionOptions()
        >>> so.add_session_config_entry("ep.context_enable", "1")
        >>> so.add_provider("QNNExecutionProvider", {"htp_arch": "73"})
    """

    __slots__ = tuple(_DEFAULTS)

    graph_optimization_level: GraphOptimizationLevel
    execution_mode: ExecutionMode
    intra_op_num_threads: int
    inter_op_num_threads: int
    log_severity_level: int
    providers: list[tuple[str, dict[str, str]]]
    cancellation: CancellationFlag
    input_budget: InputBudget
    _entries: dict[str, str]
    _initializers: dict[str, np.ndarray]
    _dimensions: dict[str, int]
    _denotations: dict[str, int]
    _data_reader: DataReader | None
    _source_model: memoryview | None
    _libraries: tuple[str, ...]
    _host_plugins: tuple[object, ...]

    def __init__(self) -> None:
        # Every load makes options; what hosts set is checked, defaults need not be.
        for name, default in _DEFAULTS.items():
            value = default() if isinstance(default, type) else default
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _NUMBERS and not is_whole(value):
            raise InvalidArgument(f"{name} must be a whole number, not {value!r:.80}.")
        super().__setattr__(
            name, ExecutionMode(value) if name == "execution_mode" else value
        )

    def copy(self) -> SessionOptions:
        """Return an independent copy; only the cancellation flag is shared."""
        other = shallow_copy(self)
        other.providers = [(name, dict(options)) for name, options in self.providers]
        for name in (
            "_entries",
            "_initializers",
            "_dimensions",
            "_denotations",
        ):
            setattr(other, name, dict(getattr(self, name)))
        return other

    def has_providers(self) -> bool:
        """Return whether an EP was added."""
        return bool(self.providers)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set one config entry.

        Raises:
            InvalidArgument: a key `ep.*` or `session.*` that neither epctx nor
                onnxruntime knows, a value outside the allowed ones, or one too long.
        """
        texts = isinstance(key, str) and isinstance(value, str)
        if (
            not texts
            or not 0 < len(key) <= MAX_KEY_LENGTH
            or len(value) > MAX_VALUE_LENGTH
        ):
            raise InvalidArgument(
                f"session option {key!r:.40}: key and value must be text, the key of "
                f"1 to {MAX_KEY_LENGTH} and a value at most {MAX_VALUE_LENGTH} "
                "characters."
            )
        if key in SESSION_OPTIONS:
            SESSION_OPTIONS[key].check(value)
        else:
            from epctx_core.options.ignored_keys import check_key

            check_key(key)
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Return the entry's value, or the default of a key that epctx knows.

        Raises:
            InvalidArgument: the key was never set and has no default.
        """
        if key in self._entries:
            return self._entries[key]
        if key in SESSION_OPTIONS:
            return SESSION_OPTIONS[key].default
        from epctx_core.options.ignored_keys import suggest_key

        raise InvalidArgument(
            f"session option {key!r} was never set.{suggest_key(key)}"
        )

    def add_provider(
        self,
        name: str,
        options: Mapping[str, Any] | None = None,
        *,
        optional: bool = False,
    ) -> None:
        """Append an EP; order is priority. Short names (`QNN`) are accepted.

        Args:
            name: the EP.
            options: its options.
            optional: whether to skip it with a warning if it is not installed, broken
                or unavailable on this machine, as the session option
                `ep.optional_providers` does.

        Raises:
            InvalidArgument: the name is not a text, or the options are not a mapping.
        """
        if not isinstance(name, str) or not isinstance(options, Mapping | None):
            raise InvalidArgument(
                "add_provider takes a name and a mapping of options, "
                # values may be secret
                f"not {type(name).__name__} and {type(options).__name__}."
            )
        self.providers.append(
            (name, {str(k): str(v) for k, v in (options or {}).items()})
        )
        if optional:
            option = SessionConfig.optional_providers
            names = dict.fromkeys([*option.value_in(self._entries), name])
            self.add_session_config_entry(option.key, ",".join(names))

    def set_load_cancellation_flag(self, requested: bool) -> None:
        """Request that a compile or session creation with these options stops; callable
        from any thread.
        """
        self.cancellation.set(requested)

    @property
    def config_entries(self) -> Mapping[str, str]:
        """Read-only snapshot of the entries that were set."""
        return MappingProxyType(dict(self._entries))

    @property
    def ignored_config_entries(self) -> tuple[str, ...]:
        """Keys that were set and have no effect."""
        return self._other_keys(ignored=True)

    @property
    def provider_option_keys(self) -> tuple[str, ...]:
        """Keys that were set and have the form of an EP's option."""
        return self._other_keys(ignored=False)

    def _other_keys(self, *, ignored: bool) -> tuple[str, ...]:
        """Return the keys that were set and are not in `table`: those without an
        effect, or those of EPs.
        """
        others = [key for key in self._entries if key not in SESSION_OPTIONS]
        if not others:
            return ()
        from epctx_core.options.ignored_keys import is_ignored

        return tuple(key for key in others if is_ignored(key) is ignored)

    def provider_config_entries(self, ep: str) -> dict[str, str]:
        """Return the options of one EP that were set as
        `ep.<lower-case ep name>.<key>`.
        """
        start = f"ep.{ep.lower()}."
        return {
            k[len(start) :]: v for k, v in self._entries.items() if k.startswith(start)
        }

    def add_initializer(self, name: str, value: Any) -> None:
        """Replace the initializer of that name, wherever its data is stored.

        The array is not copied: the host may share it between sessions, and must not
        change it while one of them is open.

        Args:
            name: the name of an initializer of the main graph.
            value: an array, or an object with `numpy()` such as `onnxruntime.OrtValue`;
                of the initializer's type and shape, which is checked when a model is
                read.

        Raises:
            InvalidArgument: the name was passed before, or the value is not an array of
                numbers.
        """
        _check_name("add_initializer", name)
        if name in self._initializers:
            raise InvalidArgument(
                f"add_initializer: {name!r} was passed before.",
                hint="Pass one value for each initializer.",
            )

        import numpy as np

        array = value.numpy() if callable(getattr(value, "numpy", None)) else value
        if (
            not isinstance(array, np.ndarray)
            or array.dtype.hasobject
            or array.dtype.kind in "US"
        ):
            raise InvalidArgument(
                f"add_initializer: the value of {name!r} is of type "
                f"{type(array).__name__}, not an array of numbers.",
                hint=(
                    "Pass a numpy array or an onnxruntime.OrtValue with a tensor of "
                    "numbers."
                ),
            )

        self._initializers[name] = np.ascontiguousarray(array).reshape(array.shape)

    def add_external_initializers(
        self, names: Sequence[str], values: Sequence[Any]
    ) -> None:
        """Replace initializers, as `add_initializer` does for each.

        Raises:
            InvalidArgument: the lists differ in length, or as for `add_initializer`.
        """
        if isinstance(names, str) or len(names) != len(values):
            raise InvalidArgument(
                "add_external_initializers takes a list of names and as many values."
            )
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Set the length of the open dimension of that name, such as `batch`, wherever
        the model has it.

        Raises:
            InvalidArgument: the name is not a text, the length not a whole number from
                0, or different from one that was set before.
        """
        _add_length(
            "add_free_dimension_override_by_name", self._dimensions, name, value
        )

    def add_free_dimension_override_by_denotation(
        self, denotation: str, value: int
    ) -> None:
        """Set the length of open dimensions of that denotation, such as `DATA_BATCH`;
        see the other override.
        """
        _add_length(
            "add_free_dimension_override_by_denotation",
            self._denotations,
            denotation,
            value,
        )

    def set_ep_context_data_read_func(
        self, read_func: Callable[[str, Any], object], max_data_size: int
    ) -> None:
        """Read payloads outside of a context model by a function instead of from files.

        A session made from these options calls it once for each payload that its nodes
        name; several sessions may call it at the same time. No file is opened, and the
        name is passed as the model has it. The data is checked against the model's
        manifest.

        Args:
            read_func: `f(name, buffer)`; it calls `buffer.allocate(size)` exactly once
                and then `buffer.write(data, offset)`. An exception becomes the
                `__cause__` of a Fail.
            max_data_size: maximum size of a payload in bytes; a larger one is refused
                before memory is allocated.

        Raises:
            InvalidArgument: the callback is not a function, or the size not a finite
                number above 0.
        """
        if not callable(read_func):
            raise InvalidArgument(
                "the EPContext data read callback must be a function, not "
                f"{read_func!r:.80}.",
                hint="To remove a callback, call clear_ep_context_data_read_func.",
            )
        if not is_whole(max_data_size) or not 0 < max_data_size <= LARGEST_SIZE:
            raise InvalidArgument(
                "max_data_size must be a finite number of bytes above 0, not "
                f"{max_data_size!r:.80}.",
                hint="Pass the most memory that a payload may take in this process.",
            )
        self._data_reader = DataReader(function=read_func, max_size=int(max_data_size))

    def clear_ep_context_data_read_func(self) -> None:
        """Read payloads from files again; existing sessions are not affected."""
        self._data_reader = None

    def set_weightless_source_model_buffer(self, buffer: Buffer | None) -> None:
        """Set the bytes of the model from which a weightless context model was
        compiled; None removes them.

        They have precedence over `ep.context_source_model_path` and over a file beside
        the context model. Nothing is copied before a session needs weights; the host
        must not change the buffer while one is open.

        Raises:
            InvalidArgument: it is not a buffer of bytes, or it is empty.
        """
        try:
            view = None if buffer is None else memoryview(buffer).cast("B").toreadonly()
        except TypeError as error:
            raise InvalidArgument(
                "set_weightless_source_model_buffer takes the bytes of a model, not "
                f"{buffer!r:.80}."
            ) from error
        if view is not None and not view:
            raise InvalidArgument(
                "set_weightless_source_model_buffer: the buffer is empty."
            )
        self._source_model = view

    def register_custom_ops_library(self, path: str | os.PathLike[str]) -> None:
        """Add a library of custom operators for the engine on onnxruntime, which loads
        it when a model is opened.

        Args:
            path: the shared library. A model never names one; registering it again does
                nothing.

        Raises:
            InvalidArgument: it is not a path.
            Fail: there is no such file.
        """
        if not isinstance(path, str | os.PathLike):
            raise InvalidArgument(
                f"register_custom_ops_library takes a path, not {path!r:.80}."
            )
        library = os.path.abspath(path)  # noqa: PTH100 - links stay: a loader may look beside them
        if not os.path.isfile(library):  # noqa: PTH113 - Path.is_file raises for texts that are no paths
            text = "there is no such library of custom operators."
            raise Fail(
                text,
                path=library,
                hint="Give the path of its file; no folders are searched.",
            )
        self._libraries = tuple(dict.fromkeys((*self._libraries, library)))

    def add_host_plugin(self, plugin: object) -> None:
        """Wrap hooks of EPs in one session or compile.

        It is checked when the session is made; plugins of
        `Registry.register_host_plugin` and those added before are around it.

        Args:
            plugin: the object; or the name of an installed one, an entry point of the
                group `epctx.host_plugins`, or `<distribution>:<name>`.
        """
        self._host_plugins = (*self._host_plugins, plugin)

    @property
    def host_plugins(self) -> tuple[object, ...]:
        """Plugins that wrap hooks of the session's EPs, or names of installed ones, the
        outermost first.
        """
        profile = (PROFILE,) if self.enable_profiling else ()
        return (*profile, *self._host_plugins)

    @property
    def data_reader(self) -> DataReader | None:
        """Callback that reads payloads, if the host set one."""
        return self._data_reader

    @property
    def model_overrides(self) -> ModelOverrides:
        """Read-only snapshot of the replaced initializers and dimensions."""
        return ModelOverrides(
            initializers=MappingProxyType(dict(self._initializers)),
            dimensions=MappingProxyType(dict(self._dimensions)),
            denotations=MappingProxyType(dict(self._denotations)),
        )

    def config(self) -> SessionConfig:
        """Return all entries as typed values.

        Raises:
            InvalidArgument: entries that contradict each other.
        """
        return SessionConfig(
            entries=self.config_entries,
            overrides=self.model_overrides,
            data_reader=self.data_reader,
            input_budget=self.input_budget,
            source_model_buffer=self._source_model,
            custom_ops_libraries=self._libraries,
        )


def _check_name(method: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidArgument(
            f"{method}: the name must be a text that is not empty, not {name!r:.80}."
        )


def _add_length(method: str, lengths: dict[str, int], name: str, value: Any) -> None:
    _check_name(method, name)
    if not is_whole(value) or value < 0:
        raise InvalidArgument(
            f"{method}: the length of {name!r} must be a whole number from 0 on, not "
            f"{value!r:.80}."
        )
    if lengths.setdefault(name, int(value)) != value:
        raise InvalidArgument(
            f"{method}: {name!r} has been set to the length {lengths[name]} before, "
            f"and now {value}.",
            hint="Set one length for each open dimension, or make new session options.",
        )
