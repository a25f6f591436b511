"""Read-only views for EPs: graph, node, tensor, partition; and their claims and
refusals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, field
from typing import TYPE_CHECKING, Any, Protocol

from epctx_core.frozen import dataclass

if TYPE_CHECKING:
    import os

    import numpy as np
    import onnx

    from epctx_core.plugin.types import Extent, ValueInfo


class Partition(Protocol):
    """Convex set of nodes that one EP compiles. Nothing may be derived from `name`."""

    @property
    def name(self) -> str:
        """Name of the EPContext node, its partition_name and the graph inside the
        payload.
        """

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the computation: equal for equal partitions of any model,
        whatever the names.

        Covers operators, versions, attributes, wiring, boundary types and weights;
        reads all weights.
        """

    @property
    def token(self) -> object:
        """Token of its `ComputeCapability`, the object itself; None unless that was
        `exact` or kept its nodes.
        """

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """Inputs in the order of `run`, without weights."""

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """Outputs in the order of `run`."""

    @property
    def nodes(self) -> Sequence[NodeView]:
        """Nodes in topological order."""

    @property
    def weights(self) -> Mapping[str, TensorView]:
        """Initializers that the nodes read, by name; also those kept as inputs.

        `source_name`, `digest` and `extent` describe their origin.
        """

    def value(self, name: str) -> ValueInfo:
        """Return the type of a value, inner ones included; `UNKNOWN_TYPE` if inference
        found none.
        """

    def model(self, *, inline_weights: bool = False) -> onnx.ModelProto:
        """Return a model of this partition, the EP's own copy.

        Args:
            inline_weights: True for a model complete in itself, which costs memory for
                every weight. By default weights above 1 KiB are external tensors
                without data (`data_location` EXTERNAL): their data is in `weights`.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file and its weights to `<stem>.weights` beside it, in
        bounded memory.

        For compilers that read files: use a `path` in `context.scratch()`.
        """


@dataclass(frozen=True)
class ComputeCapability:
    """Nodes that an EP takes as one unit.

    Args:
        nodes: the nodes. The set must be convex; the core merges sets into maximal
            partitions and never splits one.
        keep_initializers: True to leave the weights in the model, as inputs of the
            EPContext node.
        keep_nodes: True to leave the nodes in the model: no EP after this one gets
            them, a context model has them as they are, and a load of it asks the EP
            again. `compile` gets them in sessions only. Such a set is `exact`.
        exact: True for a set that is a partition unchanged, from an EP that compiled it
            to find out whether it takes it: the set is not merged, may contain parts of
            quantised groups, and is refused as a whole if it would have to shrink.
        token: object for `Partition.token`, such as the compiled graph; only with
            `exact` or `keep_nodes`. It stays in the process of the EP.
        metadata: entries for the metadata of a context model, with what the EP has to
            know to take nodes again that it keeps; see `GraphView.metadata`.
    """

    nodes: Sequence[NodeView]
    _: KW_ONLY
    keep_initializers: bool = False
    keep_nodes: bool = False
    exact: bool = False
    token: object = field(default=None, repr=False, compare=False)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """Nodes that an EP does not take, with a reason for users."""

    reason: str
    nodes: Sequence[NodeView]


_CROPS = "tf_crop_and_resize"
_FILLS = "constant"
_IGNORING = ("Resize", "Pad", "Dropout")
_NUMBERED = re.compile(r"epctx_n(\d+)(?!\d)")


def number_nodes(model: onnx.ModelProto) -> Callable[[str], int | None]:
    """Name the nodes of a model by their numbers, so that names from a vendor's tool
    can be mapped back.

    Vendors' tools and onnxruntime report names, and change them if they split a node or
    move it to another layout: `epctx_n3_token_17` and `epctx_n3/Add` are parts of node
    3.

    Args:
        model: a model of `GraphView.model` or `GraphView.save`, so that a number is a
            `NodeView.index`; the names of the nodes of its main graph are changed.

    Returns:
        A function from the name of a node, or of a value that it computes, to the
        node's number; it returns None for any other name.

    Examples:
        >>> model = graph.model()
        >>> number = number_nodes(model)
        >>> taken = {number(name) for name in vendor.supported_nodes(model)}
        >>> return supported_partitions(
        ...     graph, lambda node: node.index in taken or "the vendor does not take it"
        ... )
    """
    makers: dict[str, int] = {}
    for index, node in enumerate(model.graph.node):
        node.name = f"epctx_n{index}"
        makers.update((name, index) for name in node.output if name)
    count = len(model.graph.node)

    def number(name: str) -> int | None:
        match = _NUMBERED.match(name)
        index = int(match[1]) if match else makers.get(name)
        return index if index is not None and index < count else None

    return number


def supported_partitions(
    graph: GraphView,
    is_supported: Callable[[NodeView], bool | str],
    *,
    keep_initializers: bool = False,
) -> list[ComputeCapability | Refusal]:
    """Group the supported nodes into the fewest convex partitions.

    Args:
        graph: the view given to `get_capability`.
        is_supported: returns True for a supported node; False, or preferably a reason,
            for others.
        keep_initializers: passed on to each `ComputeCapability`.

    Returns:
        One `ComputeCapability` for each partition, then one `Refusal` for each distinct
        reason.
    """
    supported: list[NodeView] = []
    refused: dict[str, list[NodeView]] = {}
    for node in graph.nodes:
        verdict = is_supported(node)
        if verdict and not isinstance(verdict, str):
            supported.append(node)
        else:
            refused.setdefault(
                verdict or f"{node.op_type} is not supported", []
            ).append(node)

    groups = graph.convex_groups(supported) if supported else []
    return [
        *(
            ComputeCapability(nodes, keep_initializers=keep_initializers)
            for nodes in groups
        ),
        *(Refusal(reason, nodes) for reason, nodes in refused.items()),
    ]


