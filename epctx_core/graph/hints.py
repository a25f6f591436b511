"""Declared lengths as hints: what a model says of its values' shapes, beside what inference proves of them.

As in onnxruntime a declaration adds what inference does not know, and a wrong one is no error. Inputs are no
hints: what a run is given is checked against them.
"""

from __future__ import annotations

from itertools import chain, count
from typing import TYPE_CHECKING, NamedTuple

from onnx import ModelProto, TypeProto

from epctx_core.graph.bodies import all_graphs

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from onnx import GraphProto, TensorShapeProto, ValueInfoProto

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
