"""Small values that pass between the core and an EP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np


class Purpose(Enum):
    """What an EP instance is made for."""

    EXPORT = "export"
    """Compile ahead of time; no device may be opened."""
    LOAD = "load"
    """Run a context model."""
    RUN = "run"
    """Compile and run in one session."""


@dataclass(frozen=True)
class Availability:
    """Whether an EP can serve a purpose on this machine, and if not, why.

    Example:
        >>> Availability(False, reason="no NPU driver found", hint="Install the driver.")
    """

    available: bool
    _: KW_ONLY
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class BuildInfo:
    """What an EP compiles with and for; the core notes it in the manifest of a context model.

    For people who ask where a model came from: nothing is judged by it. What a later load must know
    belongs into `ExecutionProvider.get_compatibility_info`.

    Attributes:
        sdk: version of the compiler or SDK, as its vendor writes it.
        driver: version of the driver that payloads need, empty where there is none.
        target: the device that payloads are for.
    """

    sdk: str = ""
    driver: str = ""
    target: str = ""


class Compatibility(IntEnum):
    """`OrtCompiledModelCompatibility`, by ONNX Runtime's names and numbers."""

    EP_NOT_APPLICABLE = 0
    EP_SUPPORTED_OPTIMAL = 1
    EP_SUPPORTED_PREFER_RECOMPILATION = 2
    EP_UNSUPPORTED = 3


Dimension: TypeAlias = "int | str | None"
"""A length, a symbolic name (dim_param), or None where nothing is known."""


class Extent(NamedTuple):
    """Where a tensor's bytes lie: an absolute path, an offset and a length in bytes."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of a value.

    Attributes:
        elem_type: an `onnx.TensorProto.DataType`, or None for what is not a dense tensor or not known.
        shape: one entry a dimension, or None if even the rank is unknown.
    """

    elem_type: int | None
    shape: tuple[Dimension, ...] | None

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a known length."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @cached_property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy (or ml_dtypes) type of an element, or None without one."""
        if self.elem_type is None:
            return None
        import numpy as np
        import onnx

        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(self.elem_type))

    def __str__(self) -> str:
        import onnx

        kind = "?" if self.elem_type is None else onnx.TensorProto.DataType.Name(self.elem_type).lower()
        dims = "?" if self.shape is None else ",".join("?" if d is None else str(d) for d in self.shape)
        return f"{kind}[{dims}]"


UNKNOWN_TYPE = TensorType(None, None)


class ValueInfo(NamedTuple):
    """A named value with its type; the boundary of partitions and context nodes is made of these."""

    name: str
    type: TensorType

    @property
    def elem_type(self) -> int | None:
        """An `onnx.TensorProto.DataType`, or None."""
        return self.type.elem_type

    @property
    def shape(self) -> tuple[Dimension, ...] | None:
        """The dimensions, or None if the rank is unknown."""
        return self.type.shape

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy (or ml_dtypes) type of an element."""
        return self.type.dtype


@dataclass(frozen=True, kw_only=True)
class ContextNode:
    """An EPContext node as an EP gets it to load.

    Attributes:
        name: the node's name in the model.
        partition_name: the graph's name inside the payload, as `EPContextNode.graph_name` or the core said; the node's
            name where it is not written.
        source: as written in the model.
        main_context: whether the node carries (or names) a payload itself.
        primary: the node whose payload holds this node's graph: itself for a primary, the only
            primary of the EP for a reference. None for a reference where there are several: the EP
            looks for `partition_name` in their payloads.
        inputs, outputs: the boundary, in the order in which `run` gets and gives tensors.
        attributes: everything the node says, decoded: int, float, str, or bytes where not UTF-8;
            without `ep_cache_context`, which only the core reads.
    """

    name: str
    partition_name: str
    source: str
    main_context: bool
    primary: ContextNode | None = field(repr=False, compare=False)
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    attributes: Mapping[str, Any]


RunFunction: TypeAlias = "Callable[[Sequence[np.ndarray], Sequence[np.ndarray] | None], Sequence[np.ndarray]]"


@dataclass(frozen=True)
class CompiledPartition:
    """A partition (or a loaded EPContext node), ready to run.

    Args:
        run: `run(inputs, outputs=None)` with C-contiguous numpy arrays in the order of the
            boundary. Inputs are read-only; results never alias inputs; given outputs are written in
            place and returned. The core checks what it gives. Stateless and callable from many threads.
            None only under purpose EXPORT.
        close: called once when the session ends, after the last run. Several partitions may have one, such as
            `runtime.close` of a runtime object that all of them run on: it is called once, after the others are closed.
    """

    run: RunFunction | None
    _: KW_ONLY
    close: Callable[[], None] | None = None
