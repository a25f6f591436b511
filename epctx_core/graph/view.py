"""A node as an EP sees it: read-only, over the index; and values of attributes. Implements `epctx_core.plugin.NodeView`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import onnx
from onnx import AttributeProto

from epctx_core.graph.weights import is_detached

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


def attribute_value(attribute: AttributeProto) -> Any:
    """Decode an attribute: str where UTF-8, arrays for tensors, copies of everything that can change.

    A tensor whose bytes lie in a file stays a `TensorProto`: which file a name out of a model means is not for
    onnx to say, which would look for it where the process happens to be.

    Raises:
        ValueError, TypeError: the attribute contradicts itself, or has a type that ONNX does not have.
    """
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.STRING:
        return as_text(value)
    if attribute.type == AttributeProto.STRINGS:
        return [as_text(v) for v in value]
    if attribute.type == AttributeProto.TENSOR and not is_detached(value):
        try:
            array = onnx.numpy_helper.to_array(value)
        except KeyError:
            raise ValueError(f"the element type {value.data_type} is none of ONNX's") from None
        array.setflags(write=False)
        return array
    if attribute.type in (AttributeProto.INT, AttributeProto.FLOAT):
        return value
    if hasattr(value, "CopyFrom"):
        return copied(value)
    return [copied(v) if hasattr(v, "CopyFrom") else v for v in value]


def copied(message: Any) -> Any:
    """Return a copy of a protobuf message."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def as_text(data: bytes) -> str | bytes:
    """Decode a text; one that is not UTF-8 stays bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
