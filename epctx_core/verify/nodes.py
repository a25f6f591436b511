"""EPContext nodes against their operator, and their payloads against the manifest and the nodes.

Attributes, names, types, who refers to whom. Payloads are found and checked by the reader that a load has, which goes on
with the next one after each fault. Also binaries beside a model that no model names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from onnx import AttributeProto, NodeProto, TensorProto, TypeProto

from epctx_core.context.manifest import (
    MANIFEST,
    VERSION,
    Manifest,
    damaged,
    metadata_value,
    parse_json,
    read_manifest,
)
from epctx_core.context.named_files import (
    CONTEXT_BINARY,
    DEPENDENCIES_KEY,
    EXTERNAL_WEIGHTS,
    SOURCE_MODEL,
    models_naming,
    stated_dependencies,
)
from epctx_core.context.node import (
    BOUNDARY_TYPES,
    ContextNodeRecord,
    check_attribute,
    is_context_node,
    named_apart,
    read_context_node,
    wrong_switches,
)
from epctx_core.context.paths import checked_name
from epctx_core.context.payload_reader import (
    BINARY,
    PayloadReader,
    Reading,
    payload_key,
    refuse_absent,
    refuse_empty,
    refuse_orphans,
)
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph, NotImplementedByProvider
from epctx_core.graph.index import BodyPath, placed_nodes
from epctx_core.graph.mapping import MappedFile
from epctx_core.graph.model_io import names_as_text
from epctx_core.graph.type_table import types_of
from epctx_core.options import Verification
from epctx_core.sessions.loading import Routing, refuse_folderless, source_tensors
from epctx_core.verify.findings import Findings, PayloadReport, Subject

if TYPE_CHECKING:
    from epctx_core.context.payload_reader import Content
    from epctx_core.context.scratch import Scratch


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
    record = None
    attributes: list[object] = [attribute.name for attribute in node.attribute]
    if len(set(attributes)) == len(attributes) and all(isinstance(each, str) for each in attributes):
        # The attributes of nearly all nodes are good.
        with suppress(InvalidGraph):
            record = read_context_node(node, place, path)
    if record is None:
        bad = list(_bad_attributes(name, node, findings))
        # What is left is right, so that nothing but the node itself can be refused.
        with findings.collected("outputs-missing", node=name, hint=_COMPILE):
            rest = NodeProto()
            rest.CopyFrom(node)
            for wrong in reversed(bad):
                del rest.attribute[wrong]
            record = read_context_node(rest, place, path)
    if record is None:
        return None
    for value in wrong_switches(record):
        findings.add_error("attribute-value", value)
    if not record.attributes.get("partition_name"):
        findings.add(
            "partition-name-missing",
            f"EPContext node {record.name!r} has no partition_name; its name is taken for the graph's name.",
            node=record.name,
        )
    return record


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


def check_references(subject: Subject, routing: Routing | None) -> None:
    """Check that the nodes of each EP have a payload, their own or another's, and that no two run one graph."""
    owners = {r.name: ep for ep, own in routing.nodes.items() for r in own} if routing is not None else {}
    by_owner: dict[str, list[ContextNodeRecord]] = {}
    for record in subject.records:
        by_owner.setdefault(owners.get(record.name, record.source), []).append(record)
    for owner, same in by_owner.items():
        payloads = {_payload(record) for record in same if record.main_context}
        with subject.findings.collected("primary-missing"):
            if owner:
                refuse_orphans(same, owner)
            for record in same:
                if record.cache and _payload(record) not in payloads:
                    subject.findings.add(
                        "payload-ignored",
                        f"EPContext node {record.name!r} has main_context=0, and its ep_cache_context is not read.",
                        node=record.name,
                    )
        only = next(iter(payloads)) if len(payloads) == 1 else None
        runs: dict[tuple[object, str], list[str]] = {}
        for record in same:
            payload = _payload(record) if record.main_context else only
            runs.setdefault((payload, record.partition_name), []).append(record.name)
        for (_, partition), names in runs.items():
            if len(names) > 1:
                more = ", ..." if len(names) > _SHOWN_NAMES else ""
                subject.findings.add(
                    "partition-repeated",
                    f"{len(names)} EPContext nodes run one graph, {partition!r}: "
                    f"{', '.join(map(repr, names[:_SHOWN_NAMES]))}{more}.",
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
        tables = types_of(subject.proto.graph)
        for record in subject.records:
            declared = tables.at(record.path)
            for name in dict.fromkeys(record.outputs):
                if name and not _is_known(declared.proto(name)):
                    subject.findings.add(
                        "type-undeclared",
                        f"EPContext node {record.name!r} makes {name!r}, whose type the model does not declare; "
                        "onnxruntime refuses such a model.",
                        node=record.name,
                        hint="Whatever changed the model dropped its value_info; compile the source model again.",
                    )
            for name in dict.fromkeys((*record.inputs, *record.outputs)):
                wrong = _wrong(declared.proto(name))
                if name and wrong:
                    subject.findings.add(
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


_SHOWN_RANGES = 5
_MOST_LOOKED_AT = 100


def find_payloads(subject: Subject, scratch: Scratch) -> None:
    """Find the payloads of all primaries and check every byte; those that cannot be had are left out.

    Args:
        subject: the model; gets a reader, which keeps what is found, reports and what is sound.
        scratch: takes the files that EPs want of payloads.
    """
    config, reports = subject.config, subject.reports
    subject.reader = PayloadReader(
        {record.name: record for record in subject.records},
        folder=subject.folder,
        manifest=subject.manifest,
        scratch=scratch,
        source_tensor=source_tensors(subject.records, subject.folder, config, subject.manifest),
        reading=Reading(verification=Verification.FULL, data_reader=config.data_reader),
    )
    carriers: dict[tuple[str, bool], str] = {}
    for record in subject.records:
        if not record.main_context or not _is_sought(record, subject):
            continue
        carrier = carriers.setdefault(payload_key(record), record.name)
        if carrier == record.name:
            _find(record, subject)
        elif carrier in reports:
            reports[record.name] = reports[carrier]
            subject.sound.update({record.name} if carrier in subject.sound else ())


def _is_sought(record: ContextNodeRecord, subject: Subject) -> bool:
    """Note what a load refuses of a node before it looks for the payload; return whether it is nothing."""
    collected = partial(subject.findings.collected, errors=(InvalidGraph, InvalidArgument))
    with collected("payload-missing"):
        refuse_absent(record)
        with collected("name-unsafe"):
            name = record.file_name
            if name is not None and subject.config.data_reader is None:
                checked_name(name, f"{record.name!r} names {BINARY}", record.name)
            with collected("share-group-pending"):
                subject.reader.refuse_pending(record)
                with collected("file-not-sought"):
                    if subject.folder is None:
                        refuse_folderless(record, subject.config)
                    return True
    return False


def _find(record: ContextNodeRecord, subject: Subject) -> None:
    """Find and check the payload of a node."""
    findings = subject.findings
    content = _content(record, subject)
    if content is None:
        return
    name, embedded = payload_key(record)
    entry = subject.reader.entry(record)
    if entry is None and subject.manifest is not None:
        findings.add(
            "manifest-unlisted",
            f"the manifest says nothing about the payload {name!r}, so it was checked against no digests.",
            node=record.name,
            hint="The model was put together from others, or changed; compile it again to have all checked.",
        )
    size, digests = content.nbytes if isinstance(content, memoryview) else content.size, False
    try:
        payload = subject.reader.check(record, content)
    except InvalidGraph as error:
        _note_damage(record, content, error, subject)
    else:
        size, digests = payload.nbytes, payload.verified
        subject.sound.add(record.name)
        if isinstance(content, MappedFile) and payload.mapped is not content:
            findings.add(
                "publication-unfinished",
                f"the context binary {name!r} is another one, and the right one is in what an unfinished "
                "compile left in the folder; loads take it from there.",
                node=record.name,
                hint="Compile into the folder again, which finishes or takes back what was left.",
            )
    subject.reports[record.name] = PayloadReport(name=name, embedded=embedded, size=size, digests=digests)


def _content(record: ContextNodeRecord, subject: Subject) -> Content | None:
    """Return what lies where a node says; None if nothing can be had."""
    findings = subject.findings
    try:
        content = subject.reader.find(record)
    except (InvalidGraph, Fail) as error:
        if isinstance(error, Fail) and subject.config.data_reader is not None:
            raise
        missing = isinstance(error.__cause__, FileNotFoundError)
        findings.add_error("file-missing" if missing else "file-refused", error, node=record.name)
        return None
    with findings.collected("file-empty"):
        refuse_empty(record, content)
        return content
    return None


def _note_damage(record: ContextNodeRecord, content: Content, error: InvalidGraph, subject: Subject) -> None:
    """Note in what a payload differs from the manifest: all ranges, where a load ends with the first."""
    view = content if isinstance(content, memoryview) else content.view
    findings, entry = subject.findings, subject.reader.entry(record)
    if entry is None or len(view) != entry.size:
        findings.add_error("digest-size", error)
        return
    forget = None if isinstance(content, memoryview) else content.forget
    wrong = list(damaged(view, entry.segments, forget))
    ranges = [
        f"{s.offset:,} to {s.offset + s.length:,}{' (a weight)' if s.is_weight else ''}"
        for s in wrong[:_SHOWN_RANGES]
    ]
    more = f", and {len(wrong) - _SHOWN_RANGES:,} more" if len(wrong) > _SHOWN_RANGES else ""
    findings.add(
        "digest-mismatch",
        f"{len(wrong):,} of {len(entry.segments):,} segments of the payload {entry.name!r} have another digest "
        f"than the model was written with: bytes {', '.join(ranges)}{more}.",
        node=record.name,
        hint=error.hint or "",
    )


def check_folder(subject: Subject) -> None:
    """Note binaries that a compile of this model may have left and that nobody needs."""
    if subject.path is None or not subject.records:
        return
    folder = subject.path.parent
    with suppress(OSError):
        prefix = f"{subject.path.stem.removesuffix('_ctx')}_"
        binaries = [
            path
            for path in folder.iterdir()
            if path.suffix == ".bin" and path.name.startswith(prefix) and path.is_file()
        ]
        for path in sorted(binaries)[:_MOST_LOOKED_AT]:
            if next(models_naming(folder, path.name), None) is None:
                subject.findings.add(
                    "file-unnamed",
                    f"{path.name!r} lies beside the model, and no model of the folder names it.",
                    hint="It may be left from an earlier compile; nothing here needs it.",
                )


def check_manifest(subject: Subject) -> Manifest | None:
    """Return the manifest if it can be used, and note what is wrong with it."""
    findings = subject.findings
    text = metadata_value(subject.proto, MANIFEST)
    if text is None:
        if subject.records:
            findings.add(
                "manifest-missing",
                f"the model has no {MANIFEST} metadata, so its payloads were checked against no digests.",
                hint="Models that epctx did not write have none.",
            )
        return None
    manifest: Manifest | None = None
    with findings.collected("manifest-damaged"):
        manifest = read_manifest(subject.proto, subject.config.input_budget.manifest_entries)
        if manifest is None:
            version = f"{parse_json(text)['version']!r:.40}"
            findings.add(
                "manifest-unknown",
                f"the model's {MANIFEST} metadata has the version {version}, and this epctx reads {VERSION}: "
                "its payloads were checked against no digests.",
                hint="Upgrade epctx-core.",
            )
    entries = [] if manifest is None else zip(parse_json(text)["payloads"], manifest.payloads, strict=True)
    for said, entry in entries:
        if said.get("root") != entry.root:
            findings.add(
                "manifest-root",
                f"the manifest says the root digest {said.get('root')!r:.80} for {entry.name!r}, and its segments give "
                f"{entry.root}.",
                hint="Fetch the model again, or compile again.",
            )
    return manifest


def check_dependencies(subject: Subject) -> None:
    """Note if what the model says that it needs besides its file is false; a model need not say it.

    Whether the payloads of others left weights in their source is not known here, so that is not denied.
    """
    stated = stated_dependencies(subject.proto)
    if stated is None or not subject.records:
        return
    needed = {
        SOURCE_MODEL: subject.manifest is not None and bool(subject.manifest.source_weights),
        EXTERNAL_WEIGHTS: subject.names_weights,
        CONTEXT_BINARY: any(r.main_context and not r.embed_mode for r in subject.records),
    }
    for word, is_needed in needed.items():
        if is_needed != (word in stated) and (is_needed or word != SOURCE_MODEL):
            subject.findings.add(
                "dependencies-wrong",
                f"the model's {DEPENDENCIES_KEY} metadata is {';'.join(stated)!r:.80}, and {word} is "
                f"{'needed' if is_needed else 'not needed'}.",
                hint="A tool moved weights or payloads and left the metadata as it was: compile it again.",
            )


def check_unused(subject: Subject) -> None:
    """Note payloads that the manifest knows and no node has, unless a node has lost its own."""
    manifest, findings = subject.manifest, subject.findings
    if manifest is None or findings.codes & {"payload-missing", "primary-missing"}:
        return
    carried = set()
    for record in subject.records:
        if record.main_context:
            with suppress(InvalidGraph):
                carried.add(payload_key(record))
    for entry in manifest.payloads:
        if (entry.name, entry.embedded) not in carried:
            findings.add(
                "manifest-unused",
                f"the manifest describes the payload {entry.name!r}, which no node of the model carries.",
                hint="The model lost a node, or a node was renamed; compile it again.",
            )
