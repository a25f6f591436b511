"""Types of values: what onnx infers from a model's inputs, and what the model declares beyond that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from itertools import chain, count
from typing import TYPE_CHECKING, NamedTuple

import onnx
from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto

from epctx_core.errors import InvalidGraph
from epctx_core.graph.bodies import all_graphs, bodies, given_names, named_bodies, operator_may_hold_bodies
from epctx_core.graph.model_io import ELEMENT_TYPES, structure
from epctx_core.plugin import UNKNOWN_TYPE, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx import TensorShapeProto

    from epctx_core.graph.bodies import BodyPath
    from epctx_core.plugin.types import Dimension

ONLY_DECLARED = "epctx.declared"
"""Metadata of a graph's output that an EPContext node makes, where nothing but the declaration knows its shape."""


class Hint(NamedTuple):
    """Addition of a declaration to an inferred type.

    Attributes:
        target: the value as inferred.
        type: its type with the hint.
        adds_length: whether that says more than names of open lengths.
        refuted: whether inference proves the declaration wrong, all of it or a part.
        declaration: the value as declared.
    """

    target: ValueInfoProto
    type: TypeProto
    adds_length: bool
    refuted: bool
    declaration: ValueInfoProto


def without_hints(model: ModelProto, trusted: Container[str] = ()) -> ModelProto:
    """Return a copy of a model in which only inputs have shapes, and each open length of theirs has a name.

    Args:
        model: the model.
        trusted: names of other values whose shapes stay.
    """
    probe = ModelProto()
    probe.CopyFrom(model)
    _name_open_lengths(probe.graph.input)
    for path, graph in all_graphs(probe.graph):
        for value in _hinted_values(graph, main=not path):
            if value.name not in trusted:
                forget_shape(value.type)
    return probe


def _name_open_lengths(inputs: Iterable[ValueInfoProto]) -> None:
    """Give each length that is left open a name of its own: what is computed from it is known to be no other."""
    dims = [dim for value in inputs for dim in value.type.tensor_type.shape.dim]
    taken = {dim.dim_param for dim in dims}
    names = (name for number in count() if (name := f"unk__{number}") not in taken)
    for dim in dims:
        if is_open(dim) and not dim.dim_param:
            dim.dim_param = next(names)


def _hinted_values(graph: GraphProto, *, main: bool) -> Iterator[ValueInfoProto]:
    """Yield the declarations of a graph that prove nothing; what a body is given may change from run to run."""
    return chain(graph.output, graph.value_info, () if main else graph.input)


def forget_shape(kind: TypeProto) -> None:
    """Remove the shapes from a type, in place; its element types stay."""
    which = kind.WhichOneof("value")
    if which in {"tensor_type", "sparse_tensor_type"}:
        getattr(kind, which).ClearField("shape")
    elif which in {"sequence_type", "optional_type"}:
        forget_shape(getattr(kind, which).elem_type)
    elif which == "map_type":
        forget_shape(kind.map_type.value_type)


def is_open(dim: TensorShapeProto.Dimension) -> bool:
    """Whether a length is not known. Some exporters write -1 for that, and onnxruntime reads it so."""
    return not dim.HasField("dim_value") or dim.dim_value < 0


def hints(declared: GraphProto, inferred: GraphProto, names: Container[str]) -> Iterator[Hint]:
    """Yield what the declarations of a graph and its bodies add to types that were inferred without them.

    Args:
        declared: the graph.
        inferred: the same graph, inferred; a value that it does not know is added.
        names: the open lengths of the model's inputs, which are known to be open.
    """
    for (path, given), (_, found) in zip(all_graphs(declared), all_graphs(inferred), strict=True):
        values = list(chain(found.input, found.output, found.value_info))
        # Of two with one name the first counts.
        known = {value.name: value for value in reversed(values)}
        for value in _hinted_values(given, main=not path):
            target = known.get(value.name)
            if target is None:
                target = known[value.name] = found.value_info.add(name=value.name)
            if value.type != target.type:
                yield _hint(value, target, names)


