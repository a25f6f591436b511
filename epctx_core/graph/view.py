"""A node as an EP sees it: read-only, over the index. Implements `epctx_core.plugin.NodeView`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from epctx_core.graph.attributes import attribute_value, copied

if TYPE_CHECKING:
    from onnx import NodeProto

    from epctx_core.graph.index import GraphIndex


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

    def is_in(self, graph: GraphIndex) -> bool:
        """Whether the node is one of a graph's own, not of its bodies."""
        return self._graph is graph

    @property
    def name(self) -> str:
        """The node's name, possibly empty."""
        return self._graph.names[self.index]

    @property
    def op_type(self) -> str:
        """The operator."""
        return self._graph.op_types[self.index]

    @property
    def domain(self) -> str:
        """The operator's domain; the default domain is the empty string."""
        domain = self._graph.domains[self.index]
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
    def implicit_inputs(self) -> tuple[str, ...]:
        """What the node's bodies read of the scopes around it, in the order of first use."""
        return tuple(self._graph.inputs[self.index][len(self.inputs) :])

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
        node: NodeProto = copied(self._graph.nodes[self.index])
        return node
