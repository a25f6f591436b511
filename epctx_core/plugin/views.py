"""Read-only views that an EP gets: graph, node, tensor, partition; and what it says of the nodes that it takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import os

    import numpy as np
    import onnx

    from epctx_core.plugin.types import Extent, ValueInfo


class Partition(Protocol):
    """A convex piece of the model that one EP compiles. Nothing may be derived from `name`."""

    @property
    def name(self) -> str:
        """Names the EPContext node, its partition_name and the graph inside the payload."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what it computes: equal for equal pieces of any model, whatever the names.

        Operators, versions, attributes, wiring, boundary types and weights; asking reads all weights.
        """

    @property
    def token(self) -> object:
        """What came with its `ComputeCapability`, the object itself; None unless that was `exact`."""

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """What flows in, in the order in which `run` gets it; weights are not among them."""

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """What flows out, in the order in which `run` gives it."""

    @property
    def nodes(self) -> Sequence[NodeView]:
        """The nodes in topological order."""

    @property
    def weights(self) -> Mapping[str, TensorView]:
        """The initializers that the nodes read, by name; also those kept as inputs.

        Each says where it comes from: `source_name`, `digest` and `extent`.
        """

    def value(self, name: str) -> ValueInfo:
        """Return any value's type, inner ones included; `UNKNOWN_TYPE` where inference found none."""

    def model(self, *, inline_weights: bool = False) -> onnx.ModelProto:
        """Return a model of this partition, the EP's own copy.

        Args:
            inline_weights: True for a model complete in itself, which costs memory for every weight.
                By default weights above 1 KiB stand in it as external tensors without data
                (`data_location` EXTERNAL): take those from `weights`.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file and its weights to `<stem>.weights` beside it, in bounded memory.

        For compilers that take files: `path` lies in `context.scratch()`.
        """


@dataclass(frozen=True)
class ComputeCapability:
    """Nodes that an EP takes as one unit.

    Args:
        nodes: what is taken. The set must be convex; the core merges sets into maximal partitions
            and never splits one.
        fuse: True to have them compiled; False to have each run by the EP's kernel registry.
        keep_initializers: True to leave the weights in the model, as inputs of the EPContext node.
        exact: True for a set that is a partition as it stands, as an EP says that compiled it to find out what it
            takes: it is merged with no other, and refused whole where it would have to shrink. Not with `fuse=False`.
        token: comes back as `Partition.token`, such as what was compiled; only with `exact`. It stays in the process
            of the EP.
    """

    nodes: Sequence[NodeView]
    _: KW_ONLY
    fuse: bool = True
    keep_initializers: bool = False
    exact: bool = False
    token: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Refusal:
    """Nodes that an EP does not take, with the reason a user reads."""

    reason: str
    nodes: Sequence[NodeView]


_NUMBERED = re.compile(r"epctx_n(\d+)(?!\d)")


def number_nodes(model: onnx.ModelProto) -> Callable[[str], int | None]:
    """Name the nodes of a model by their numbers, so that a vendor's answer about nodes can be mapped back.

    Vendors' front ends and onnxruntime answer by names, and give other ones where they split a node or move it to
    another layout: `epctx_n3_token_17` and `epctx_n3/Add` are made of node 3.

    Args:
        model: as `GraphView.model` or `GraphView.save` gives it, so that a number is a `NodeView.index`; the names of
            the nodes of its main graph are changed.

    Returns:
        A function from a name in the answer, a node's or that of a value that it makes, to the node's number; it
        gives None for any other.

    Example:
        >>> model = graph.model()
        >>> number = number_nodes(model)
        >>> taken = {number(name) for name in vendor.supported_nodes(model)}
        >>> return supported_partitions(graph, lambda node: node.index in taken or "the vendor does not take it")
    """
    makers: dict[str, int] = {}
    for index, node in enumerate(model.graph.node):
        node.name = f"epctx_n{index}"
        makers.update((name, index) for name in node.output if name)
    count = len(model.graph.node)

    def number(name: str) -> int | None:
        found = _NUMBERED.match(name)
        index = int(found[1]) if found else makers.get(name)
        return index if index is not None and index < count else None

    return number


def supported_partitions(
    graph: GraphView, is_supported: Callable[[NodeView], bool | str], *, keep_initializers: bool = False
) -> list[ComputeCapability | Refusal]:
    """Group the supported nodes into the fewest convex partitions.

    Args:
        graph: the view given to `get_capability`.
        is_supported: True for a supported node; False, or better the reason as text, for others.
        keep_initializers: passed on to each `ComputeCapability`.

    Returns:
        One `ComputeCapability` a partition, then one `Refusal` for each distinct reason.
    """
    supported: list[NodeView] = []
    refused: dict[str, list[NodeView]] = {}
    for node in graph.nodes:
        verdict = is_supported(node)
        if verdict and not isinstance(verdict, str):
            supported.append(node)
        else:
            refused.setdefault(verdict or f"{node.op_type} is not supported", []).append(node)
    groups = graph.convex_groups(supported) if supported else []
    return [
        *(ComputeCapability(nodes, keep_initializers=keep_initializers) for nodes in groups),
        *(Refusal(reason, nodes) for reason, nodes in refused.items()),
    ]


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
