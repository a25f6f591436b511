"""The types at the boundary of EPContext nodes: declared, and such as the operator has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from onnx import TensorProto, TypeProto

from epctx_core.context.node import BOUNDARY_TYPES
from epctx_core.graph.bodies import all_graphs

if TYPE_CHECKING:
    from onnx import GraphProto

    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.graph.bodies import BodyPath
    from epctx_core.verify.findings import Findings
    from epctx_core.verify.subject import Subject

_Scope: TypeAlias = "Mapping[str, TypeProto]"


def check_types(subject: Subject) -> None:
    """Check what each node reads and makes.

    The operator has no type inference: what a node makes has the type that the model declares, or none.
    """
    graphs = dict(all_graphs(subject.proto.graph))
    scopes: dict[BodyPath, _Scope] = {}
    for record in subject.records:
        paths = [record.path[:level] for level in range(len(record.path) + 1)]
        for path in paths:
            if path not in scopes:
                scopes[path] = _declared(graphs[path])
        _check_node(record, [scopes[path] for path in paths], subject.findings)


def _declared(graph: GraphProto) -> _Scope:
    types = {
        tensor.name: _tensor(tensor.data_type)
        for tensor in chain(graph.initializer, (sparse.values for sparse in graph.sparse_initializer))
    }
    # Of two declarations the earlier counts, as in a load.
    for value in reversed([*graph.input, *graph.output, *graph.value_info]):
        if value.type.WhichOneof("value"):
            types[value.name] = value.type
    return types


def _tensor(elem_type: int) -> TypeProto:
    kind = TypeProto()
    kind.tensor_type.elem_type = elem_type
    return kind


def _check_node(record: ContextNodeRecord, scopes: Sequence[_Scope], findings: Findings) -> None:
    own = scopes[-1]
    for name in dict.fromkeys(record.outputs):
        if name and not _is_known(own.get(name)):
            findings.add(
                "type-undeclared",
                f"EPContext node {record.name!r} makes {name!r}, whose type the model does not declare; "
                "onnxruntime refuses such a model.",
                node=record.name,
                hint="Whatever changed the model dropped its value_info; compile the source model again.",
            )
    for name in dict.fromkeys((*record.inputs, *record.outputs)):
        kind = next((scope[name] for scope in reversed(scopes) if name in scope), None)
        wrong = _wrong(kind)
        if name and wrong:
            findings.add(
                "type-not-allowed",
                f"EPContext node {record.name!r} has the value {name!r} of type {wrong}, which the operator "
                "does not have.",
                node=record.name,
                hint="Compile the source model again; the EP has to leave such values to others.",
            )


def _is_known(kind: TypeProto | None) -> bool:
    return kind is not None and (
        kind.WhichOneof("value") != "tensor_type" or bool(kind.tensor_type.elem_type)
    )


def _wrong(kind: TypeProto | None) -> str:
    """Return the name of a type that cannot be at the boundary; empty for one that can, or is not known."""
    if kind is None or not _is_known(kind):
        return ""
    which = kind.WhichOneof("value")
    if which != "tensor_type":
        return str(which).removesuffix("_type")
    elem_type = kind.tensor_type.elem_type
    if elem_type in BOUNDARY_TYPES:
        return ""
    names = TensorProto.DataType
    return names.Name(elem_type).lower() if elem_type in names.values() else str(elem_type)
