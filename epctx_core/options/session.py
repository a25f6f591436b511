"""Session options: what a host may set, and what it means together.

Owns `SessionOptions`, which a host fills in, and its typed reading; the keys are in `table`. Names,
arguments and meanings are ONNX Runtime's; where that silently swallows a misspelt key or value,
`InvalidArgument` is raised with a suggestion. Provider options (`ep.<ep name>.<key>`) are only recognised
here: each EP's schema checks them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from copy import copy as shallow_copy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from epctx_core.errors import InvalidArgument, ModelLoadCanceled
from epctx_core.options.choices import (
    ExecutionMode,
    GraphOptimizationLevel,
    Isolation,
    Verification,
    WeightlessMode,
)
from epctx_core.options.host_data import DataReader, HostData, InputBudget, ModelOverrides, is_whole
from epctx_core.options.table import (
    SESSION_OPTIONS,
    check_entry,
    is_ignored,
    is_provider_option,
    suggested_key,
)
from epctx_core.options.unsupported import WITHOUT_EFFECT, Strict, tell_without_effect

MAX_KEY_LENGTH = 1024
MAX_VALUE_LENGTH = 8192
_NUMBERS = frozenset({"inter_op_num_threads", "intra_op_num_threads", "log_severity_level"})


class CancellationFlag:
    """Set from any thread; the core and well-behaved EPs poll it between units of work."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self, requested: bool) -> None:
        """Ask for cancellation, or take the request back."""
        if requested:
            self._event.set()
        else:
            self._event.clear()

    @property
    def requested(self) -> bool:
        """Whether the host has asked for the work to stop."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until the host asks for the work to stop, at most so long; return whether it did."""
        return self._event.wait(seconds)

    def raise_if_requested(self) -> None:
        """Raise ModelLoadCanceled if the host has asked for the work to stop."""
        if self._event.is_set():
            raise ModelLoadCanceled("cancelled: the host set the load cancellation flag.")


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """The typed, immutable reading of a SessionOptions' config entries; the table of keys says what each means.

    Attributes:
        external_initializers_file: where the initializers of a written context model go, relative to it.
        external_initializers_folder: where the weights of a model that is read lie.
        map_binaries: False for a private copy of each context binary, verified whole.
        read_back: whether EPs read back what they wrote before it is published.
        source_model_path: the source of a weightless context model.
        source_model_buffer: the same as bytes, which go first.
        model_format: "ONNX" or "ORT" if the model must be in that format.
        isolation: which work of EPs is done in a process of its own.
        isolation_seconds: what one hook may take there.
        isolation_bytes: what such a process may have of memory and give back at once; None for no limit.
        overrides: what takes the place of what a model says.
        data_reader: the host's callback that reads payloads outside of the model.
        input_budget: bounds on what a model may decode to.
    """

    context_enable: bool
    context_file_path: str | None
    embed: bool
    node_name_prefix: str
    external_initializers_file: str | None
    map_binaries: bool
    verification: Verification
    source_model_path: str | None
    weightless: WeightlessMode
    share_contexts: bool
    stop_sharing: bool
    prefer_latency: bool | None
    partition_min_nodes: int
    partition_max_count: int | None
    external_initializers_folder: str | None
    disable_cpu_ep_fallback: bool
    disable_model_compile: bool
    fail_on_suboptimal: bool
    record_assignments: bool
    optional_providers: tuple[str, ...] = ()
    overrides: ModelOverrides = field(default_factory=ModelOverrides)
    data_reader: DataReader | None = None
    input_budget: InputBudget = field(default_factory=InputBudget)
    source_model_buffer: memoryview | None = None
    read_back: bool = True
    model_format: str | None = None
    isolation: Isolation = Isolation.NONE
    isolation_seconds: int = 600
    isolation_bytes: int | None = None


_WEIGHTLESS_KEYS = (
    "ep.enable_weightless_ep_context_nodes",
    "ep.enable_weightless",
    "ep.enable_weightless_mode",
)
"""What one wish was called in ONNX Runtime, the newest name last."""


