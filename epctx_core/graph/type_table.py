"""Table of the types of a graph's values, proven and declared ones."""

from __future__ import annotations

import json
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidGraph
from epctx_core.graph.walks import (
    Operators,
    SubgraphPath,
    copy_message,
    iter_named_subgraphs,
    keep_messages,
    list_given_names,
    list_shaped_types,
    walk_graphs,
)
from epctx_core.graph.weights import MAX_RANK
from epctx_core.plugin import UNKNOWN_TYPE, TensorType
from epctx_core.plugin.protos import (
    ELEMENT_TYPES,
    GraphProto,
    ModelProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
    make_tensor_type_proto,
    make_tensor_value_info,
)

if TYPE_CHECKING:
    from epctx_core.plugin.types import Dimension

ONLY_DECLARED = "epctx.declared"
"""Metadata of a value that an EPContext node takes or makes, where nothing but a
declaration knows its shape: that shape as JSON, or `shape` for an output whose own type
says it. Other hosts do not read it, so a wrong declaration changes nothing for them.
"""


class TypeTable:
    """Value name to type; equal types are one object, made when first asked for.

    A length of which only a declaration speaks is a hint: `get` gives it, `get_proven`
    does not.

    Args:
        values: typed values; of two with one name the first counts.
        graph: the graph with types inferred, whose subgraphs have tables of their own.
        outer: the table of the enclosing scope, for names that the graph does not
            define.
        infer: returns the whole table when a value is missing in `values`.
        proven: the table without hints, if that says less.
        trusted: names of the values whose declared lengths are not hints; None for all.

    Attributes:
        contradictions: by name a text for each value with a declaration that inference
            refutes.
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
        self._values = {value.name: value for value in reversed(list(values))}
        self._graph = GraphProto() if graph is None else graph
        self._outer = outer
        self._infer = infer
        self._proven = proven
        self._trusted = trusted
        self.contradictions: Mapping[str, str] = {}
        self._subgraphs: dict[int, dict[str, TypeTable]] = {}
        if outer is not None:
            # A value of unknown type hides one of the same name outside.
            outputs = chain.from_iterable(node.output for node in self._graph.node)
            for name in chain(list_given_names(self._graph), outputs):
                self._values.setdefault(name, ValueInfoProto(name=name))

        # The name of an input that is left out needs no inference.
        self._types: dict[str, TensorType] = {"": UNKNOWN_TYPE}
        self._interned: dict[bytes, TensorType] = (
            outer._interned if outer is not None else {}  # noqa: SLF001
        )
        self._bare: dict[int | None, TensorType] = {}

    def get(self, name: str) -> TensorType:
        """Return a value's type, `UNKNOWN_TYPE` if there is none."""
        type_ = self._types.get(name)
        return type_ if type_ is not None else self._make(name)

    def get_proven(self, name: str) -> TensorType:
        """Return the part of a value's type that is true in every run."""
        type_ = self.get(name)
        if self._proven is not None:
            return self._proven.get_proven(name)
        if self._trusted is None or name in self._trusted or type_.shape is None:
            return type_
        return self._bare.setdefault(type_.elem_type, TensorType(type_.elem_type, None))

    def get_proto(self, name: str) -> TypeProto | None:
        """Return a value's type as ONNX writes it, with symbolic names and types other
        than tensors; None without one.
        """
        if self._outer is not None:
            self._complete()
        value = self._values.get(name)
        if value is not None and value.HasField("type"):
            return value.type
        if self._infer is not None and name:
            self._complete()
            return self.get_proto(name)
        return (
            self._outer.get_proto(name)
            if self._outer is not None and value is None
            else None
        )

    def get_proven_proto(self, name: str) -> TypeProto | None:
        """Return the proven part of a value's type as ONNX writes it."""
        type_ = self.get_proto(name)
        if self._proven is not None:
            return self._proven.get_proven_proto(name)
        if type_ is None or self._trusted is None or name in self._trusted:
            return type_
        bare: TypeProto = copy_message(type_)
        forget_shape(bare)
        return bare

    def get_subgraph(self, node: int, attribute: str) -> TypeTable:
        """Return the table of a node's subgraph; for an unknown one, a table of the
        outer scope alone.
        """
        if self._infer is not None:
            # A load indexes every subgraph, and most of them run on the CPU EP whole,
            # so that nobody asks for a type in it.
            return TypeTable(
                outer=self, infer=partial(self._infer_subgraph, node, attribute)
            )
        if node not in self._subgraphs:
            proven = self._proven
            self._subgraphs[node] = {
                name: TypeTable(
                    list_typed_values(subgraph),
                    subgraph,
                    self,
                    proven=proven and proven.get_subgraph(node, name),
                )
                for each in self._graph.node[node : node + 1]
                for name, subgraph in iter_named_subgraphs(each)
            }

        known = self._subgraphs[node].get(attribute)
        return TypeTable(outer=self) if known is None else known

    def _infer_subgraph(self, node: int, attribute: str) -> TypeTable:
        self._complete()
        return self.get_subgraph(node, attribute)

    def find_subgraph(self, path: SubgraphPath) -> TypeTable:
        """Return the table of a subgraph at any depth."""
        table = self
        for node, attribute in path:
            table = table.get_subgraph(node, attribute)
        return table

    def _complete(self) -> None:
        """Take over the inferred table, which includes all declarations, once."""
        if self._infer is None:
            return
        inferred = self._infer()
        self._infer = None
        self._values, self._graph = inferred._values, inferred._graph  # noqa: SLF001 - of the same class
        self._proven, self._trusted = inferred._proven, None  # noqa: SLF001
        # Earlier results were declared types, which inference may have refuted.
        self._types.clear()
        self.contradictions = inferred.contradictions

    def _make(self, name: str) -> TensorType:
        if self._outer is not None:
            self._complete()
            if name not in self._values:
                # Many subgraphs may read one value, and its shape may be long.
                return self._types.setdefault(name, self._outer.get(name))
        proto = self.get_proto(name)
        if proto is None:
            return UNKNOWN_TYPE
        key = proto.SerializeToString()
        tensor_type = self._interned.get(key)
        if tensor_type is None:
            tensor_type = self._interned[key] = make_tensor_type(proto)
        self._types[name] = tensor_type

        # A context model may have very many values, nearly all of them trusted.
        may_be_hint = self._proven is not None or not (
            self._trusted is None or name in self._trusted
        )
        if may_be_hint and list_lengths(self.get_proven(name)) != list_lengths(
            tensor_type
        ):
            # No type of ONNX is serialised so: such types are made once, too.
            key += b"?"
            tensor_type = self._types[name] = self._interned.setdefault(
                key, replace(tensor_type, is_proven=False)
            )

        return tensor_type


