"""The types at the boundary of EPContext nodes: declared, and such as the operator has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto

from epctx_core.context.node import BOUNDARY_TYPES
from epctx_core.graph.model_io import names_as_text
from epctx_core.graph.type_table import types_of

if TYPE_CHECKING:
    from onnx import TypeProto

    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.graph.type_table import TypeTable
    from epctx_core.verify.findings import Findings
    from epctx_core.verify.subject import Subject


def check_types(subject: Subject) -> None:
    """Check what each node reads and makes.

    The operator has no type inference: what a node makes has the type that the model declares, or none.
    """
    with subject.findings.collected("model-invalid"), names_as_text():
        declared = types_of(subject.proto.graph)
        for record in subject.records:
            _check_node(record, declared.at(record.path), subject.findings)


def _check_node(record: ContextNodeRecord, declared: TypeTable, findings: Findings) -> None:
    for name in dict.fromkeys(record.outputs):
        if name and not _is_known(declared.proto(name)):
            findings.add(
                "type-undeclared",
                f"EPContext node {record.name!r} makes {name!r}, whose type the model does not declare; "
                "onnxruntime refuses such a model.",
                node=record.name,
                hint="Whatever changed the model dropped its value_info; compile the source model again.",
            )
    for name in dict.fromkeys((*record.inputs, *record.outputs)):
        wrong = _wrong(declared.proto(name))
        if name and wrong:
            findings.add(
                "type-not-allowed",
                f"EPContext node {record.name!r} has the value {name!r} of type {wrong}, which the operator "
                "does not have.",
                node=record.name,
                hint="Compile the source model again; the EP has to leave such values to others.",
            )


def _is_known(kind: TypeProto | None) -> bool:
    if kind is None or kind.WhichOneof("value") is None:
        return False
    return not kind.HasField("tensor_type") or bool(kind.tensor_type.elem_type)


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
