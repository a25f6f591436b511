"""Payloads: found and checked by the reader that a load has, which goes on with the next one after each fault.

And binaries beside a model that no model names.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from epctx_core.context.manifest import damaged
from epctx_core.context.named_files import models_naming
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
