"""Types and shapes of every value of a model, by onnx's shape inference with data propagation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import onnx
from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto

from epctx_core.errors import InvalidGraph
from epctx_core.graph.bodies import given_names, named_bodies
from epctx_core.graph.model_io import structure
from epctx_core.plugin import UNKNOWN_TYPE, TensorType

if TYPE_CHECKING:
    from onnx import SparseTensorProto

    from epctx_core.graph.bodies import BodyPath
    from epctx_core.plugin.views import Dimension


_TYPES_CONTRADICT = ("elem type differs", "has inconsistent type")


_ELEMENT_TYPES = frozenset(onnx.TensorProto.DataType.values())


class TypeTable:
    """Value name to type; equal types are one object, made when first asked for.

    Args:
        values: typed values; of two with one name the first counts.
        graph: the graph with types inferred, whose bodies have tables of their own.
        outer: the table of the enclosing scope, asked for what the graph does not define.
    """

    def __init__(
        self,
        values: Iterable[ValueInfoProto] = (),
        graph: GraphProto | None = None,
        outer: TypeTable | None = None,
    ) -> None:
        self._values: dict[str, ValueInfoProto] = {}
        for value in values:
            self._values.setdefault(value.name, value)
        self._graph, self._outer = graph, outer
        self._bodies: dict[tuple[int, str], TypeTable] = {}
        if graph is not None and outer is not None:
            # A value of unknown type hides one of the same name outside.
            for name in chain(given_names(graph), *(node.output for node in graph.node)):
                self._values.setdefault(name, ValueInfoProto(name=name))
        self._types: dict[str, TensorType] = {}
        self._interned: dict[bytes, TensorType] = {}

    def get(self, name: str) -> TensorType:
        """Return a value's type, `UNKNOWN_TYPE` if there is none."""
        known = self._types.get(name)
        return known if known is not None else self._made(name)

    def proto(self, name: str) -> TypeProto | None:
        """Return a value's type as ONNX writes it, with symbolic names and non-tensor kinds."""
        value = self._values.get(name)
        if value is None:
            return self._outer.proto(name) if self._outer is not None else None
        return value.type if value.HasField("type") else None

    def body(self, node: int, attribute: str) -> TypeTable:
        """Return the table of a body that a node holds; one that only looks outside if it is not known."""
        key = (node, attribute)
        if key not in self._bodies:
            held = named_bodies(self._graph.node[node]) if self._graph is not None else ()
            body = dict(held).get(attribute)
            self._bodies[key] = TypeTable(_typed(body) if body is not None else (), body, self)
        return self._bodies[key]

    def at(self, path: BodyPath) -> TypeTable:
        """Return the table of a body at any depth."""
        table = self
        for node, attribute in path:
            table = table.body(node, attribute)
        return table

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


def infer_types(
    proto: ModelProto, resolve: Callable[[ModelProto], Iterable[ValueInfoProto]] | None = None
) -> TypeTable:
    """Infer the types of a model's values; what the model itself declares wins.

    Args:
        proto: the model, without its large weights.
        resolve: gives declarations for values that a model after inference has no types for.

    Raises:
        InvalidGraph: the model's own element types contradict each other. Shapes may: onnxruntime, too,
            takes what a model declares for a hint.
    """
    probe = _with_dense_initializers(structure(proto))
    try:
        inferred = onnx.shape_inference.infer_shapes(probe, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        text = " ".join(str(error).split())
        if any(sign in text for sign in _TYPES_CONTRADICT):
            raise InvalidGraph(f"type inference refuses the model: {text}") from error
        inferred = _infer_leniently(probe)
    except (ValueError, RuntimeError):
        inferred = _infer_leniently(probe)
    if resolve is not None:
        inferred.graph.value_info.extend(resolve(inferred))
    return TypeTable(_typed(inferred.graph), inferred.graph)


def _typed(graph: GraphProto) -> Iterator[ValueInfoProto]:
    """Yield what is known of a graph's values after inference; what it declares comes first."""
    # Outputs need no declaration; inference may know them all the same.
    yield from (v for v in chain(graph.input, graph.output) if v.type.WhichOneof("value"))
    yield from graph.value_info
    for tensor in graph.initializer:
        yield onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def _with_dense_initializers(proto: ModelProto) -> ModelProto:
    """Return a model whose sparse initializers are dense inputs, which is how operators see them."""
    if not proto.graph.sparse_initializer:
        return proto
    probe = ModelProto()
    probe.CopyFrom(proto)
    del probe.graph.sparse_initializer[:]
    present = {value.name for value in probe.graph.input}
    for sparse in proto.graph.sparse_initializer:
        if sparse.values.name not in present:
            probe.graph.input.append(_dense_value(sparse))
    return probe


def _dense_value(sparse: SparseTensorProto) -> ValueInfoProto:
    return onnx.helper.make_tensor_value_info(sparse.values.name, sparse.values.data_type, list(sparse.dims))


def _infer_leniently(proto: ModelProto) -> ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        raise InvalidGraph(f"shape inference refuses the model: {' '.join(str(error).split())}") from error