def list_lengths(type_: TensorType) -> list[int | None] | None:
    """Return a type's lengths, None for an open one; None if the rank is unknown."""
    return (
        None
        if type_.shape is None
        else [dim if isinstance(dim, int) else None for dim in type_.shape]
    )


def make_tensor_type(proto: TypeProto) -> TensorType:
    """Return a type as EPs see it; UNKNOWN_TYPE for what is not a dense tensor.

    Raises:
        InvalidGraph: an element type that ONNX does not have.
    """
    tensor = proto.tensor_type
    if not tensor.elem_type:
        return UNKNOWN_TYPE
    if tensor.elem_type not in ELEMENT_TYPES:
        raise InvalidGraph(
            f"a value has the element type {tensor.elem_type}, which ONNX does not "
            "have."
        )
    if not tensor.HasField("shape"):
        return TensorType(tensor.elem_type, None)
    lengths = [
        d.dim_param or None if is_open(d) else d.dim_value for d in tensor.shape.dim
    ]
    return TensorType(tensor.elem_type, tuple(lengths))


def forget_shape(type_: TypeProto) -> None:
    """Remove the shapes from a type, in place; its element types stay."""
    for tensor in list_shaped_types(type_):
        tensor.ClearField("shape")


def is_open(dim: TensorShapeProto.Dimension) -> bool:
    """Return whether a length is unknown.

    Some exporters write -1 for that, which onnxruntime accepts.
    """
    return not dim.HasField("dim_value") or dim.dim_value < 0


def list_dimensions(
    values: Iterable[ValueInfoProto],
) -> list[TensorShapeProto.Dimension]:
    """Return the dimensions of those values that are tensors."""
    return [dim for value in values for dim in value.type.tensor_type.shape.dim]


def is_only_declared(output: ValueInfoProto) -> bool:
    """Return whether the shape of a context model's output is only declared by the
    source.
    """
    return _find_note(output) != ""


def _find_note(value: ValueInfoProto) -> str:
    notes = (e.value for e in value.metadata_props if e.key == ONLY_DECLARED)
    return next(notes, "")


