"""Session options: what a host may set, with defaults and allowed values.

Owns the `ep.*` and `session.*` keys and the objects a host fills in (`SessionOptions`, `RunOptions`).
Names, arguments and meanings are ONNX Runtime's; where that silently swallows a misspelt key or value
this module raises `InvalidArgument` with a suggestion. Provider options (`ep.<ep name>.<key>`) are only
recognised here: each EP's schema checks them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from types import MappingProxyType
from typing import Any

from epctx_core.errors import InvalidArgument, ModelLoadCanceled, suggestion

MAX_KEY_LENGTH = 1024
MAX_VALUE_LENGTH = 4096


class GraphOptimizationLevel(IntEnum):
    """ONNX Runtime's levels, by its names and numbers."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """How the steps of a plan are run; ORT_PARALLEL is accepted and runs sequentially."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class OrtCompileApiFlags(IntFlag):
    """Flags of `ModelCompiler`, by ONNX Runtime's names and numbers."""

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


@dataclass(frozen=True, kw_only=True)
class SessionOption:
    """One key that epctx acts on; `choices` empty means any text that `pattern` matches."""

    key: str
    default: str
    choices: tuple[str, ...] = ()
    pattern: str = ".*"
    doc: str

    def check(self, value: str) -> None:
        """Raise InvalidArgument if the value is not allowed for this key."""
        if self.choices and value not in self.choices:
            allowed = " or ".join(repr(c) for c in self.choices)
            raise InvalidArgument(
                f"session option {self.key!r} has the value {value!r}; allowed is {allowed}.", hint=self.doc
            )
        if not re.fullmatch(self.pattern, value, re.DOTALL):
            raise InvalidArgument(
                f"session option {self.key!r} has the value {value!r}, which does not match {self.pattern!r}.",
                hint=self.doc,
            )


_FLAG = ("0", "1")
SESSION_OPTIONS: Mapping[str, SessionOption] = MappingProxyType(
    {
        option.key: option
        for option in (
            SessionOption(
                key="ep.context_enable",
                default="0",
                choices=_FLAG,
                doc="1: creating a session also writes the context model.",
            ),
            SessionOption(
                key="ep.context_file_path",
                default="",
                doc="Where the context model is written; for a model from bytes, also the path whose folder holds its binaries.",
            ),
            SessionOption(
                key="ep.context_embed_mode",
                default="0",
                choices=_FLAG,
                doc="1: payloads are stored inside the context model; 0: in a file beside it.",
            ),
            SessionOption(
                key="ep.context_node_name_prefix",
                default="",
                pattern=r"[A-Za-z0-9_.-]{0,128}",
                doc="Put before every partition's name: node name, partition_name and the graph name in the payload.",
            ),
            SessionOption(
                key="ep.prefer_latency",
                default="",
                choices=("", *_FLAG),
                doc="1: prepack weights (faster runs, a private copy); 0: never; empty: prepack up to 64 MiB of weights.",
            ),
            SessionOption(
                key="ep.partition_min_nodes",
                default="1",
                pattern="[0-9]{1,9}",
                doc="Partitions of fewer nodes are left to the next EP; the report says so.",
            ),
            SessionOption(
                key="ep.partition_max_count",
                default="",
                pattern="[0-9]{0,9}",
                doc="The most partitions that each EP may have; of more, the largest are kept. Empty: no limit.",
            ),
            SessionOption(
                key="session.model_external_initializers_file_folder_path",
                default="",
                doc="The folder of a model's external weights; needed for a model from bytes that has such weights.",
            ),
            SessionOption(
                key="session.disable_cpu_ep_fallback",
                default="0",
                choices=_FLAG,
                doc="1: a node that no EP takes is an error instead of running on the CPU EP.",
            ),
            SessionOption(
                key="session.disable_model_compile",
                default="0",
                choices=_FLAG,
                doc="1: a session in which an EP would have to compile is refused.",
            ),
            SessionOption(
                key="session.fail_on_suboptimal_compiled_model",
                default="0",
                choices=_FLAG,
                doc="1: a context model that an EP would rather compile again is refused instead of warned about.",
            ),
        )
    }
)

