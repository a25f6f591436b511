"""Small values that the core and EPs exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, field
from enum import Enum, IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from epctx_core.frozen import dataclass

if TYPE_CHECKING:
    import numpy as np


class Purpose(Enum):
    """Purpose of an EP instance."""

    EXPORT = "export"
    """Compile ahead of time; no device may be opened."""
    LOAD = "load"
    """Run a context model."""
    RUN = "run"
    """Compile and run in one session."""


@dataclass(frozen=True)
class Availability:
    """Availability of an EP on this machine for a purpose, with a reason if it is
    unavailable.

    Args:
        available: whether it is available.
        reason: reason for which it is not, or empty.
        hint: the way to have it, or empty.

    Examples:
        >>> Availability(
        ...     False, reason="no NPU driver found", hint="Install the driver."
        ... )
    """

    available: bool
    _: KW_ONLY
    reason: str = ""
    hint: str = ""

    def __post_init__(self) -> None:
        """Refuse a reason in the place of `available`, which would count as True.

        Raises:
            TypeError: `available` is neither True nor False.
        """
        if not isinstance(self.available, bool):
            raise TypeError(
                f"Availability takes True or False first, not {self.available!r:.80}"
            )


@dataclass(frozen=True, kw_only=True)
class HardwareDevice:
    """Device that an EP works on, as hosts choose it; attributes as
    `onnxruntime.OrtHardwareDevice`.

    Attributes:
        type: `CPU`, `GPU` or `NPU`.
        vendor: who makes it; the EP's vendor if empty.
        vendor_id, device_id: its ids of PCI; 0 if unknown.
        metadata: what else hosts may want to know, as text.
        options: the EP's options with which it uses this device.
    """

    type: str = "NPU"
    vendor: str = ""
    vendor_id: int = 0
    device_id: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BuildInfo:
    """SDK, driver and target of payloads; the core writes them into the manifest of a
    context model.

    They tell people where a model came from; nothing is validated by them. Data for the
    validation of a later load belongs into `ExecutionProvider.get_compatibility_info`.

    Attributes:
        sdk: version of the compiler or SDK, as its vendor writes it.
        driver: version of the driver that payloads need, empty if there is none.
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

    def because(self, reason: str) -> Compatibility:
        """Return this verdict with a reason, which errors and findings then have.

        Args:
            reason: what is so on this machine, such as "installed is driver 2".

        Examples:
            >>> verdict = Compatibility.EP_UNSUPPORTED.because("installed is driver 2")
            >>> verdict == Compatibility.EP_UNSUPPORTED, verdict.reason
            (True, 'installed is driver 2')
        """
        verdict = int.__new__(Compatibility, self)
        vars(verdict).update(vars(self), reason=str(reason))
        return verdict

    @property
    def reason(self) -> str:
        """The reason of `because`; empty without one."""
        return str(vars(self).get("reason", ""))


Dimension: TypeAlias = "int | str | None"
"""Length, symbolic name (dim_param), or None if unknown."""


class Extent(NamedTuple):
    """Location of a tensor's bytes: absolute path, offset and length in bytes."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of a value.

    Attributes:
        elem_type: an `onnx.TensorProto.DataType`, or None for a value that is unknown
            or not a dense tensor.
        shape: one entry for each dimension, or None if the rank is unknown.
        is_proven: False if the model only declares the rank or a length of `shape`: a
            run may then have others. Equality ignores it.
    """

    elem_type: int | None
    shape: tuple[Dimension, ...] | None
    is_proven: bool = field(default=True, compare=False, repr=False, kw_only=True)

    @property
    def is_static(self) -> bool:
        """True if every dimension is a known length, proven or only declared."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @cached_property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy (or ml_dtypes) type of an element, or None without one."""
        if self.elem_type is None:
            return None
        from epctx_core.plugin.protos import tensor_dtype_to_np_dtype

        return tensor_dtype_to_np_dtype(self.elem_type)

    def __str__(self) -> str:
        from epctx_core.plugin.protos import ELEMENT_TYPES

        element = "?" if self.elem_type is None else ELEMENT_TYPES[self.elem_type]
        dims = (
            "?"
            if self.shape is None
            else ",".join("?" if d is None else str(d) for d in self.shape)
        )
        return f"{element}[{dims}]"


UNKNOWN_TYPE = TensorType(None, None)


class ValueInfo(NamedTuple):
    """Named value with its type, such as an input of a partition or context node."""

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
    """EPContext node that an EP is to load.

    Attributes:
        name: the node's name in the model.
        partition_name: the graph's name inside the payload, from
            `EPContextNode.graph_name` or the core; the node's name if the attribute is
            missing.
        source: the attribute of the model.
        main_context: whether the node has (or names) a payload itself.
        primary: the node whose payload contains this node's graph: itself for a
            primary, the only primary of the EP for a reference. None for a reference if
            there are several: the EP looks for `partition_name` in their payloads.
        inputs, outputs: the boundary, in the order of the arguments and results of
            `run`.
        attributes: all attributes of the node, decoded: int, float, str, or bytes if
            not UTF-8; without `ep_cache_context`, which only the core reads.
    """

    name: str
    partition_name: str
    source: str
    main_context: bool
    primary: ContextNode | None = field(repr=False, compare=False)
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    attributes: Mapping[str, Any]


RunFunction: TypeAlias = (
    "Callable[[Sequence[np.ndarray], Sequence[np.ndarray] | None], "
    "Sequence[np.ndarray]]"
)


@dataclass(frozen=True)
class CompiledPartition:
    """Partition or loaded EPContext node that is ready to run.

    Args:
        run: `run(inputs, outputs=None)` with C-contiguous numpy arrays in the order of
            the boundary. Inputs are read-only; results never alias inputs; given
            outputs are written in place and returned. The core checks the results.
            Stateless and callable from many threads. None only under purpose EXPORT.
        close: called once when the session ends, after the last run. Several partitions
            may have one, such as `runtime.close` of a runtime object that all of them
            run on: it is called once, after the others are closed.
    """

    run: RunFunction | None
    _: KW_ONLY
    close: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        """Refuse what a run or the end of a session could only fail with.

        Raises:
            TypeError: `run` or `close` cannot be called.
        """
        for each in (self.run, self.close):
            if each is not None and not callable(each):
                raise TypeError(
                    "CompiledPartition takes functions as run and close, not "
                    f"{each!r:.80}"
                )


@dataclass(kw_only=True)
class EnginePolicy:
    """Settings of one session's engine.

    Attributes:
        engine: the name of the entry point that the host chose; None for the installed
            engine.
        intra_op_num_threads: the number that the host set; 0 to choose by size.
        prefer_latency: True to spend memory on faster runs, False never to do so, None
            to choose by size.
        optimizes: whether groups of the CPU EP may be optimised before they are
            prepared.
        pieces: number of groups of nodes that the session runs on engines; set before
            the first is prepared.
        custom_ops_libraries: paths of the libraries of custom operators that the host
            registered.
        custom_domains: domains of custom operators in the context model, each with the
            file name of its library, empty for an unknown one.
    """

    engine: str | None = None
    intra_op_num_threads: int = 0
    prefer_latency: bool | None = None
    optimizes: bool = False
    pieces: int = 1
    custom_ops_libraries: Sequence[str] = ()
    custom_domains: Mapping[str, str] = field(default_factory=dict)
