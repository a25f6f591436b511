"""Values of options: enumerations, and values that a host passes as objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import STRICT, Enum, IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from epctx_core.errors import InvalidArgument
from epctx_core.frozen import dataclass

if TYPE_CHECKING:
    import numpy as np


def _refuse(choices: type[Enum], value: object) -> NoReturn:
    raise InvalidArgument(
        f"{value!r:.80} is not a value of {choices.__name__}.",
        hint=f"Use {', '.join(choices.__members__)}.",
    ) from None


class GraphOptimizationLevel(IntEnum):
    """ONNX Runtime's levels, by its names and numbers; another number is
    InvalidArgument.
    """

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99

    __str__ = Enum.__str__
    _missing_ = classmethod(_refuse)


class ExecutionMode(IntEnum):
    """Order of steps in a run; ORT_PARALLEL is accepted and runs sequentially.

    Another number is InvalidArgument.
    """

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1

    __str__ = Enum.__str__
    _missing_ = classmethod(_refuse)


class OrtCompileApiFlags(IntFlag, boundary=STRICT):
    """Flags of `ModelCompiler`, by ONNX Runtime's names and numbers; other bits are
    InvalidArgument.
    """

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2

    __str__ = Enum.__str__

    @classmethod
    def _missing_(cls, value: object) -> OrtCompileApiFlags:
        try:
            flags: OrtCompileApiFlags = super()._missing_(value)
        except ValueError:
            _refuse(cls, value)
        return flags


class WeightlessMode(IntEnum):
    """Weights that a payload refers to in the source model instead of containing
    them.
    """

    NONE = 0
    EXTERNAL_ONLY = 1
    ALL = 2


class Verification(Enum):
    """Depth to which payloads are checked against the manifest when they are loaded."""

    ONCE = "once"
    """All payloads in full, unless a receipt says that this machine did so before;
    concurrently with the EPs' loading.
    """
    HEAD = "head"
    """Size, first segment and some blocks: detects truncated and swapped payloads
    without reading weights.
    """
    LAZY = "lazy"
    """Each payload in full, when an EP first requests it."""
    FULL = "full"
    """All payloads in full, before any EP gets one."""


class Isolation(Enum):
    """Work of EPs that is done in a separate process."""

    NONE = ""
    COMPILE = "compile"
    """Compiling; the host's own process loads and runs the result."""
    ALL = "all"
    """Compiling, loading and running."""


@dataclass(frozen=True, kw_only=True)
class ModelOverrides:
    """Replacements of initializers and open dimensions of a model.

    Attributes:
        initializers: name to the array that replaces the initializer; not copied.
        dimensions: name of an open dimension to its length.
        denotations: denotation of an open dimension to its length.
    """

    initializers: Mapping[str, np.ndarray] = field(default_factory=dict)
    dimensions: Mapping[str, int] = field(default_factory=dict)
    denotations: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.initializers or self.dimensions or self.denotations)


class DataReader(NamedTuple):
    """Callback of a host for payloads outside of a model.

    Attributes:
        function: called with a payload's name and an `OrtEpContextDataBuffer`.
        max_size: maximum size of a payload in bytes.
    """

    function: Callable[[str, Any], object]
    max_size: int


PROFILE = "profile"
"""Name of the host plugin that `SessionOptions.enable_profiling` adds."""
CPU_EP = "CPUExecutionProvider"
"""Name of the built-in EP, which is always the last."""
FREE_MESSAGES = 1 << 18
"""Messages that a model may have, whatever its size."""


@dataclass(frozen=True, kw_only=True)
class InputBudget:
    """Limits on the decoded content of a model, counted before anything is decoded (of
    an `.ort` file, while decoding).

    The defaults accept the models of real exporters: a million nodes with their types,
    every weight of a large language model. A host that knows its models sets lower
    limits.

    Attributes:
        messages: protobuf messages: nodes, attributes, tensors, types, dimensions,
            entries of metadata.
        bytes_per_message: length of the file for each message, beyond the first
            262,144.
        nodes: nodes, including those of subgraphs and functions.
        names: texts: names of nodes and values, keys, doc strings.
        bodies: graphs: the main graph and subgraphs.
        manifest_entries: entries of all lists and objects in the manifest.

    Raises:
        InvalidArgument: one is not a whole number above 0.

    Examples:
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
                raise InvalidArgument(
                    f"InputBudget: {name} is a whole number above 0, not {value!r:.80}."
                )

    @property
    def free(self) -> int:
        """Number of messages, nodes, names or bodies that no limit forbids."""
        return min(self.messages, FREE_MESSAGES, self.nodes, self.names, self.bodies)


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number (also of numpy) and not a bool."""
    return hasattr(value, "__index__") and not isinstance(value, bool)
