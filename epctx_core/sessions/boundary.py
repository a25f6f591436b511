"""What a session shows of its model: inputs, outputs and metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

if TYPE_CHECKING:
    from onnx import TypeProto

    from epctx_core.graph.type_table import TypeTable
    from epctx_core.plugin import TensorType
    from epctx_core.plugin.types import Dimension
    from epctx_core.sessions.source import OpenModel


@dataclass(frozen=True, kw_only=True)
class NodeArg:
    """An input or output of a model; attributes as `onnxruntime.NodeArg`.

    Attributes:
        name: the value's name.
        type: ONNX Runtime's spelling, such as `tensor(float)`.
        shape: a length, a symbolic name or None for each dimension.
    """

    name: str
    type: str
    shape: list[Dimension]
    tensor_type: TensorType


@dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """What a model says about itself; attributes as `onnxruntime.ModelMetadata`."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: Mapping[str, str]


def node_arg(name: str, types: TypeTable) -> NodeArg:
    """Return a value as hosts see it."""
    tensor, proto = types.get(name), types.proto(name)
    text = "unknown" if proto is None else _spelled(proto)
    return NodeArg(name=name, type=text, shape=list(tensor.shape or ()), tensor_type=tensor)


def _spelled(proto: TypeProto) -> str:
    """Return a type as ONNX Runtime writes it, such as `seq(map(string,tensor(float)))`."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({_spelled(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({_spelled(proto.optional_type.elem_type)})"
    if kind == "map_type":
        return f"map({_element(proto.map_type.key_type)},{_spelled(proto.map_type.value_type)})"
    if kind == "sparse_tensor_type":
        return f"sparse_tensor({_element(proto.sparse_tensor_type.elem_type)})"
    return f"tensor({_element(proto.tensor_type.elem_type)})" if proto.tensor_type.elem_type else "unknown"


def _element(elem_type: int) -> str:
    name: str = onnx.TensorProto.DataType.Name(elem_type)
    return name.lower()


def model_metadata(model: OpenModel) -> ModelMetadata:
    """Return what a model says about itself."""
    proto = model.source.proto
    return ModelMetadata(
        producer_name=proto.producer_name,
        graph_name=proto.graph.name,
        domain=proto.domain,
        description=proto.doc_string,
        graph_description=proto.graph.doc_string,
        version=proto.model_version,
        custom_metadata_map={p.key: p.value for p in proto.metadata_props},
    )


class FeedOrder:
    """Puts what `run` is given into the model's order and checks it.

    Args:
        arguments: the model's inputs.
        defaults: inputs that the caller may leave out (overridable initializers), with their values.
    """

    def __init__(self, arguments: Sequence[NodeArg], defaults: Mapping[str, np.ndarray]) -> None:
        self._arguments = arguments
        self._defaults = defaults
        # (name, dtype, shape) of an input that needs nothing but a comparison.
        self._plain = [
            (a.name, a.tensor_type.dtype, a.tensor_type.shape if a.tensor_type.is_static else None)
            for a in arguments
        ]

    def order(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the values in the model's order.

        Raises:
            InvalidArgument: an unknown or missing name, a wrong type or a wrong shape.
        """
        ordered: list[Any] = []
        if isinstance(feeds, dict) and len(feeds) == len(self._plain):
            # The common case, a comparison each: all inputs there, as the model declares them.
            for name, dtype, shape in self._plain:
                value = feeds.get(name)
                if (
                    type(value) is not np.ndarray
                    or value.dtype != dtype
                    or value.shape != shape
                    or not value.flags.c_contiguous
                ):
                    break
                ordered.append(value)
            else:
                return ordered
        from epctx_core.sessions.feeds import checked_feeds

        return checked_feeds(self._arguments, self._defaults, feeds)