# Whether such an EP exists is checked where EPs are looked up.
_PROVIDER_OPTION = re.compile(r"ep\.[a-z0-9_.-]+\.(.+)")


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
    """The typed, immutable reading of a SessionOptions' config entries."""

    context_enable: bool
    context_file_path: str | None
    embed: bool
    node_name_prefix: str
    prefer_latency: bool | None
    partition_min_nodes: int
    partition_max_count: int | None
    external_initializers_folder: str | None
    disable_cpu_ep_fallback: bool
    disable_model_compile: bool
    fail_on_suboptimal: bool


class SessionOptions:
    """What a host asks of a session or a compiler; same names as `onnxruntime.SessionOptions`.

    An attribute that is not listed here is refused, not swallowed. With
    `graph_optimization_level` ORT_ENABLE_ALL, the default, the CPU EP optimises its pieces one by one; with
    BASIC or EXTENDED the whole model is optimised before EPs see it; both need onnxruntime.

    Example:
        >>> so = SessionOptions()
        >>> so.add_session_config_entry("ep.context_enable", "1")
        >>> so.add_provider("QNNExecutionProvider", {"htp_arch": "73"})
    """

    __slots__ = (
        "_entries",
        "cancellation",
        "execution_mode",
        "graph_optimization_level",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_severity_level",
        "providers",
    )

    def __init__(self) -> None:
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.log_severity_level = 2
        self.providers: list[tuple[str, dict[str, str]]] = []
        self.cancellation = CancellationFlag()
        self._entries: dict[str, str] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set one config entry.

        Raises:
            InvalidArgument: an unknown `ep.*` key, a value outside the allowed ones, or one too long.
        """
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidArgument(
                f"session option {key!r}: key and value must be text, not {type(value).__name__}."
            )
        if not key or len(key) > MAX_KEY_LENGTH or len(value) > MAX_VALUE_LENGTH:
            raise InvalidArgument(
                f"session option {key[:40]!r}: a key has 1 to {MAX_KEY_LENGTH} and a value at most {MAX_VALUE_LENGTH} characters."
            )
        option = SESSION_OPTIONS.get(key)
        if option is not None:
            option.check(value)
        elif key.startswith("ep.") and not _PROVIDER_OPTION.fullmatch(key):
            raise InvalidArgument(
                f"unknown session option {key!r}.{suggestion(key, SESSION_OPTIONS)}",
                hint="Options of one EP are written ep.<lower-case EP name>.<key>.",
            )
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
        raise InvalidArgument(f"session option {key!r} was never set.{suggestion(key, SESSION_OPTIONS)}")

    def add_provider(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        """Append an EP; order is priority. Short names (`QNN`) are accepted.

        Raises:
            InvalidArgument: the name is no text, or the options are no mapping.
        """
        if not isinstance(name, str) or not isinstance(options, Mapping | None):
            raise InvalidArgument(
                f"add_provider takes a name and a mapping of options, not {name!r:.80}, {options!r:.80}."
            )
        self.providers.append((name, {str(k): str(v) for k, v in (options or {}).items()}))

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
        return tuple(
            k for k in self._entries if k not in SESSION_OPTIONS and not _PROVIDER_OPTION.fullmatch(k)
        )

    def provider_config_entries(self, ep: str) -> dict[str, str]:
        """Return the options given as `ep.<lower-case ep name>.<key>` for one EP type."""
        start = f"ep.{ep.lower()}."
        return {k[len(start) :]: v for k, v in self._entries.items() if k.startswith(start)}

    def config(self) -> SessionConfig:
        """Return the typed reading of all entries."""
        get = self.get_session_config_entry
        latency, count = get("ep.prefer_latency"), get("ep.partition_max_count")
        return SessionConfig(
            context_enable=get("ep.context_enable") == "1",
            context_file_path=get("ep.context_file_path") or None,
            embed=get("ep.context_embed_mode") == "1",
            node_name_prefix=get("ep.context_node_name_prefix"),
            prefer_latency=None if latency == "" else latency == "1",
            partition_min_nodes=int(get("ep.partition_min_nodes")),
            partition_max_count=int(count) if count else None,
            external_initializers_folder=get("session.model_external_initializers_file_folder_path") or None,
            disable_cpu_ep_fallback=get("session.disable_cpu_ep_fallback") == "1",
            disable_model_compile=get("session.disable_model_compile") == "1",
            fail_on_suboptimal=get("session.fail_on_suboptimal_compiled_model") == "1",
        )


class RunOptions:
    """Options of one call of `run`: set `terminate` from another thread to stop it between steps."""

    def __init__(self) -> None:
        self.terminate = False
        self.tag = ""
