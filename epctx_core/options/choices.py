"""The values that a host may choose: enumerations of options, and what it gives by value. Nothing acts on them here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import STRICT, Enum, IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, NoReturn

from epctx_core.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np


def _refuse(choices: type[Enum], value: object) -> NoReturn:
    raise InvalidArgument(
        f"{value!r:.80} is no {choices.__name__}.", hint=f"Use {', '.join(choices.__members__)}."
    ) from None


class GraphOptimizationLevel(IntEnum):
    """ONNX Runtime's levels, by its names and numbers; another number is InvalidArgument."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99

    _missing_ = classmethod(_refuse)


class ExecutionMode(IntEnum):
    """How the steps of a plan are run; ORT_PARALLEL is accepted and runs sequentially. Else InvalidArgument."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1

    _missing_ = classmethod(_refuse)


class OrtCompileApiFlags(IntFlag, boundary=STRICT):
    """Flags of `ModelCompiler`, by ONNX Runtime's names and numbers; other bits are InvalidArgument."""

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2

    @classmethod
    def _missing_(cls, value: object) -> OrtCompileApiFlags:
        try:
            found: OrtCompileApiFlags = super()._missing_(value)
        except ValueError:
            _refuse(cls, value)
        return found


class WeightlessMode(IntEnum):
    """Which of the source's weights a payload refers to instead of holding them."""

    NONE = 0
    EXTERNAL_ONLY = 1
    ALL = 2


class Verification(Enum):
    """Depth to which payloads are checked against the manifest when they are loaded."""

    ONCE = "once"
    """All payloads whole, unless a receipt says that this machine did so before; beside the EPs' own loading."""
    HEAD = "head"
    """Size, first segment and some blocks: tells truncated and swapped payloads apart without reading weights."""
    LAZY = "lazy"
    """Each payload whole, when an EP first asks for it."""
    FULL = "full"
    """All payloads whole, before any EP gets one."""


class Isolation(Enum):
    """Which work of EPs is done in a process of its own."""

    NONE = ""
    COMPILE = "compile"
    """What a compile asks of an EP; what was compiled is loaded and run by the host's own process."""
    ALL = "all"
    """Loading and running, too."""


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


CPU_EP = "CPUExecutionProvider"
"""The default EP: built in, always there, last. Computes with onnxruntime's EP of the same name."""
FREE_MESSAGES = 1 << 18
"""Messages that a model may have however few bytes it has for each."""


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


def is_whole(value: object) -> bool:
    """Whether a value is a whole number, numpy's included, and no truth value."""
    return hasattr(value, "__index__") and not isinstance(value, bool)
