"""What an EP sees of a model: read-only views of a graph, its nodes, values and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import os

    import numpy as np
    import onnx

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


class TensorView(Protocol):
    """A weight, mapped rather than read. Nothing here may be written to."""

    @property
    def name(self) -> str:
        """The initializer's name."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type (numpy or ml_dtypes; sub-byte types are stored packed)."""

    @property
    def elem_type(self) -> int:
        """Element type as an `onnx.TensorProto.DataType`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""

    @property
    def nbytes(self) -> int:
        """Length of the raw little-endian bytes."""

    @property
    def source_name(self) -> str | None:
        """Its name among the main graph's initializers of the model that the host gave; None for another one.

        What an optimiser or an EP makes is another one, and so is a weight written in a body.
        """

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the raw little-endian bytes; computed once, in bounded memory."""

    @property
    def extent(self) -> Extent | None:
        """File, offset and length where the bytes lie in a file, else None."""

    def array(self) -> np.ndarray:
        """Return a read-only array over the bytes, without copying where the format allows."""

    def chunks(self) -> Iterator[memoryview]:
        """Yield the raw bytes in pieces of at most 16 MiB, in bounded memory."""


class NodeView(Protocol):
    """One node. Two views of one node are equal."""

    @property
    def index(self) -> int:
        """The node's place in its graph."""

    @property
    def name(self) -> str:
        """The node's name, possibly empty."""

    @property
    def op_type(self) -> str:
        """The operator."""

    @property
    def domain(self) -> str:
        """The operator's domain; the default domain is the empty string."""

    @property
    def opset_version(self) -> int:
        """The version of the operator's domain that the model imports."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names; an omitted optional input is the empty string."""

    @property
    def implicit_inputs(self) -> tuple[str, ...]:
        """What the node's bodies read of the scopes around it, weights included, in the order of first use."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names; an omitted optional output is the empty string."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attribute values: numbers, str (bytes where not UTF-8), lists, read-only arrays, copies of graphs."""

    def proto(self) -> onnx.NodeProto:
        """Return a copy of the node."""


class GraphView(Protocol):
    """A graph, or a control-flow body, as far as no EP before this one has taken it.

    What a body reads of the graphs around it has no producer here; a weight among it is this graph's
    own as far as `initializer` and partitions go.
    """

    @property
    def name(self) -> str:
        """The graph's name."""

    @property
    def parent_node(self) -> NodeView | None:
        """The If, Loop or Scan that holds this graph as a body; None for the main graph.

        An EP that compiles main graphs only refuses the nodes of a view that has one.
        """

    @property
    def nodes(self) -> Sequence[NodeView]:
        """The unassigned nodes in topological order."""

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """Graph inputs that no initializer fills, in the model's order."""

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """Graph outputs in the model's order."""

    @property
    def opset_imports(self) -> Mapping[str, int]:
        """Domain to version; the default domain is the empty string."""

    def value(self, name: str) -> ValueInfo:
        """Return a value's type; `UNKNOWN_TYPE` where inference found none."""

    def initializer(self, name: str) -> TensorView | None:
        """Return the weight behind a name, or None."""

    def producer(self, name: str) -> NodeView | None:
        """Return the node that computes a value, assigned or not, or None."""

    def consumers(self, name: str) -> Sequence[NodeView]:
        """Return the nodes that read a value, assigned or not."""

    def model(self, *, inline_weights: bool = False) -> onnx.ModelProto:
        """Return a model of all nodes, assigned or not, for vendors' own queries of what they support.

        Args:
            inline_weights: as for `Partition.model`.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write that model to a file and its weights beside it; see `Partition.save`."""

    def convex_groups(self, nodes: Iterable[NodeView]) -> list[list[NodeView]]:
        """Group nodes into the fewest convex partitions, what earlier EPs took included in the count.

        A set is convex if no path leaves it and comes back; the groups together leave a graph
        without cycles. An operator with the DequantizeLinear nodes before and the QuantizeLinear
        nodes behind it stays together: if some of them are not among the nodes, the others are left
        out, and the report says so.
        """
