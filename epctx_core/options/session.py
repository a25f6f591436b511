"""Session options that a host sets; the keys, and what they mean, are in `table`.

Names, arguments and meanings are ONNX Runtime's; where that silently swallows a misspelt key or value,
`InvalidArgument` is raised with a suggestion. Provider options (`ep.<ep name>.<key>`) are only recognised
here: each EP's schema checks them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from copy import copy as shallow_copy
from types import MappingProxyType
from typing import Any

from epctx_core.errors import InvalidArgument, ModelLoadCanceled
from epctx_core.options.choices import ExecutionMode, GraphOptimizationLevel
from epctx_core.options.host_data import HostData, InputBudget, is_whole
from epctx_core.options.table import (
    SESSION_OPTIONS,
    SessionConfig,
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
            option = SessionConfig.optional_providers
            names = dict.fromkeys([*option.value_in(self._entries), name])
            self.add_session_config_entry(option.key, ",".join(names))

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
        return SessionConfig(
            entries=self.config_entries,
            overrides=self.model_overrides,
            data_reader=self.data_reader,
            input_budget=self.input_budget,
            source_model_buffer=self.source_model_buffer,
        )