def read_inputs(graph: GraphView, node: NodeView) -> tuple[str, ...]:
    """Return `NodeView.inputs` with the empty string for those that the operator
    ignores: what they are is no reason to refuse the node.

    Exporters name them where a version of the operator has no way to omit them, such as
    the `roi` of a Resize in opset 11.
    """
    if node.op_type not in _IGNORING or node.domain:
        return node.inputs
    ignored: set[int] = set()
    if node.op_type == "Resize" and node.opset_version >= 11:  # noqa: PLR2004 - the first with a roi
        ignored = {
            place
            for place, name in enumerate(node.inputs)
            if place and name and 0 in (graph.value(name).shape or ())
        }
        if node.attributes.get("coordinate_transformation_mode") != _CROPS:
            ignored.add(1)
    elif node.op_type == "Pad" and node.attributes.get("mode", _FILLS) != _FILLS:
        ignored = {2}
    elif node.op_type == "Dropout" and not _may_train(graph, node.inputs[2:]):
        ignored = {1}
    return tuple("" if i in ignored else name for i, name in enumerate(node.inputs))


def _may_train(graph: GraphView, flags: Sequence[str]) -> bool:
    """Return whether a Dropout's `training_mode` may be true."""
    name = next(filter(None, flags), "")
    weight, producer = graph.initializer(name), graph.producer(name)
    value = weight.array() if weight is not None else None
    if producer is not None and producer.op_type == "Constant":
        value = producer.attributes.get("value")
    return bool(name) and (value is None or bool(value.any()))


class TensorView(Protocol):
    """Weight, mapped rather than read; read-only."""

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
        """Its name among the main graph's initializers of the host's model; None for
        any other weight.

        Weights of subgraphs, and those made by an optimiser or an EP, have none.
        """

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the raw little-endian bytes; computed once, in bounded
        memory.
        """

    @property
    def extent(self) -> Extent | None:
        """File, offset and length of bytes that are in a file, else None."""

    def array(self) -> np.ndarray:
        """Return a read-only array over the bytes, without a copy if the format allows
        it.
        """

    def chunks(self) -> Iterator[memoryview]:
        """Yield the raw bytes in pieces of at most 16 MiB, in bounded memory."""


class NodeView(Protocol):
    """Node. Two views of one node are equal."""

    @property
    def index(self) -> int:
        """Index of the node in its graph."""

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
        """Names that the node's subgraphs read of the outer scopes, weights included,
        in the order of first use.
        """

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names; an omitted optional output is the empty string."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attribute values: numbers, str (bytes where not UTF-8), lists, read-only
        arrays, copies of graphs.
        """

    def proto(self) -> onnx.NodeProto:
        """Return a copy of the node."""


class GraphView(Protocol):
    """Graph, or subgraph of control flow, without the nodes that EPs before this one
    have taken.

    Outer-scope values that a subgraph reads have no producer here; weights among them
    belong to this graph for `initializer` and partitions.
    """

    @property
    def name(self) -> str:
        """The graph's name."""

    @property
    def parent_node(self) -> NodeView | None:
        """The If, Loop or Scan of this subgraph; None for the main graph.

        An EP that compiles main graphs only refuses the nodes of a view that has one.
        """

    @property
    def nodes(self) -> Sequence[NodeView]:
        """Unassigned nodes in topological order."""

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """Graph inputs without an initializer, in the model's order."""

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """Graph outputs in the model's order."""

    @property
    def opset_imports(self) -> Mapping[str, int]:
        """Domain to version; the default domain is the empty string."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the model, with what claims before added; without the core's
        manifest.
        """

    def value(self, name: str) -> ValueInfo:
        """Return a value's type; `UNKNOWN_TYPE` if inference found none."""

    def initializer(self, name: str) -> TensorView | None:
        """Return the weight of that name, or None."""

    def producer(self, name: str) -> NodeView | None:
        """Return the node that computes a value, assigned or not, or None."""

    def consumers(self, name: str) -> Sequence[NodeView]:
        """Return the nodes that read a value, assigned or not."""

    def model(self, *, inline_weights: bool = False) -> onnx.ModelProto:
        """Return a model of all nodes, assigned or not, for vendors' own queries of
        supported nodes.

        Args:
            inline_weights: as for `Partition.model`.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write that model to a file and its weights beside it; see
        `Partition.save`.
        """

    def convex_groups(self, nodes: Iterable[NodeView]) -> list[list[NodeView]]:
        """Group nodes into the fewest convex partitions, considering those of earlier
        EPs.

        A set is convex if no path leaves it and returns; contracting the groups leaves
        a graph without cycles. An operator stays together with the DequantizeLinear
        nodes before it and the QuantizeLinear nodes after it: if some of them are not
        among the nodes, the others are left out, and the report says so.
        """