def _hint(declared: ValueInfoProto, target: ValueInfoProto, names: Container[str]) -> Hint:
    kind = TypeProto()
    kind.CopyFrom(target.type)
    if kind.WhichOneof("value") is None:
        kind.CopyFrom(declared.type)
        forget_shape(kind)
    if not (kind.HasField("tensor_type") and declared.type.tensor_type.HasField("shape")):
        adds_type = target.type.WhichOneof("value") is None
        return Hint(target, kind, adds_length=adds_type, refuted=False, declaration=declared)
    shape = declared.type.tensor_type.shape
    if not kind.tensor_type.HasField("shape"):
        kind.tensor_type.shape.SetInParent()
        kind.tensor_type.shape.dim.extend([type(d)() for d in shape.dim])
        return _merged(target, kind, declared, names, adds_length=True)
    if len(kind.tensor_type.shape.dim) != len(shape.dim):
        return Hint(target, kind, adds_length=False, refuted=True, declaration=declared)
    return _merged(target, kind, declared, names)


def _merged(
    target: ValueInfoProto,
    kind: TypeProto,
    declared: ValueInfoProto,
    names: Container[str],
    *,
    adds_length: bool = False,
) -> Hint:
    """Return a type of the declared rank with what is declared of the lengths that are not known."""
    refuted = False
    for dim, hint in zip(kind.tensor_type.shape.dim, declared.type.tensor_type.shape.dim, strict=True):
        if is_open(hint):
            if hint.dim_param and is_open(dim):
                dim.dim_param = hint.dim_param
        elif is_open(dim) and dim.dim_param not in names:
            dim.dim_value = hint.dim_value
            adds_length = True
        elif dim.dim_value != hint.dim_value or is_open(dim):
            refuted = True
    return Hint(target, kind, adds_length=adds_length, refuted=refuted, declaration=declared)


def is_only_declared(output: ValueInfoProto) -> bool:
    """Whether the shape of an output of a context model is nothing but what the source declared."""
    return any(entry.key == ONLY_DECLARED for entry in output.metadata_props)


PROPAGATING = frozenset(
    {"Add", "Cast", "Concat", "Gather", "Mul", "Shape", "Size", "Slice", "Squeeze", "Sub", "Unsqueeze"}
)
"""Operators through which onnx follows the elements of a shape."""

LONGEST_SHAPE = 4096
"""Elements above which a vector is data, and no shape or list of axes."""

_TYPES_CONTRADICT = ("elem type differs", "has inconsistent type")


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
        self._bodies: dict[int, dict[str, TypeTable]] = {}
        if graph is not None and outer is not None:
            # A value of unknown type hides one of the same name outside.
            for name in chain(given_names(graph), *(node.output for node in graph.node)):
                self._values.setdefault(name, ValueInfoProto(name=name))
        self._types: dict[str, TensorType] = {}
        self._interned: dict[bytes, TensorType] = outer._interned if outer is not None else {}  # noqa: SLF001
        self._bare: dict[int | None, TensorType] = {}

    def get(self, name: str) -> TensorType:
        """Return a value's type, `UNKNOWN_TYPE` if there is none."""
        known = self._types.get(name)
        return known if known is not None else self._made(name)

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
        bare = TypeProto()
        bare.CopyFrom(kind)
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

    def body(self, node: int, attribute: str) -> TypeTable:
        """Return the table of a body that a node holds; one that only looks outside if it is not known."""
        if self._infer is not None:
            self._complete(self._infer)
        if node not in self._bodies:
            held = named_bodies(self._graph.node[node]) if self._graph is not None else ()
            self._bodies[node] = {
                name: TypeTable(
                    _typed(body), body, self, proven=self._proven.body(node, name) if self._proven else None
                )
                for name, body in held
            }
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

    def declaring_graphs(self) -> list[GraphProto]:
        """Return a graph that declares all types, those in bodies too, and where there are hints one without them.

        See `types_of`. Not to be changed.
        """
        if self._infer is not None:
            self._complete(self._infer)
        graph = self._graph if self._graph is not None else GraphProto(value_info=self._values.values())
        return [graph, *(self._proven.declaring_graphs() if self._proven is not None else ())]

    def _complete(self, infer: Callable[[], TypeTable]) -> None:
        """Take over what inference finds, which is never less than what was declared."""
        inferred, self._infer = infer(), None
        self._values, self._graph = inferred._values, inferred._graph  # noqa: SLF001 - of the same class
        self._proven, self._trusted = inferred._proven, None  # noqa: SLF001
        # Those given before were declared, and inference may have refuted them.
        self._types.clear()
        self.contradictions = inferred.contradictions

    def _made(self, name: str) -> TensorType:
        if self._outer is not None and name not in self._values:
            # Many bodies may read one value, and its shape may be long.
            return self._types.setdefault(name, self._outer.get(name))
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
    if tensor.elem_type not in ELEMENT_TYPES:
        raise InvalidGraph(f"a value has the element type {tensor.elem_type}, which ONNX does not have.")
    shape = tuple(_dimension(d) for d in tensor.shape.dim) if tensor.HasField("shape") else None
    return TensorType(tensor.elem_type, shape)


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> Dimension:
    return dim.dim_param or None if is_open(dim) else dim.dim_value


