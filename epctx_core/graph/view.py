"""What an EP sees: read-only views over the index. Implements the protocols of `epctx_core.plugin.views`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import onnx
from onnx import AttributeProto, NodeProto

from epctx_core.plugin import ValueInfo

if TYPE_CHECKING:
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.partition import Partitioner
    from epctx_core.graph.weights import Weight
    from epctx_core.plugin import NodeView


class Node:
    """One node of an index; implements `NodeView`."""

    __slots__ = ("__dict__", "_graph", "index")

    def __init__(self, graph: GraphIndex, index: int) -> None:
        self._graph = graph
        self.index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and other.index == self.index and other._graph is self._graph

    def __hash__(self) -> int:
        return self.index

    def __repr__(self) -> str:
        return f"<node {self.index} {self.op_type} {self.name!r}>"

    @property
    def name(self) -> str:
        """The node's name, possibly empty."""
        return self._graph.nodes[self.index].name

    @property
    def op_type(self) -> str:
        """The operator."""
        return self._graph.nodes[self.index].op_type

    @property
    def domain(self) -> str:
        """The operator's domain; the default domain is the empty string."""
        domain = self._graph.nodes[self.index].domain
        return "" if domain == "ai.onnx" else domain

    @property
    def opset_version(self) -> int:
        """The version of the operator's domain that the model imports."""
        return self._graph.opset_imports.get(self.domain, 1)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names; an omitted optional input is the empty string."""
        return tuple(self._graph.explicit_inputs[self.index])

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names; an omitted optional output is the empty string."""
        return tuple(self._graph.outputs[self.index])

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """Attribute values as Python objects."""
        return MappingProxyType({a.name: attribute_value(a) for a in self._graph.nodes[self.index].attribute})

    def proto(self) -> NodeProto:
        """Return a copy of the node."""
        copy = NodeProto()
        copy.CopyFrom(self._graph.nodes[self.index])
        return copy


def attribute_value(attribute: AttributeProto) -> Any:
    """Decode an attribute: str where UTF-8, arrays for tensors, copies of everything that can change."""
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.STRING:
        return _text(value)
    if attribute.type == AttributeProto.STRINGS:
        return [_text(v) for v in value]
    if attribute.type == AttributeProto.TENSOR:
        array = onnx.numpy_helper.to_array(value)
        array.setflags(write=False)
        return array
    if attribute.type in (AttributeProto.INT, AttributeProto.FLOAT):
        return value
    if hasattr(value, "CopyFrom"):
        copy = type(value)()
        copy.CopyFrom(value)
        return copy
    return list(value)


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


class GraphSlice:
    """The nodes of a graph that no EP has taken yet; implements `GraphView`."""

    def __init__(self, graph: GraphIndex, partitioner: Partitioner, taken: Sequence[bool]) -> None:
        self._graph = graph
        self._partitioner = partitioner
        self.nodes = tuple(Node(graph, i) for i, owned in enumerate(taken) if not owned)
        self.name = graph.graph.name

    def node(self, index: int) -> Node:
        """Return a node by its place in the graph."""
        return Node(self._graph, index)

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """Graph inputs that no initializer fills, in the model's order."""
        return tuple(self.value(name) for name in self._graph.input_names)

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """Graph outputs in the model's order."""
        return tuple(self.value(name) for name in self._graph.output_names)

    @property
    def opset_imports(self) -> Mapping[str, int]:
        """Domain to version."""
        return MappingProxyType(dict(self._graph.opset_imports))

    def value(self, name: str) -> ValueInfo:
        """Return a value with its type."""
        return ValueInfo(name, self._graph.types.get(name))

    def initializer(self, name: str) -> Weight | None:
        """Return the weight behind a name, or None (also for a default that the caller may override)."""
        return self._graph.weights.get(name) if name in self._graph.constants else None

    def producer(self, name: str) -> Node | None:
        """Return the node that computes a value."""
        index = self._graph.producer.get(name)
        return None if index is None else Node(self._graph, index)

    def consumers(self, name: str) -> Sequence[Node]:
        """Return the nodes that read a value."""
        return [Node(self._graph, i) for i in dict.fromkeys(self._graph.consumers.get(name, ()))]

    def convex_groups(self, nodes: Iterable[NodeView]) -> list[list[NodeView]]:
        """Group nodes into the fewest convex partitions; see `Partitioner.group`."""
        by_index = {node.index: node for node in nodes}
        groups = self._partitioner.group([[index] for index in by_index])
        return [[by_index[index] for index in group] for group in groups]
