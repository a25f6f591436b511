"""EPContext nodes against their operator: attributes, names, types, who refers to whom. Opens nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onnx import NodeProto, TensorProto

from epctx_core.context.node import (
    BOUNDARY_TYPES,
    ContextNodeRecord,
    check_attribute,
    is_context_node,
    named_apart,
    read_context_node,
    wrong_switches,
)
from epctx_core.context.payload_reader import refuse_orphans
from epctx_core.errors import InvalidGraph, NotImplementedByProvider
from epctx_core.graph.bodies import placed_nodes
from epctx_core.graph.model_io import names_as_text
from epctx_core.graph.type_table import types_of

if TYPE_CHECKING:
    from onnx import AttributeProto, TypeProto

    from epctx_core.graph.bodies import BodyPath
    from epctx_core.graph.type_table import TypeTable
    from epctx_core.sessions.loading import Routing
    from epctx_core.verify.findings import Findings
    from epctx_core.verify.subject import Subject

_COMPILE = "Compile the source model again."
_SHOWN_NAMES = 5


def read_nodes(subject: Subject) -> list[ContextNodeRecord]:
    """Decode all EPContext nodes, each as far as it can be, and note what the operator does not allow."""
    graph, findings = subject.proto.graph, subject.findings
    decoded = [
        record
        for path, place, node in placed_nodes(graph)
        if is_context_node(node) and (record := _read(node, place, path, findings)) is not None
    ]
    records = named_apart(decoded)
    for record, own in zip(records, decoded, strict=True):
        if record.name != own.name:
            findings.add(
                "name-repeated",
                f"two EPContext nodes are called {own.name!r}; a load tells them apart by their places.",
                node=own.name,
                hint="Give one of the models its own ep.context_node_name_prefix before they are joined.",
            )
        if subject.opened is not None:
            with findings.collected("body-not-run", (NotImplementedByProvider,)):
                subject.opened.graph_of(record)
    return records


def _read(node: NodeProto, place: int, path: BodyPath, findings: Findings) -> ContextNodeRecord | None:
    """Return a node without what is wrong in it; None if nothing can be made of it."""
    name = node.name or f"EPContext_{place}"
    names: list[object] = [name, *node.input, *node.output]
    if not all(isinstance(each, str) for each in names):
        shown = name if isinstance(name, str) else repr(name)
        findings.add(
            "name-not-text",
            f"EPContext node {shown!r} has a name, or one of its values, that is not UTF-8.",
            node=shown,
            hint=_COMPILE,
        )
        return None
    record = _as_it_is(node, place, path)
    if record is None:
        bad = list(_bad_attributes(name, node, findings))
        # What is left is right, so that nothing but the node itself can be refused.
        with findings.collected("outputs-missing", node=name, hint=_COMPILE):
            rest = NodeProto()
            rest.CopyFrom(node)
            for wrong in reversed(bad):
                del rest.attribute[wrong]
            record = read_context_node(rest, place, path)
    if record is not None:
        _check_values(record, findings)
    return record


def _as_it_is(node: NodeProto, place: int, path: BodyPath) -> ContextNodeRecord | None:
    """Return a node whose attributes are all good, as nearly all are."""
    names: list[object] = [attribute.name for attribute in node.attribute]
    if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        return None
    try:
        return read_context_node(node, place, path)
    except InvalidGraph:
        return None


def _bad_attributes(name: str, node: NodeProto, findings: Findings) -> Iterator[int]:
    """Yield the places of attributes that cannot be used."""
    seen: set[object] = set()
    for place, attribute in enumerate(node.attribute):
        if attribute.name in seen:
            findings.add(
                "attribute-repeated",
                f"EPContext node {name!r} has the attribute {attribute.name!r} twice.",
                node=name,
                hint=_COMPILE,
            )
            yield place
        elif not _is_good(name, attribute, findings):
            yield place
        seen.add(attribute.name)


def _is_good(name: str, attribute: AttributeProto, findings: Findings) -> bool:
    """Whether a load could use an attribute: by itself, in a node that has nothing else."""
    key: object = attribute.name
    with findings.collected("attribute-type", node=name, hint=_COMPILE):
        check_attribute(name, attribute)
        with findings.collected("attribute-unreadable", node=name, hint=_COMPILE):
            if not isinstance(key, str):
                raise InvalidGraph(
                    f"EPContext node {name!r} has an attribute whose name, {key!r:.80}, is not UTF-8."
                )
            # A payload may have gigabytes, and nothing in it is read here.
            if key != "ep_cache_context":
                probe = NodeProto(name=name, output=["y"])
                probe.attribute.append(attribute)
                read_context_node(probe, 0)
            return True
    return False


def _check_values(record: ContextNodeRecord, findings: Findings) -> None:
    """Check what single attributes say."""
    for wrong in wrong_switches(record):
        findings.add_error("attribute-value", wrong)
    if not record.attributes.get("partition_name"):
        findings.add(
            "partition-name-missing",
            f"EPContext node {record.name!r} has no partition_name; its name is taken for the graph's name.",
            node=record.name,
        )


def check_references(subject: Subject, routing: Routing | None) -> None:
    """Check that the nodes of each EP have a payload, their own or another's, and that no two run one graph."""
    owners = {r.name: ep for ep, own in routing.nodes.items() for r in own} if routing is not None else {}
    by_owner: dict[str, list[ContextNodeRecord]] = {}
    for record in subject.records:
        by_owner.setdefault(owners.get(record.name, record.source), []).append(record)
    for owner, same in by_owner.items():
        with subject.findings.collected("primary-missing"):
            if owner:
                refuse_orphans(same, owner)
            _check_ignored(same, subject.findings)
        _check_partitions(same, subject.findings)


def _check_ignored(records: Sequence[ContextNodeRecord], findings: Findings) -> None:
    """Note references with a payload that is none of a primary's."""
    payloads = {_payload(record) for record in records if record.main_context}
    for record in records:
        if record.cache and _payload(record) not in payloads:
            findings.add(
                "payload-ignored",
                f"EPContext node {record.name!r} has main_context=0, and its ep_cache_context is not read.",
                node=record.name,
            )


def _check_partitions(records: Sequence[ContextNodeRecord], findings: Findings) -> None:
    """Note nodes that run one graph of one payload."""
    payloads = {_payload(record) for record in records if record.main_context}
    only = next(iter(payloads)) if len(payloads) == 1 else None
    runs: dict[tuple[object, str], list[str]] = {}
    for record in records:
        payload = _payload(record) if record.main_context else only
        runs.setdefault((payload, record.partition_name), []).append(record.name)
    for (_, partition), names in runs.items():
        if len(names) > 1:
            findings.add(
                "partition-repeated",
                f"{len(names)} EPContext nodes run one graph, {partition!r}: "
                f"{', '.join(map(repr, names[:_SHOWN_NAMES]))}{', ...' if len(names) > _SHOWN_NAMES else ''}.",
                node=names[0],
                hint="Where that is not meant, a node was copied or its partition_name changed.",
            )


def _payload(record: ContextNodeRecord) -> tuple[bool, str | bytes | None]:
    """Return what tells a primary's payload from others, without its bytes."""
    return (True, record.name) if record.embed_mode else (False, record.cache)


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
