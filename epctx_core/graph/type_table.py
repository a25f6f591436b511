"""Table of the types of a graph's values, with those that are proven beside those that are only declared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from itertools import chain

import onnx
from onnx import GraphProto, ModelProto, TensorShapeProto, TypeProto, ValueInfoProto

from epctx_core.errors import InvalidGraph
from epctx_core.graph.index import SubgraphPath, copy_message, iter_named_subgraphs, list_given_names
from epctx_core.graph.model_io import DENSE_OR_SPARSE, ELEMENT_TYPES, walk_types
from epctx_core.plugin import UNKNOWN_TYPE, TensorType

ONLY_DECLARED = "epctx.declared"
"""Metadata of a graph's output that an EPContext node makes, where nothing but the declaration knows its shape."""


class TypeTable:
    """Value name to type; equal types are one object, made when first asked for.

    A length of which only a declaration speaks is a hint: `get` gives it, `proven` does not.

    Args:
        values: typed values; of two with one name the first counts.
        graph: the graph with types inferred, whose bodies have tables of their own.
        outer: the table of the enclosing scope, asked for what the graph does not define.
        infer: gives the whole table when something is asked for that is not in `values`.
        proven: the table without hints, if that says less.
        trusted: if given, the names of the values whose declared lengths are no hints.

    Attributes:
        contradictions: by name, of values that are declared to be what inference refutes, both as a text.
    """

    def __init__(
        self,
        values: Iterable[ValueInfoProto] = (),
        graph: GraphProto | None = None,
        outer: TypeTable | None = None,
        infer: Callable[[], TypeTable] | None = None,
        *,
        proven: TypeTable | None = None,
        trusted: Container[str] | None = None,
    ) -> None:
        known = list(values)
        known.reverse()
        self._values = dict(zip([value.name for value in known], known, strict=True))
        self._graph, self._outer, self._infer = graph, outer, infer
        self._proven, self._trusted = proven, trusted
        self.contradictions: Mapping[str, str] = {}
        self._subgraphs: dict[int, dict[str, TypeTable]] = {}
        if graph is not None and outer is not None:
            # A value of unknown type hides one of the same name outside.
            for name in chain(list_given_names(graph), *(node.output for node in graph.node)):
                self._values.setdefault(name, ValueInfoProto(name=name))
        self._types: dict[str, TensorType] = {}
        self._interned: dict[bytes, TensorType] = outer._interned if outer is not None else {}  # noqa: SLF001
        self._bare: dict[int | None, TensorType] = {}

    def get(self, name: str) -> TensorType:
        """Return a value's type, `UNKNOWN_TYPE` if there is none."""
        known = self._types.get(name)
        return known if known is not None else self._make(name)

    def proven(self, name: str) -> TensorType:
        """Return what of a value's type holds in every run, whatever is declared."""
        if self._proven is not None:
            return self._proven.get(name)
        kind = self.get(name)
        if self._trusted is None or name in self._trusted or kind.shape is None:
            return kind
        return self._bare.setdefault(kind.elem_type, TensorType(kind.elem_type, None))

    def proto(self, name: str) -> TypeProto | None:
        """Return a value's type as ONNX writes it, with symbolic names and non-tensor kinds."""
        value = self.declaration(name)
        return value.type if value is not None else None

    def proven_proto(self, name: str) -> TypeProto | None:
        """Return what is proven of it, as ONNX writes it."""
        if self._proven is not None:
            return self._proven.proto(name)
        kind = self.proto(name)
        if kind is None or self._trusted is None or name in self._trusted:
            return kind
        bare: TypeProto = copy_message(kind)
        forget_shape(bare)
        return bare

    def declaration(self, name: str) -> ValueInfoProto | None:
        """Return a value's name and type as ONNX writes them, None if there is no type."""
        value = self._values.get(name)
        if value is not None and value.HasField("type"):
            return value
        if self._infer is not None and name:
            self._complete(self._infer)
            return self.declaration(name)
        return self._outer.declaration(name) if self._outer is not None and value is None else None

    def get_subgraph(self, node: int, attribute: str) -> TypeTable:
        """Return the table of a body that a node holds; one that only looks outside if it is not known."""
        if self._infer is not None:
            self._complete(self._infer)
        if node not in self._subgraphs:
            held = iter_named_subgraphs(self._graph.node[node]) if self._graph is not None else ()
            self._subgraphs[node] = {
                name: TypeTable(
                    list_typed_values(body),
                    body,
                    self,
                    proven=self._proven.get_subgraph(node, name) if self._proven else None,
                )
                for name, body in held
            }
        bodies = self._subgraphs[node]
        if attribute not in bodies:
            bodies[attribute] = TypeTable((), None, self)
        return bodies[attribute]

    def find_subgraph(self, path: SubgraphPath) -> TypeTable:
        """Return the table of a body at any depth."""
        table = self
        for node, attribute in path:
            table = table.get_subgraph(node, attribute)
        return table

    def list_declaring_graphs(self) -> list[GraphProto]:
        """Return a graph that declares all types, those in bodies too, and where there are hints one without them.

        See `types_of`. Not to be changed.
        """
        if self._infer is not None:
            self._complete(self._infer)
        graph = self._graph if self._graph is not None else GraphProto(value_info=self._values.values())
        return [graph, *(self._proven.list_declaring_graphs() if self._proven is not None else ())]

    def _complete(self, infer: Callable[[], TypeTable]) -> None:
        """Take over what inference finds, which is never less than what was declared."""
        inferred, self._infer = infer(), None
        self._values, self._graph = inferred._values, inferred._graph  # noqa: SLF001 - of the same class
        self._proven, self._trusted = inferred._proven, None  # noqa: SLF001
        # Those given before were declared, and inference may have refuted them.
        self._types.clear()
        self.contradictions = inferred.contradictions

    def _make(self, name: str) -> TensorType:
        if self._outer is not None and name not in self._values:
            # Many bodies may read one value, and its shape may be long.
            return self._types.setdefault(name, self._outer.get(name))
        value = self.declaration(name)
        if value is None:
            return UNKNOWN_TYPE
        key = value.type.SerializeToString()
        made = self._interned.get(key)
        if made is None:
            made = self._interned[key] = make_tensor_type(value.type)
        self._types[name] = made
        return made


