"""The values that options of a session, a compile or a load may have, as enumerations; nothing acts on them here."""

from __future__ import annotations

from enum import STRICT, Enum, IntEnum, IntFlag

from epctx_core.errors import InvalidArgument


class GraphOptimizationLevel(IntEnum):
    """ONNX Runtime's levels, by its names and numbers; another number is InvalidArgument."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99

    @classmethod
    def _missing_(cls, value: object) -> GraphOptimizationLevel:
        raise _none_of(cls, value)


class ExecutionMode(IntEnum):
    """How the steps of a plan are run; ORT_PARALLEL is accepted and runs sequentially. Else InvalidArgument."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1

    @classmethod
    def _missing_(cls, value: object) -> ExecutionMode:
        raise _none_of(cls, value)


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
            raise _none_of(cls, value) from None
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


def _none_of(choices: type[Enum], value: object) -> InvalidArgument:
    return InvalidArgument(
        f"{value!r:.80} is no {choices.__name__}.", hint=f"Use {', '.join(choices.__members__)}."
    )
