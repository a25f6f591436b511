"""Types and shapes of every value of a model, by onnx's shape inference with data propagation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING

import onnx
from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto

from epctx_core.errors import InvalidGraph
from epctx_core.graph.bodies import (
    all_graphs,
    bodies,
    given_names,
    named_bodies,
    operator_may_hold_bodies,
)
from epctx_core.graph.model_io import structure
from epctx_core.plugin import UNKNOWN_TYPE, TensorType

if TYPE_CHECKING:
    from epctx_core.graph.bodies import BodyPath
    from epctx_core.plugin.views import Dimension


PROPAGATING = frozenset(
    {"Add", "Cast", "Concat", "Gather", "Mul", "Shape", "Size", "Slice", "Squeeze", "Sub", "Unsqueeze"}
)
"""Operators through which onnx follows the elements of a shape."""

LONGEST_SHAPE = 4096
"""Elements above which a vector is data, and no shape or list of axes."""

_TYPES_CONTRADICT = ("elem type differs", "has inconsistent type")


_ELEMENT_TYPES = frozenset(onnx.TensorProto.DataType.values())


class TypeTable:
    """Value name to type; equal types are one object, made when first asked for.

    Args:
        values: typed values; of two with one name the first counts.
        graph: the graph with types inferred, whose bodies have tables of their own.
        outer: the table of the enclosing scope, asked for what the graph does not define.
        infer: gives the whole table when something is asked for that is not in `values`.
    """

    def __init__(
        self,
        values: Iterable[ValueInfoProto] = (),
        graph: GraphProto | None = None,
        outer: TypeTable | None = None,
        infer: Callable[[], TypeTable] | None = None,
    ) -> None:
        known = list(values)
        known.reverse()
        self._values = dict(zip([value.name for value in known], known, strict=True))
        self._graph, self._outer, self._infer = graph, outer, infer
        self._bodies: dict[int, dict[str, TypeTable]] = {}
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
        value = self.declaration(name)
        return value.type if value is not None else None

    def declaration(self, name: str) -> ValueInfoProto | None:
        """Return a value's name and type as ONNX writes them, None if there is no type."""
        value = self._values.get(name)
        if value is not None and value.HasField("type"):
            return value
        if self._infer is not None and name:
            self._complete(self._infer)
            return self.declaration(name)
        return self._outer.declaration(name) if self._outer is not None and value is None else None

    def body(self, node: int, attribute: str) -> TypeTable:
        """Return the table of a body that a node holds; one that only looks outside if it is not known."""
        if self._infer is not None:
            self._complete(self._infer)
        if node not in self._bodies:
            held = named_bodies(self._graph.node[node]) if self._graph is not None else ()
            self._bodies[node] = {name: TypeTable(_typed(body), body, self) for name, body in held}
        bodies = self._bodies[node]
        if attribute not in bodies:
            bodies[attribute] = TypeTable((), None, self)
        return bodies[attribute]

    def at(self, path: BodyPath) -> TypeTable:
        """Return the table of a body at any depth."""
        table = self
        for node, attribute in path:
            table = table.body(node, attribute)
        return table

    def declaring_graph(self) -> GraphProto:
        """Return a graph that declares all types, those in bodies too; see `types_of`. Not to be changed."""
        if self._infer is not None:
            self._complete(self._infer)
        return self._graph if self._graph is not None else GraphProto(value_info=self._values.values())

    def _complete(self, infer: Callable[[], TypeTable]) -> None:
        """Take over what inference finds, which is never less than what was declared."""
        inferred, self._infer = infer(), None
        self._values, self._graph = inferred._values, inferred._graph  # noqa: SLF001 - of the same class

    def _made(self, name: str) -> TensorType:
        value = self.declaration(name)
        if value is None:
            return UNKNOWN_TYPE
        key = value.type.SerializeToString()
        made = self._interned.get(key)
        if made is None:
            made = self._interned[key] = tensor_type(value.type)
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


def infer_types(proto: ModelProto, resolve: Callable[[ModelProto], None] | None = None) -> TypeTable:
    """Infer the types of a model's values; what the model itself declares wins.

    Args:
        proto: the model, without its large weights.
        resolve: declares values that a model after inference has no types for, in place.

    Raises:
        InvalidGraph: the model's own element types contradict each other. Shapes may: onnxruntime, too,
            takes what a model declares for a hint.
    """
    probe = structure(proto)
    inferred = _inferred(probe, data_prop=False)
    if _propagates(probe.graph) and not _has_long_vectors(inferred.graph):
        inferred = _inferred(probe, data_prop=True)
    if resolve is not None:
        resolve(inferred)
    return types_of(inferred.graph)


def declared_types(proto: ModelProto, resolve: Callable[[ModelProto], None] | None = None) -> TypeTable:
    """Return a model's types, inferred only when one is asked for that the model does not declare.

    For context models, which declare what their nodes take and give: whoever computes on a value checks it.
    """
    return TypeTable(_typed(proto.graph), infer=lambda: infer_types(proto, resolve))


def types_of(graph: GraphProto) -> TypeTable:
    """Return the types that a graph and its bodies declare; nothing is inferred."""
    return TypeTable(_typed(graph), graph)


def _typed(graph: GraphProto) -> list[ValueInfoProto]:
    """Return what is known of a graph's values after inference; what it declares comes first."""
    return [
        # Outputs need no declaration; inference may know them all the same.
        *[v for v in chain(graph.input, graph.output) if v.type.WhichOneof("value")],
        *graph.value_info,
        *[onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in graph.initializer],
    ]


def _inferred(proto: ModelProto, *, data_prop: bool) -> ModelProto:
    """Return a model with inferred types; strictly first, as lenient inference hides contradictions."""
    try:
        return onnx.shape_inference.infer_shapes(
            proto, check_type=True, strict_mode=True, data_prop=data_prop
        )
    except onnx.shape_inference.InferenceError as error:
        text = " ".join(str(error).split())
        if any(sign in text for sign in _TYPES_CONTRADICT):
            raise InvalidGraph(f"type inference refuses the model: {text}") from error
    except (ValueError, RuntimeError, onnx.checker.ValidationError):
        pass
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=data_prop)
    except (
        onnx.shape_inference.InferenceError,
        ValueError,
        RuntimeError,
        onnx.checker.ValidationError,
    ) as error:
        raise InvalidGraph(f"shape inference refuses the model: {' '.join(str(error).split())}") from error


def _propagates(graph: GraphProto) -> bool:
    """Whether a graph or one of its bodies has an operator that can compute a shape."""
    operators = {(node.domain, node.op_type) for node in graph.node}
    if not PROPAGATING.isdisjoint(op_type for _, op_type in operators):
        return True
    if not any(operator_may_hold_bodies(*operator) for operator in operators):
        return False
    return any(_propagates(body) for node in graph.node for body in bodies(node))


def _has_long_vectors(graph: GraphProto) -> bool:
    """Whether a value has one dimension and is too long to be a shape.

    Data propagation keeps some 70 bytes for each element of such a value, whatever its type.
    """
    return any(_is_long_vector(value) for _, each in all_graphs(graph) for value in _typed(each))


def _is_long_vector(value: ValueInfoProto) -> bool:
    dims = value.type.tensor_type.shape.dim
    return len(dims) == 1 and dims[0].dim_value > LONGEST_SHAPE
