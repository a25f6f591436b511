"""Types and shapes of every value of a model, by onnx's shape inference with data propagation."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

import onnx
from onnx import ModelProto, TypeProto, ValueInfoProto

from epctx_core.errors import InvalidGraph
from epctx_core.graph.model_io import structure
from epctx_core.plugin import UNKNOWN_TYPE, TensorType

if TYPE_CHECKING:
    from epctx_core.plugin.views import Dimension


_TYPES_CONTRADICT = ("elem type differs", "has inconsistent type")


_ELEMENT_TYPES = frozenset(onnx.TensorProto.DataType.values())


class TypeTable:
    """Value name to type; equal types are one object, made when first asked for.

    Args:
        values: typed values; of two with one name the first counts.
    """

    def __init__(self, values: Iterable[ValueInfoProto] = ()) -> None:
        self._values: dict[str, ValueInfoProto] = {}
        for value in values:
            self._values.setdefault(value.name, value)
        self._types: dict[str, TensorType] = {}
        self._interned: dict[bytes, TensorType] = {}

    def get(self, name: str) -> TensorType:
        """Return a value's type, `UNKNOWN_TYPE` if there is none."""
        known = self._types.get(name)
        return known if known is not None else self._made(name)

    def proto(self, name: str) -> TypeProto | None:
        """Return a value's type as ONNX writes it, with symbolic names and non-tensor kinds."""
        value = self._values.get(name)
        return None if value is None else value.type

    def _made(self, name: str) -> TensorType:
        proto = self.proto(name)
        if proto is None:
            return UNKNOWN_TYPE
        key = proto.SerializeToString()
        made = self._interned.get(key)
        if made is None:
            made = self._interned[key] = tensor_type(proto)
        self._types[name] = made
        return made


def tensor_type(proto: TypeProto) -> TensorType:
    """Return a type as EPs see it; UNKNOWN_TYPE for what is not a dense tensor.

    Raises:
        InvalidGraph: an element type that ONNX does not have.
    """
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.elem_type:
        return UNKNOWN_TYPE
    tensor = proto.tensor_type
    if tensor.elem_type not in _ELEMENT_TYPES:
        raise InvalidGraph(f"a value has the element type {tensor.elem_type}, which ONNX does not have.")
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
    graph = inferred.graph
    constants = (
        onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in proto.graph.initializer
    )
    return TypeTable(chain(graph.input, graph.output, graph.value_info, constants))


def _infer_leniently(proto: ModelProto) -> ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        raise InvalidGraph(f"shape inference refuses the model: {' '.join(str(error).split())}") from error