class SessionOptions(HostData, Strict):
    """What a host asks of a session or a compiler; same names as `onnxruntime.SessionOptions`.

    What onnxruntime has and epctx has not is refused with a sentence, never swallowed. With
    `graph_optimization_level` ORT_ENABLE_ALL, the default, or LAYOUT the CPU EP optimises its pieces one by one; with
    BASIC or EXTENDED the whole model is optimised before EPs see it; both need onnxruntime.

    Example:
        >>> so = SessionOptions()
        >>> so.add_session_config_entry("ep.context_enable", "1")
        >>> so.add_provider("QNNExecutionProvider", {"htp_arch": "73"})
    """

    __slots__ = (
        "_entries",
        *WITHOUT_EFFECT["SessionOptions"],
        "cancellation",
        "execution_mode",
        "graph_optimization_level",
        "input_budget",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_severity_level",
        "providers",
    )

    def __init__(self) -> None:
        super().__init__()
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.log_severity_level = 2
        self.providers: list[tuple[str, dict[str, str]]] = []
        self.cancellation = CancellationFlag()
        self.input_budget = InputBudget()
        for name, (default, _) in WITHOUT_EFFECT["SessionOptions"].items():
            setattr(self, name, default)
        self._entries: dict[str, str] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _NUMBERS and not is_whole(value):
            raise InvalidArgument(f"{name} is a whole number, not {value!r:.80}.")
        super().__setattr__(name, ExecutionMode(value) if name == "execution_mode" else value)

    def copy(self) -> SessionOptions:
        """Return options that say the same and change on their own; only the cancellation flag is shared."""
        other = shallow_copy(self)
        other._own_data()  # noqa: SLF001 - of its own class
        other.providers = [(name, dict(options)) for name, options in self.providers]
        other._entries = dict(self._entries)  # noqa: SLF001 - the same
        return other

    def has_providers(self) -> bool:
        """Whether an EP was added."""
        return bool(self.providers)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set one config entry.

        Raises:
            InvalidArgument: a key `ep.*` or `session.*` that neither epctx nor onnxruntime knows, a value
                outside the allowed ones, or one too long.
        """
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidArgument(
                f"session option {key!r}: key and value must be text, not {type(value).__name__}."
            )
        if not key or len(key) > MAX_KEY_LENGTH or len(value) > MAX_VALUE_LENGTH:
            raise InvalidArgument(
                f"session option {key[:40]!r}: a key has 1 to {MAX_KEY_LENGTH} and a value at most {MAX_VALUE_LENGTH} characters."
            )
        check_entry(key, value)
        if is_ignored(key):
            tell_without_effect(f"the session option {key!r}", "epctx does not act on it")
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
        raise InvalidArgument(f"session option {key!r} was never set.{suggested_key(key)}")

    def add_provider(
        self, name: str, options: Mapping[str, Any] | None = None, *, optional: bool = False
    ) -> None:
        """Append an EP; order is priority. Short names (`QNN`) are accepted.

        Args:
            name: the EP.
            options: its options.
            optional: whether to go without it, with a warning, if it is not installed, broken or unavailable
                here; the same as naming it in the session option `ep.optional_providers`.

        Raises:
            InvalidArgument: the name is no text, or the options are no mapping.
        """
        if not isinstance(name, str) or not isinstance(options, Mapping | None):
            raise InvalidArgument(
                "add_provider takes a name and a mapping of options, "
                f"not {type(name).__name__} and {type(options).__name__}."  # values may be secret
            )
        self.providers.append((name, {str(k): str(v) for k, v in (options or {}).items()}))
        if optional:
            names = dict.fromkeys([*self._optional_providers(), name])
            self.add_session_config_entry("ep.optional_providers", ",".join(names))

    def set_load_cancellation_flag(self, requested: bool) -> None:
        """Ask a compile or session creation that uses these options to stop; callable from any thread."""
        self.cancellation.set(requested)

    @property
    def config_entries(self) -> Mapping[str, str]:
        """A read-only snapshot of the entries that were set."""
        return MappingProxyType(dict(self._entries))

    @property
    def ignored_config_entries(self) -> tuple[str, ...]:
        """The keys that were set and that epctx does not act on."""
        return tuple(filter(is_ignored, self._entries))

    @property
    def provider_option_keys(self) -> tuple[str, ...]:
        """The keys that were set and have the form of one EP's option."""
        return tuple(filter(is_provider_option, self._entries))

    def provider_config_entries(self, ep: str) -> dict[str, str]:
        """Return the options given as `ep.<lower-case ep name>.<key>` for one EP type."""
        start = f"ep.{ep.lower()}."
        return {k[len(start) :]: v for k, v in self._entries.items() if k.startswith(start)}

    def config(self) -> SessionConfig:
        """Return the typed reading of all entries.

        Raises:
            InvalidArgument: entries that contradict each other.
        """
        get = self.get_session_config_entry
        latency, count = get("ep.prefer_latency"), get("ep.partition_max_count")
        return SessionConfig(
            context_enable=self._is_on("ep.context_enable"),
            context_file_path=get("ep.context_file_path") or None,
            embed=self._is_on("ep.context_embed_mode"),
            node_name_prefix=get("ep.context_node_name_prefix"),
            external_initializers_file=get("ep.context_model_external_initializers_file_name") or None,
            map_binaries=self._is_on("ep.context_file_mapping"),
            verification=Verification(get("ep.context_verify")),
            read_back=self._is_on("ep.context_read_back"),
            model_format=get("session.load_model_format") or None,
            source_model_path=get("ep.context_source_model_path") or None,
            weightless=self._weightless(),
            share_contexts=self._is_on("ep.share_ep_contexts"),
            stop_sharing=self._stops_sharing(),
            prefer_latency=None if latency == "" else latency == "1",
            partition_min_nodes=int(get("ep.partition_min_nodes")),
            partition_max_count=int(count) if count else None,
            external_initializers_folder=get("session.model_external_initializers_file_folder_path") or None,
            disable_cpu_ep_fallback=self._is_on("session.disable_cpu_ep_fallback"),
            disable_model_compile=self._is_on("session.disable_model_compile"),
            fail_on_suboptimal=self._is_on("session.fail_on_suboptimal_compiled_model"),
            record_assignments=self._is_on("session.record_ep_graph_assignment_info"),
            optional_providers=self._optional_providers(),
            overrides=self.model_overrides,
            data_reader=self.data_reader,
            input_budget=self.input_budget,
            source_model_buffer=self.source_model_buffer,
            isolation=Isolation(get("ep.isolate")),
            isolation_seconds=int(get("ep.isolate_timeout_seconds")),
            isolation_bytes=int(limit) if (limit := get("ep.isolate_max_bytes")) else None,
        )

    def _optional_providers(self) -> tuple[str, ...]:
        names = self.get_session_config_entry("ep.optional_providers").split(",")
        return tuple(name.strip() for name in names if name.strip())

    def _is_on(self, key: str) -> bool:
        return self.get_session_config_entry(key) == "1"

    def _stops_sharing(self) -> bool:
        stops = self._is_on("ep.stop_share_ep_contexts")
        if stops and not self._is_on("ep.share_ep_contexts"):
            raise InvalidArgument(
                "ep.stop_share_ep_contexts=1 was set without ep.share_ep_contexts=1: there is no group to end.",
                hint="Set both for the last session of a group, and neither without a group.",
            )
        return stops

    def _weightless(self) -> WeightlessMode:
        """Return what the keys for weightless mode say together; the newest one says more exactly which."""
        said = {key: self._entries[key] for key in _WEIGHTLESS_KEYS if key in self._entries}
        if len({value == "0" for value in said.values()}) > 1:
            raise InvalidArgument(
                f"{' and '.join(f'{key}={value}' for key, value in said.items())} contradict each other.",
                hint=f"Set {_WEIGHTLESS_KEYS[-1]} alone.",
            )
        mode = said.pop(_WEIGHTLESS_KEYS[-1], None)
        if mode is None:
            return WeightlessMode.ALL if "1" in said.values() else WeightlessMode.NONE
        return WeightlessMode(int(mode))
