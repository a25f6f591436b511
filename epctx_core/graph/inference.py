"""Types and shapes of every value of a model, by onnx's shape inference with data propagation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import GraphProto, ModelProto, TypeProto

from epctx_core.errors import InvalidGraph
from epctx_core.graph.model_io import structure
from epctx_core.plugin import UNKNOWN_TYPE, TensorType

if TYPE_CHECKING:
    from epctx_core.plugin.views import Dimension


_TYPES_CONTRADICT = ("elem type differs", "has inconsistent type")


class TypeTable:
    """Value name to type; equal types are one object."""

    def __init__(self) -> None:
        self._types: dict[str, TensorType] = {}
        self._protos: dict[str, TypeProto] = {}
        self._interned: dict[bytes, TensorType] = {}

    def get(self, name: str) -> TensorType:
        """Return a value's type, `UNKNOWN_TYPE` if there is none."""
        return self._types.get(name, UNKNOWN_TYPE)

    def proto(self, name: str) -> TypeProto | None:
        """Return a value's type as ONNX writes it, with symbolic names and non-tensor kinds."""
        return self._protos.get(name)

    def add(self, name: str, proto: TypeProto) -> None:
        """Set a value's type; the first one stays."""
        if name in self._types:
            return
        key = proto.SerializeToString()
        interned = self._interned.get(key)
        if interned is None:
            interned = self._interned[key] = tensor_type(proto)
        self._types[name] = interned
        self._protos[name] = proto


def tensor_type(proto: TypeProto) -> TensorType:
    """Return a type as EPs see it; UNKNOWN_TYPE for what is not a dense tensor."""
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.elem_type:
        return UNKNOWN_TYPE
    tensor = proto.tensor_type
    shape = tuple(_dimension(d) for d in tensor.shape.dim) if tensor.HasField("shape") else None
    return TensorType(tensor.elem_type, shape)


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> Dimension:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        return dim.dim_value
    return dim.dim_param or None if kind == "dim_param" else None


def infer_types(proto: ModelProto) -> TypeTable:
    """Infer the types of a model's values; what the model itself declares wins.

    Raises:
        InvalidGraph: the model's own element types contradict each other. Shapes may: onnxruntime, too,
            takes what a model declares for a hint.
    """
    probe = structure(proto)
    try:
        inferred = onnx.shape_inference.infer_shapes(probe, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        text = " ".join(str(error).split())
        if any(sign in text for sign in _TYPES_CONTRADICT):
            raise InvalidGraph(f"type inference refuses the model: {text}") from error
        inferred = _infer_leniently(probe)
    except (ValueError, RuntimeError):
        inferred = _infer_leniently(probe)
    table = TypeTable()
    _collect(inferred.graph, table)
    for tensor in proto.graph.initializer:
        table.add(tensor.name, onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)))
    return table


def _infer_leniently(proto: ModelProto) -> ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        raise InvalidGraph(f"shape inference refuses the model: {' '.join(str(error).split())}") from error


def _collect(graph: GraphProto, table: TypeTable) -> None:
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            table.add(value.name, value.type)