def make_tensor_type(proto: TypeProto) -> TensorType:
    """Return a type as EPs see it; UNKNOWN_TYPE for what is not a dense tensor.

    Raises:
        InvalidGraph: an element type that ONNX does not have.
    """
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.elem_type:
        return UNKNOWN_TYPE
    tensor = proto.tensor_type
    if tensor.elem_type not in ELEMENT_TYPES:
        raise InvalidGraph(f"a value has the element type {tensor.elem_type}, which ONNX does not have.")
    shape = (
        tuple(d.dim_param or None if is_open(d) else d.dim_value for d in tensor.shape.dim)
        if tensor.HasField("shape")
        else None
    )
    return TensorType(tensor.elem_type, shape)


def forget_shape(kind: TypeProto) -> None:
    """Remove the shapes from a type, in place; its element types stay."""
    for which, each in walk_types(kind):
        if which in DENSE_OR_SPARSE:
            getattr(each, which).ClearField("shape")


def is_open(dim: TensorShapeProto.Dimension) -> bool:
    """Whether a length is not known. Some exporters write -1 for that, and onnxruntime reads it so."""
    return not dim.HasField("dim_value") or dim.dim_value < 0


def is_only_declared(output: ValueInfoProto) -> bool:
    """Whether the shape of an output of a context model is nothing but what the source declared."""
    return any(entry.key == ONLY_DECLARED for entry in output.metadata_props)


def make_declared_types(
    proto: ModelProto, infer: Callable[[], TypeTable], trusted: Collection[str] = ()
) -> TypeTable:
    """Return a model's types, inferred only when one is asked for that the model does not declare.

    For context models, which declare what their nodes take and give: whoever computes on a value checks it.

    Args:
        proto: the model, without its large weights.
        infer: infers the types of all its values; see `epctx_core.graph.inference`.
        trusted: names of values whose declared types were inferred when the model was written.
    """
    given = {value.name for value in proto.graph.input} | {tensor.name for tensor in proto.graph.initializer}
    return TypeTable(list_typed_values(proto.graph), infer=infer, trusted=given.union(trusted))


def types_of(graph: GraphProto, proven: TypeTable | None = None) -> TypeTable:
    """Return the types that a graph and its bodies declare; nothing is inferred."""
    return TypeTable(list_typed_values(graph), graph, proven=proven)


def list_typed_values(graph: GraphProto) -> list[ValueInfoProto]:
    """Return what is known of a graph's values after inference; what it declares comes first."""
    return [
        # Outputs need no declaration; inference may know them all the same.
        *[v for v in chain(graph.input, graph.output) if v.type.WhichOneof("value")],
        *graph.value_info,
        *[onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in graph.initializer],
    ]
