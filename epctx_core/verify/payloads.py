"""Payloads and the manifest, and whether they agree with each other and with the nodes.

Payloads are found and checked by the reader that a load has, which goes on with the next one after each fault. Also binaries
beside a model that no model names.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from epctx_core.context.manifest import VERSION, Manifest, damaged, read_manifest
from epctx_core.context.metadata import MANIFEST, metadata_value, parse_json
from epctx_core.context.named_files import (
    CONTEXT_BINARY,
    DEPENDENCIES_KEY,
    EXTERNAL_WEIGHTS,
    SOURCE_MODEL,
    models_naming,
    stated_dependencies,
)
from epctx_core.context.paths import checked_name
from epctx_core.context.payload_reader import (
    BINARY,
    PayloadReader,
    Reading,
    payload_key,
    refuse_absent,
    refuse_empty,
)
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph
from epctx_core.graph.mapping import MappedFile
from epctx_core.options import Verification
from epctx_core.sessions.loading import refuse_folderless, source_tensors
from epctx_core.verify.findings import PayloadReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epctx_core.context.manifest import PayloadEntry
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.payload_reader import Content
    from epctx_core.context.scratch import Scratch
    from epctx_core.verify.findings import Findings
    from epctx_core.verify.subject import Subject


_SHOWN_RANGES = 5
_MOST_LOOKED_AT = 100


def find_payloads(subject: Subject, scratch: Scratch) -> None:
    """Find the payloads of all primaries and check every byte; those that cannot be had are left out.

    Args:
        subject: the model; gets a reader, which keeps what is found, reports and what is sound.
        scratch: takes the files that EPs want of payloads.
    """
    config, reports = subject.config, subject.reports
    subject.reader = reader = PayloadReader(
        {record.name: record for record in subject.records},
        folder=subject.folder,
        manifest=subject.manifest,
        scratch=scratch,
        source_tensor=source_tensors(subject.records, subject.folder, config, subject.manifest),
        reading=Reading(verification=Verification.FULL, data_reader=config.data_reader),
    )
    stages = _stages(subject, reader)
    carriers: dict[tuple[str, bool], str] = {}
    for record in subject.records:
        if not record.main_context or not _passes(record, stages, subject.findings):
            continue
        carrier = carriers.setdefault(payload_key(record), record.name)
        if carrier == record.name:
            _find(record, subject, reader)
        elif carrier in reports:
            reports[record.name] = reports[carrier]
            subject.sound.update({record.name} if carrier in subject.sound else ())


def _stages(subject: Subject, reader: PayloadReader) -> Mapping[str, Callable[[ContextNodeRecord], object]]:
    """Return what a load refuses of a node before it looks for the payload, by codes."""

    def refuse_unsafe(record: ContextNodeRecord) -> None:
        name = record.file_name
        if name is not None and subject.config.data_reader is None:
            checked_name(name, f"{record.name!r} names {BINARY}", record.name)

    def refuse_unsought(record: ContextNodeRecord) -> None:
        if subject.folder is None:
            refuse_folderless(record, subject.config)

    return {
        "payload-missing": refuse_absent,
        "name-unsafe": refuse_unsafe,
        "share-group-pending": reader.refuse_pending,
        "file-not-sought": refuse_unsought,
    }


def _passes(
    record: ContextNodeRecord,
    stages: Mapping[str, Callable[[ContextNodeRecord], object]],
    findings: Findings,
) -> bool:
    for code, refuse in stages.items():
        with findings.collected(code, (InvalidGraph, InvalidArgument)):
            refuse(record)
            continue
        return False
    return True


def _find(record: ContextNodeRecord, subject: Subject, reader: PayloadReader) -> None:
    """Find and check the payload of a node."""
    findings = subject.findings
    content = _content(record, subject, reader)
    if content is None:
        return
    name, embedded = payload_key(record)
    entry = reader.entry(record)
    if entry is None and subject.manifest is not None:
        findings.add(
            "manifest-unlisted",
            f"the manifest says nothing about the payload {name!r}, so it was checked against no digests.",
            node=record.name,
            hint="The model was put together from others, or changed; compile it again to have all checked.",
        )
    size, digests = content.nbytes if isinstance(content, memoryview) else content.size, False
    try:
        payload = reader.check(record, content)
    except InvalidGraph as error:
        _note_damage(record, entry, content, error, findings)
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


def _content(record: ContextNodeRecord, subject: Subject, reader: PayloadReader) -> Content | None:
    """Return what lies where a node says; None if nothing can be had."""
    findings = subject.findings
    try:
        content = reader.find(record)
    except InvalidGraph as error:
        missing = isinstance(error.__cause__, FileNotFoundError)
        findings.add_error("file-missing" if missing else "file-refused", error)
        return None
    except Fail as error:
        if subject.config.data_reader is not None:
            raise
        findings.add_error("file-refused", error, node=record.name)
        return None
    with findings.collected("file-empty"):
        refuse_empty(record, content)
        return content
    return None


def _note_damage(
    record: ContextNodeRecord,
    entry: PayloadEntry | None,
    content: Content,
    error: InvalidGraph,
    findings: Findings,
) -> None:
    """Note in what a payload differs from the manifest: all ranges, where a load ends with the first."""
    view = content if isinstance(content, memoryview) else content.view
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