def infer_types(
    proto: ModelProto, resolve: Callable[[ModelProto], None] | None = None, trusted: Container[str] = ()
) -> TypeTable:
    """Infer the types of a model's values from its inputs, then complete them by what the model declares.

    Args:
        proto: the model, without its large weights. Declarations that are refuted are corrected, in place.
        resolve: declares values that a model after inference has no types for, in place.
        trusted: names of values whose declared types are no hints.

    Raises:
        InvalidGraph: the model's own element types contradict each other. Shapes may: onnxruntime, too,
            takes what a model declares for a hint.
    """
    probe = without_hints(structure(proto), trusted)
    names = {dim.dim_param for value in probe.graph.input for dim in value.type.tensor_type.shape.dim} - {""}
    proven = _completed(probe, resolve)
    found = list(hints(proto.graph, proven.graph, names))
    refuted = {
        h.target.name: f"{h.target.name!r} is declared {tensor_type(h.declaration.type)}, its operators give "
        f"{tensor_type(h.target.type)}"
        for h in found
        if h.refuted
    }
    for hint in found:
        if not hint.adds_length:
            hint.target.type.CopyFrom(hint.type)
        if hint.refuted:
            hint.declaration.type.CopyFrom(hint.type)
    known = types_of(_with_inputs(proven, proto))
    table = known
    if any(hint.adds_length for hint in found):
        hinted = _hinted(proven, proto.graph, names)
        table = types_of(_hinted(proven, _completed(hinted, resolve).graph, names).graph, proven=known)
    table.contradictions = refuted
    return table


def _hinted(proven: ModelProto, declared: GraphProto, names: Container[str]) -> ModelProto:
    """Return a copy of an inferred model with what a graph declares besides."""
    hinted = ModelProto()
    hinted.CopyFrom(proven)
    for hint in hints(declared, hinted.graph, names):
        hint.target.type.CopyFrom(hint.type)
    return hinted


def _with_inputs(inferred: ModelProto, proto: ModelProto) -> GraphProto:
    """Give the inputs of an inferred model back as they are declared, and return its graph."""
    for value, declared in zip(inferred.graph.input, proto.graph.input, strict=False):
        value.CopyFrom(declared)
    return inferred.graph


def _completed(probe: ModelProto, resolve: Callable[[ModelProto], None] | None) -> ModelProto:
    """Return a model with inferred types, of operators unknown to onnx too."""
    inferred = _inferred(probe, data_prop=False)
    if _propagates(probe.graph) and not _has_long_vectors(inferred.graph):
        inferred = _inferred(probe, data_prop=True)
    if resolve is not None:
        resolve(inferred)
    return inferred


def declared_types(
    proto: ModelProto, resolve: Callable[[ModelProto], None] | None = None, trusted: Collection[str] = ()
) -> TypeTable:
    """Return a model's types, inferred only when one is asked for that the model does not declare.

    For context models, which declare what their nodes take and give: whoever computes on a value checks it.

    Args:
        proto: the model, without its large weights.
        resolve: see `infer_types`.
        trusted: names of values whose declared types were inferred when the model was written.
    """
    given = {value.name for value in proto.graph.input} | {tensor.name for tensor in proto.graph.initializer}
    return TypeTable(
        _typed(proto.graph),
        infer=lambda: infer_types(proto, resolve, trusted),
        trusted=given.union(trusted),
    )


def types_of(graph: GraphProto, proven: TypeTable | None = None) -> TypeTable:
    """Return the types that a graph and its bodies declare; nothing is inferred."""
    return TypeTable(_typed(graph), graph, proven=proven)


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
