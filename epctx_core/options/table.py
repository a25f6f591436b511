"""Table of the session options that epctx acts on.

The typed config, the part in a cache's key and the table in `docs/reference/options.md`
come from an option's row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from epctx_core.errors import InvalidArgument
from epctx_core.file_names import find_unwritable
from epctx_core.frozen import dataclass
from epctx_core.options.choices import (
    InputBudget,
    Isolation,
    ModelOverrides,
    Verification,
    WeightlessMode,
)

if TYPE_CHECKING:
    from epctx_core.options.choices import DataReader

_T = TypeVar("_T")
_BY_CHOICE: Any = str  # Any: of no _T; a row with choices is read by them


class CachePart(Enum):
    """Part of an option in the key of a cached model; docs/reference/options.md shows
    the value.
    """

    WRITTEN = "in the key"
    """It changes the output of a compile; the key contains it with its default."""
    REFUSED = "refused"
    """The output depends on files outside of the cache, so that it cannot be cached."""
    SOURCE = "no meaning"
    """It describes files of the source or of a compile: a cached model is loaded
    without it.
    """
    CHOICE = "by what it chooses"
    """It chooses EPs or an engine; the key contains those."""
    LOAD = "none"
    """It does not change the output of a compile."""


@dataclass(frozen=True, kw_only=True)
class SessionOption(Generic[_T]):
    """Row of the table of options; an attribute of a `SessionConfig` gives its value.

    Attributes:
        key: the key that hosts set.
        default: the default text.
        choices: the allowed texts with their values; empty for all that `pattern` and
            `read` accept.
        read: returns the value of a text, or raises ValueError that completes "the
            value ..., which ...".
        pattern: regular expression for the whole text.
        values: the allowed values in words, if there are no choices.
        cache: its part in the key of a cached model.
        doc: description of the option.
        aliases: other keys of the same option, the newest first.
    """

    key: str
    default: str = ""
    choices: Mapping[str, _T] = field(default_factory=dict)
    read: Callable[[str], _T] = _BY_CHOICE
    pattern: str = ".*"
    values: str = ""
    cache: CachePart
    doc: str
    aliases: tuple[SessionOption[_T], ...] = ()

    @overload
    def __get__(self, config: None, owner: type) -> Self: ...
    @overload
    def __get__(self, config: SessionConfig, owner: type) -> _T: ...
    def __get__(self, config: SessionConfig | None, owner: type) -> Self | _T:
        return self if config is None else self.value_in(config.entries)

    def value_in(self, entries: Mapping[str, str]) -> _T:
        """Return the value that the entries set by all keys of this option; its own key
        has precedence.

        Raises:
            InvalidArgument: one key enables the option and another disables it.
        """
        if not self.aliases:
            return self.value_of(entries.get(self.key, self.default))
        values = {
            o.key: o.value_of(entries[o.key])
            for o in (*reversed(self.aliases), self)
            if o.key in entries
        }
        if len({bool(value) for value in values.values()}) > 1:
            raise InvalidArgument(
                f"{' and '.join(f'{key}={entries[key]}' for key in values)} "
                "contradict each other.",
                hint=f"Set {self.key} alone.",
            )
        return values.popitem()[1] if values else self.value_of(self.default)

    def value_of(self, text: str) -> _T:
        """Return the value of an allowed text."""
        return self.choices[text] if self.choices else self.read(text)

    @property
    def allowed(self) -> str:
        """Allowed values for documentation."""
        return (
            ", ".join(f"`{c}`" if c else "empty" for c in self.choices) or self.values
        )

    def check(self, value: str) -> None:
        """Raise InvalidArgument if the value is not allowed for this key."""
        if self.choices and value not in self.choices:
            raise self._error(
                value, f"; allowed is {' or '.join(map(repr, self.choices))}"
            )
        if not re.fullmatch(self.pattern, value, re.DOTALL):
            raise self._error(value, f"; allowed is {self.values.replace('`', '')}")
        try:
            self.value_of(value)
        except ValueError as error:
            raise self._error(value, f", which {error}") from None

    def _error(self, value: str, why: str) -> InvalidArgument:
        problem = f"session option {self.key!r} has the value {value!r:.200}{why}."
        return InvalidArgument(problem, hint=self.doc)


def _parse_file_name(value: str) -> str | None:
    """Return the name of a file inside the output model's folder; raise ValueError for
    any other name.
    """
    if value and (fault := find_unwritable(value)):
        raise ValueError(fault)
    return value or None


def _parse_text(value: str) -> str | None:
    return value or None


def _parse_number(value: str) -> int | None:
    return int(value) if value else None


def split_names(value: str) -> tuple[str, ...]:
    """Return the items of a comma-separated text."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _make_flag(key: str, *, default: str = "0", **facts: Any) -> SessionOption[bool]:
    return SessionOption(
        key=key, default=default, choices={"0": False, "1": True}, **facts
    )


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """Typed, immutable session options: the rows of the table, and values that a host
    passed as objects.

    Attributes:
        entries: key to value of the config entries that were set.
        overrides: replaced initializers and dimensions.
        data_reader: the host's callback that reads payloads outside of the model.
        input_budget: limits on the decoded content of a model.
        source_model_buffer: the source of a weightless context model as bytes; it has
            precedence over its path.
        custom_ops_libraries: paths of the libraries of custom operators, in the order
            of their registration.

    Raises:
        InvalidArgument: entries that contradict each other.
    """

    entries: Mapping[str, str] = field(default_factory=dict)
    overrides: ModelOverrides = field(default_factory=ModelOverrides)
    data_reader: DataReader | None = None
    input_budget: InputBudget = field(default_factory=InputBudget)
    source_model_buffer: memoryview | None = None
    custom_ops_libraries: tuple[str, ...] = ()

    context_enable = _make_flag(
        key="ep.context_enable",
        cache=CachePart.SOURCE,
        doc=(
            "1: creating a session also writes the context model. EPContext nodes "
            "that the model has already pass through."
        ),
    )
    context_file_path = SessionOption(
        key="ep.context_file_path",
        values="a path",
        read=_parse_text,
        cache=CachePart.SOURCE,
        doc=(
            "Where the context model is written; when one is loaded, the path whose "
            "folder holds its binaries. Compiling one again: those of a model from a "
            "file lie beside it, those of a model from bytes in this folder."
        ),
    )
    embed = _make_flag(
        key="ep.context_embed_mode",
        cache=CachePart.WRITTEN,
        doc="1: payloads are stored inside the context model; 0: in a file beside it.",
    )
    node_name_prefix = SessionOption(
        key="ep.context_node_name_prefix",
        pattern=r"[A-Za-z0-9_.-]{0,128}",
        values="0 to 128 letters, digits, `_`, `.` and `-`",
        read=str,
        cache=CachePart.WRITTEN,
        doc=(
            "Put before every partition's name: node name and, unless the EP names "
            "its graphs itself, partition_name."
        ),
    )
    external_initializers_file = SessionOption(
        key="ep.context_model_external_initializers_file_name",
        values="a file name relative to the output model, not leaving its folder",
        read=_parse_file_name,
        cache=CachePart.WRITTEN,
        doc=(
            "The file for all initializers of the written context model, scalars too; "
            "empty: they are in the model."
        ),
    )
    map_binaries = _make_flag(
        key="ep.context_file_mapping",
        default="1",
        cache=CachePart.LOAD,
        doc=(
            "1: context binaries are mapped; 0: each is read into memory of its own "
            "and verified there, whole."
        ),
    )
    verification = SessionOption(
        key="ep.context_verify",
        default="once",
        choices={v.value: v for v in Verification},
        cache=CachePart.LOAD,
        doc=(
            "How payloads are checked against the manifest: once: all whole the first "
            "time a machine sees a file, concurrently with the EP's loading; head: "
            "size, first segment and some blocks; lazy: each whole, when an EP first "
            "asks for it; full: all whole, before any EP gets one."
        ),
    )
    trust_unverified = _make_flag(
        key="ep.context_trust_unverified",
        cache=CachePart.LOAD,
        doc=(
            "1: an EP whose native code a damaged payload could crash gets payloads "
            "without digests in this process; 0: it loads and runs them in a process "
            "of its own."
        ),
    )
    read_back = _make_flag(
        key="ep.context_read_back",
        default="1",
        cache=CachePart.LOAD,
        doc=(
            "1: before anything is published, each EP reads back what it wrote, as "
            "far as it can without a device, and what runs on this machine is run "
            "once, on zeros, for the shapes of its results; 0: what was written is "
            "published unread."
        ),
    )
    model_format = SessionOption(
        key="session.load_model_format",
        values="`ONNX`, `ORT`, the name of another installed format, or empty",
        read=_parse_text,
        cache=CachePart.SOURCE,
        doc=(
            "The format that the model must have: `ONNX`, or the name of an entry "
            "point of the group `epctx.model_formats`; empty: ONNX, ORT told by its "
            "bytes, or the installed format that the file's suffix names."
        ),
    )
    source_model_path = SessionOption(
        key="ep.context_source_model_path",
        values="a path",
        read=_parse_text,
        cache=CachePart.SOURCE,
        doc=(
            "The source of a weightless context model; empty: its "
            "onnx_model_filename, beside the context model."
        ),
    )
    weightless = SessionOption(
        key="ep.enable_weightless_mode",
        default="0",
        choices={str(m.value): m for m in WeightlessMode},
        cache=CachePart.REFUSED,
        doc=(
            "Which of the source's weights payloads refer to instead of holding them: "
            "0: none; 1: those in external files; 2: all. Set together with the older "
            "keys, all must say yes or all no."
        ),
        aliases=tuple(
            SessionOption(
                key=key,
                default="0",
                choices={"0": WeightlessMode.NONE, "1": WeightlessMode.ALL},
                cache=CachePart.REFUSED,
                doc=doc,
            )
            for key, doc in {
                "ep.enable_weightless": (
                    "1: payloads refer to all of the source's weights instead of "
                    "holding them; ONNX Runtime 1.29's key."
                ),
                "ep.enable_weightless_ep_context_nodes": (
                    "The same under the name that ONNX Runtime 1.25 gave it."
                ),
            }.items()
        ),
    )
    share_contexts = _make_flag(
        key="ep.share_ep_contexts",
        cache=CachePart.REFUSED,
        doc=(
            "1: the session belongs to a weight-sharing group: one binary for several "
            "models, mapped once."
        ),
    )
    stop_sharing = _make_flag(
        key="ep.stop_share_ep_contexts",
        cache=CachePart.REFUSED,
        doc=(
            "1: the session is its group's last; only together with "
            "ep.share_ep_contexts=1."
        ),
    )
    prefer_latency = SessionOption(
        key="ep.prefer_latency",
        choices={"": None, "0": False, "1": True},
        cache=CachePart.LOAD,
        doc=(
            "1: prepack weights (faster runs, a private copy); 0: never; empty: "
            "prepack up to 64 MiB of weights, and all in a session that is one piece "
            "of the CPU EP."
        ),
    )
    partition_min_nodes = SessionOption(
        key="ep.partition_min_nodes",
        default="1",
        pattern=r"[0-9]{1,9}",
        values="a whole number of up to 9 digits",
        read=int,
        cache=CachePart.WRITTEN,
        doc="Partitions of fewer nodes are left to the next EP; the report says so.",
    )
    partition_max_count = SessionOption(
        key="ep.partition_max_count",
        pattern=r"[0-9]{0,9}",
        values="a whole number of up to 9 digits, or empty",
        read=_parse_number,
        cache=CachePart.WRITTEN,
        doc=(
            "The most partitions that each EP may have; of more, the largest are "
            "kept. Empty: no limit."
        ),
    )
    keeps_idle = SessionOption(
        key="ep.partition_without_computation",
        default="release",
        choices={"release": False, "keep": True},
        cache=CachePart.WRITTEN,
        doc=(
            "What becomes of a partition whose operators only move, cast or make data "
            "(Reshape, Cast, Constant): release: it is left to the next EP, and the "
            "report says so, unless it lies between two partitions of the same EP; "
            "keep: the EP compiles it."
        ),
    )
    optional_providers = SessionOption(
        key="ep.optional_providers",
        values="names of EPs, separated by commas",
        read=split_names,
        cache=CachePart.CHOICE,
        doc=(
            "Of the EPs that are asked for, those to go without, with a warning, if "
            "they are not installed, broken or unavailable on this machine."
        ),
    )
    goes_on_to_next = SessionOption(
        key="ep.on_compile_failure",
        default="stop",
        choices={"stop": False, "next": True},
        cache=CachePart.WRITTEN,
        doc=(
            "What follows where an EP fails to compile a partition: stop: its error; "
            "next: a warning, and the nodes go to the EPs after it, then to the CPU "
            "EP. With next, each partition is compiled by a call of its own."
        ),
    )
    isolation = SessionOption(
        key="ep.isolate",
        choices={i.value: i for i in Isolation},
        cache=CachePart.LOAD,
        doc=(
            "Which work is done in a process of its own, so that a crash or a hang "
            "of an EP there is an error here: empty: none; compile: compiles, also "
            "those of sessions; all: whole sessions, with loading and running, too."
        ),
    )
    compile_seconds = SessionOption(
        key="ep.compile_timeout",
        pattern=r"([1-9][0-9]{0,5})?",
        values="a whole number of seconds from 1 to 999999, or empty",
        read=_parse_number,
        cache=CachePart.LOAD,
        doc=(
            "How long the compile of one model may take, from the first question to an "
            "EP, before its process is ended: with a limit, compiles are done in a "
            "process of their own as with `ep.isolate=compile`. Empty: no limit."
        ),
    )
    isolated_by = SessionOption(
        key="ep.isolate_by",
        default="process",
        values="the name of an installed isolation",
        read=str,
        cache=CachePart.LOAD,
        doc=(
            "What works in other processes for `ep.isolate`, and reads a strange model "
            "first for `verify`: the name of an entry point of the group "
            "`epctx.isolation`. `process` is the one of epctx-isolation."
        ),
    )
    isolation_seconds = SessionOption(
        key="ep.isolate_timeout_seconds",
        default="600",
        pattern=r"[1-9][0-9]{0,5}",
        values="a whole number of seconds from 1 to 999999",
        read=int,
        cache=CachePart.LOAD,
        doc=(
            "How long one call of a plugin in another process, or the work between "
            "two, may take before that process is ended."
        ),
    )
    isolation_bytes = SessionOption(
        key="ep.isolate_max_bytes",
        pattern=r"([1-9][0-9]{0,14})?",
        values="a whole number of up to 15 digits, or empty",
        read=_parse_number,
        cache=CachePart.LOAD,
        doc=(
            "The most memory that the process of an isolated session or compile may "
            "have for data, and the most that it may give back in one message. Empty: "
            "no limit."
        ),
    )
    external_initializers_folder = SessionOption(
        key="session.model_external_initializers_file_folder_path",
        values="a folder",
        read=_parse_text,
        cache=CachePart.SOURCE,
        doc=(
            "The folder of a model's external weights; needed for a model from bytes "
            "that has such weights. It never says where context binaries are."
        ),
    )
    disable_cpu_ep_fallback = _make_flag(
        key="session.disable_cpu_ep_fallback",
        cache=CachePart.LOAD,
        doc="1: a node that no EP takes is an error instead of running on the CPU EP.",
    )
    disable_model_compile = _make_flag(
        key="session.disable_model_compile",
        cache=CachePart.LOAD,
        doc="1: a session in which an EP would have to compile is refused.",
    )
    fail_on_suboptimal = _make_flag(
        key="session.fail_on_suboptimal_compiled_model",
        cache=CachePart.LOAD,
        doc=(
            "1: a context model that an EP would rather compile again is refused "
            "instead of warned about."
        ),
    )
    record_assignments = _make_flag(
        key="session.record_ep_graph_assignment_info",
        cache=CachePart.LOAD,
        doc=(
            "1: the session keeps who runs which node, for "
            "get_provider_graph_assignment_info."
        ),
    )

    engine = SessionOption(
        key="session.engine",
        values="the name of an installed engine, or empty",
        read=_parse_text,
        cache=CachePart.CHOICE,
        doc=(
            "The engine that runs on the CPU what no EP takes, optimises models, and "
            "is lent to EPs: the name of an entry point of the group `epctx.engines`, "
            "or `onnx.reference` for the built-in one. Empty: what the environment "
            "variable `EPCTX_ENGINE` names, else `onnxruntime` where "
            "epctx-onnxruntime is installed."
        ),
    )

    @property
    def compile_isolation(self) -> Isolation:
        """`isolation` for a compile: its time limit isolates it, too."""
        if self.compile_seconds and self.isolation is Isolation.NONE:
            return Isolation.COMPILE
        return self.isolation

    @property
    def engine_settings(self) -> dict[str, Any]:
        """Arguments of `EnginePolicy` for every engine of a session or a compile."""
        return {
            "engine": self.engine,
            "custom_ops_libraries": self.custom_ops_libraries,
        }

    def __post_init__(self) -> None:
        for option in SESSION_OPTIONS.values():
            if option.aliases:
                option.value_in(self.entries)
        if self.stop_sharing and not self.share_contexts:
            raise InvalidArgument(
                "ep.stop_share_ep_contexts=1 was set without ep.share_ep_contexts=1: "
                "there is no group to end.",
                hint=(
                    "Set both for the last session of a group, and neither without a "
                    "group."
                ),
            )


SESSION_OPTIONS: Mapping[str, SessionOption[Any]] = MappingProxyType(
    {
        option.key: option
        for row in vars(SessionConfig).values()
        if isinstance(row, SessionOption)
        for option in (*row.aliases, row)
    }
)