def mark_declared(value: ValueInfoProto, declared: TensorType | None = None) -> None:
    """Note in a value the shape that it is only declared to have; remove the note if
    there is none.
    """
    keep_messages(value.metadata_props, lambda entry: entry.key != ONLY_DECLARED)
    if declared is not None and declared.shape is not None:
        has_shape = make_tensor_type(value.type).shape == declared.shape
        text = "shape" if has_shape else json.dumps(declared.shape)
        value.metadata_props.add(key=ONLY_DECLARED, value=text)


def restore_declared(
    graph: GraphProto, operators: Operators | None = None
) -> GraphProto:
    """Return a context model's graph in which values have the shapes that the source
    only declares; a copy, or the graph itself where none does.

    Args:
        graph: the graph.
        operators: those of its nodes, if they are known.

    Raises:
        InvalidGraph: a note is not a shape that the value can have.
    """
    graphs = walk_graphs(graph, operators=operators)
    if not any(_list_noted(each) for _, each in graphs):
        return graph
    restored: GraphProto = copy_message(graph)
    for _, each in walk_graphs(restored):
        for value in _list_noted(each):
            value.type.CopyFrom(_read_note(value))
    return restored


def _list_noted(graph: GraphProto) -> list[ValueInfoProto]:
    """Return the values of a graph whose own types do not say the shape that they are
    only declared to have.
    """
    return [
        value
        for value in chain(graph.value_info, graph.output)
        if value.metadata_props and _find_note(value) not in {"", "shape"}
    ]


def _read_note(value: ValueInfoProto) -> TypeProto:
    note = _find_note(value)
    type_ = make_tensor_type(value.type)
    try:
        lengths = json.loads(note)
        if type(lengths) is list and len(lengths) <= MAX_RANK:
            made: TypeProto = make_tensor_type_proto(
                value.type.tensor_type.elem_type, lengths
            )
            if type_.elem_type and may_have_shape(type_, lengths):
                return made
    except (ValueError, TypeError, RecursionError):
        pass
    raise InvalidGraph(
        f"the value {value.name!r} has the metadata {ONLY_DECLARED}={note!r:.80}, "
        f"which is not a shape of a value of type {type_}.",
        hint="Compile the source model again.",
    )


def may_have_shape(type_: TensorType, shape: Sequence[Dimension] | None) -> bool:
    """Return whether values of a type may have a shape, as far as both are known."""
    if type_.shape is None or shape is None:
        return True
    return len(shape) == len(type_.shape) and all(
        a == b or not isinstance(a, int) or not isinstance(b, int)
        for a, b in zip(type_.shape, shape, strict=True)
    )


def make_declared_types(
    proto: ModelProto,
    infer: Callable[[], TypeTable],
    trusted: Collection[str] = (),
    operators: Operators | None = None,
) -> TypeTable:
    """Return a model's types, inferred only when one is asked for that the model does
    not declare.

    For context models, which declare the inputs and outputs of their nodes: EPs and
    kernels check the values.

    Args:
        proto: the model, without its large weights.
        infer: infers the types of all its values; see `epctx_core.graph.inference`.
        trusted: names of values with types that were inferred when the model was
            written.
        operators: those of its nodes, if they are known.
    """
    graph = proto.graph
    values = list_typed_values(graph)
    trusted_names = {each.name for each in (*graph.input, *graph.initializer)}
    trusted_names.update(trusted)
    declaring = restore_declared(graph, operators)
    if declaring is graph:
        return TypeTable(values, infer=infer, trusted=trusted_names)
    proven = TypeTable(values, trusted=trusted_names)
    return TypeTable(list_typed_values(declaring), infer=infer, proven=proven)


def types_of(graph: GraphProto, proven: TypeTable | None = None) -> TypeTable:
    """Return the types declared by a graph and its subgraphs, without inference."""
    return TypeTable(list_typed_values(graph), graph, proven=proven)


def list_typed_values(graph: GraphProto) -> list[ValueInfoProto]:
    """Return the typed values of a graph after inference; of two with one name the
    first counts.
    """
    # An initializer's type is its tensor's, whatever is declared. One that is also an
    # input has the type of the input: the caller may override it. Outputs need no
    # declaration; inference may know them all the same.
    values = (*graph.input, *list_initializer_types(graph), *graph.output)
    typed = [value for value in values if value.type.WhichOneof("value")]
    return [*typed, *graph.value_info]


def list_initializer_types(
    graph: GraphProto, names: Container[str] | None = None
) -> list[ValueInfoProto]:
    """Return the types of a graph's own initializers, as their tensors say; of these
    names, or of all.
    """
    return [
        make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in graph.initializer
        if names is None or t.name in names
    ]
