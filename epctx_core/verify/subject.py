"""Model under verification, read as a load reads it but going on after each fault; its
nodes, payloads and metadata.

EPContext nodes are checked against their operator, and their payloads against the
manifest and the nodes. Payloads are found and checked by the reader that a load has,
which goes on with the next one after each fault.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import onnx
from onnx import ModelProto

from epctx_core.context.dependencies import (
    CONTEXT_BINARY,
    DEPENDENCIES_KEY,
    EXTERNAL_WEIGHTS,
    SOURCE_MODEL,
    list_external_locations,
    read_dependencies,
)
from epctx_core.context.digests import IN_PLACE, ReplacedBinaryError
from epctx_core.context.manifest import (
    MANIFEST,
    NO_MANIFEST,
    SEALED,
    VERSION,
    Manifest,
    find_manifest,
)
from epctx_core.context.metadata import get_metadata, parse_json
from epctx_core.context.model_formats import decode_model, find_format
from epctx_core.context.node import (
    ContextNodeRecord,
    find_wrong_types,
    read_context_nodes,
)
from epctx_core.context.payload_reader import (
    PayloadReader,
    Reading,
    check_primaries,
    get_payload_key,
)
from epctx_core.context.receipts import is_noted, make_reading_receipt, note
from epctx_core.engines.cpu_engine import make_engine
from epctx_core.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NotImplementedByProvider,
    PackageMissing,
)
from epctx_core.file_names import STAGING_PREFIX
from epctx_core.graph.model_io import (
    describe_path,
    detach_model,
    read_model,
    require_text_names,
)
from epctx_core.graph.type_table import types_of
from epctx_core.graph.weights import ModelContent
from epctx_core.options import SessionConfig, Verification
from epctx_core.plugin import EnginePolicy
from epctx_core.registry.entries import blame_entry
from epctx_core.sessions.isolation import ISOLATION, import_isolation
from epctx_core.sessions.load import check_has_folder, find_folder, make_tensor_source
from epctx_core.sessions.providers import collect_kept_functions
from epctx_core.sessions.source import OpenModel, open_proto, weights_opener
from epctx_core.verify.findings import Findings, PayloadReport

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from epctx_core.context.manifest import PayloadKey
    from epctx_core.context.paths import ModelFolder
    from epctx_core.graph.functions import FunctionId
    from epctx_core.graph.mapping import OpenedFiles
    from epctx_core.registry.discovery import EntryPoint
    from epctx_core.sessions.work import Work

_FETCH = "Fetch the model again, or compile again."
READING_SECONDS = 60.0
"""Seconds in which a process reads any small model."""
BYTES_PER_SECOND = 1 << 20
"""Bytes of a model for which it gets another second."""
READING_BYTES = 2 << 30
"""Bytes of memory for data that it may take beyond those in proportion to the model."""


@dataclass(kw_only=True)
class Subject:
    """A model under verification.

    Attributes:
        proto: the model, functions inlined if possible.
        opened: what a load would work with; None if a load would refuse the model.
        folder: where its files lie, None for a model from bytes without one.
        records: its EPContext nodes, as far as they can be decoded.
        manifest: what it says about its payloads, if that can be read.
        names_weights: whether tensors of it lie in files.
        findings: what was found in it so far.
        files: its own file, and those that it names.
        digest: SHA-256 (hex) of its bytes.
        reader: the payload reader of a load, once payloads were looked for.
        reports: the payloads that a load takes, by the names of the primaries that
            carry or name them.
        refused: those with other bytes than the model was written with, by
            `get_payload_key`.
    """

    proto: ModelProto
    opened: OpenModel | None
    path: Path | None
    folder: ModelFolder | None
    work: Work
    config: SessionConfig
    findings: Findings
    files: OpenedFiles
    digest: str
    records: Sequence[ContextNodeRecord] = ()
    manifest: Manifest | None = None
    names_weights: bool = False
    reader: PayloadReader = field(init=False)
    reports: dict[str, PayloadReport] = field(default_factory=dict)
    refused: dict[PayloadKey, PayloadReport] = field(default_factory=dict)


def read_subject(work: Work, findings: Findings, files: OpenedFiles) -> Subject | None:
    """Read the model itself as a load does, and note what a load would refuse; None if
    it is not an ONNX model.

    Args:
        work: the model as the host gave it, and its options.
        findings: gets what is found.
        files: gets the files that are opened.

    Raises:
        NoSuchFile, InvalidArgument: there is no such file, or an argument or option is
            wrong.
    """
    config = work.config
    with (
        findings.collect("budget-exceeded", (InvalidGraph,)),
        findings.collect("model-unreadable", (InvalidProtobuf,), hint=_FETCH),
    ):
        data, path = read_model(work.source, files)
        other = find_format(data, path, config.input_budget, config.model_format)
        proto = decode_model(data, path, config.input_budget, other)
        subject = Subject(
            proto=proto,
            opened=None,
            path=path,
            folder=find_folder(path, config),
            work=work,
            config=config,
            findings=findings,
            files=files,
            digest=hashlib.sha256(data).hexdigest(),
            names_weights=any(True for _ in list_external_locations(proto)),
        )
        _open(subject, data, other)
        subject.records = read_nodes(subject)
        subject.manifest = check_manifest(subject, data)
        return subject
    return None


def _require_survival(subject: Subject, data: bytes) -> None:
    """Have a process of its own read a model that this machine meets for the first
    time, where epctx-isolation is installed: native code may not survive it.

    Raises:
        InvalidGraph: the process did not survive.
        PackageMissing: the isolation that the host named is not installed.
        PluginError: the isolation failed.
    """
    config = subject.config
    try:
        entry, isolation = import_isolation(config, needed_by="verify")
    except PackageMissing:
        if config.isolated_by == SessionConfig.isolated_by.default:
            return
        raise
    engine = make_engine(EnginePolicy(**config.engine_settings))
    limits = {SessionConfig.isolation_seconds.key, SessionConfig.isolation_bytes.key}
    settings = {
        key: config.entries[key] for key in sorted(config.entries.keys() - limits)
    }
    receipt = make_reading_receipt(
        subject.digest,
        f"onnx {onnx.__version__}, {engine.name}, {settings}, "
        f"{config.custom_ops_libraries}",
    )
    if is_noted(receipt):
        return

    # A receipt is for the bytes of the model; its weights are not looked at.
    with blame_entry(entry, ISOLATION):
        is_loaded, end = isolation.try_reading(
            data if subject.path is None else os.path.abspath(subject.path),  # noqa: PTH100 - links stay
            subject.work.session,
            seconds=min(
                config.isolation_seconds, READING_SECONDS + len(data) / BYTES_PER_SECOND
            ),
            max_bytes=config.isolation_bytes or READING_BYTES + 16 * len(data),
        )
    if end:
        where = describe_path(subject.path)
        raise InvalidGraph(
            f"a process that only read {where} did not survive it: {end}.",
            path=subject.path,
            hint=(
                "Do not load it. Native code of onnx or of the engine may be at fault; "
                "the limits are ep.isolate_timeout_seconds and ep.isolate_max_bytes."
            ),
        )

    if is_loaded:
        note([receipt])


def _open(subject: Subject, data: bytes, other: EntryPoint | None) -> None:
    """Open a decoded model as a load does, and note why a load would refuse it; `other`
    is its format if that is not ONNX.
    """
    config = subject.config
    findings = subject.findings

    def kept() -> Collection[FunctionId]:
        with findings.collect_of_plugin("plugin-broken"):
            return collect_kept_functions(subject.work.choose(None))
        return ()

    entries = {
        **config.entries,
        SessionConfig.verification.key: Verification.FULL.value,
    }
    full = replace(config, entries=entries)
    try:
        _require_survival(subject, data)
        with require_text_names():
            opener = weights_opener(
                subject.proto, subject.path, full, IN_PLACE, subject.files
            )
            content = ModelContent(
                view=memoryview(data), structure=data, path=subject.path
            )
            detach = partial(detach_model, subject.proto, content, opener)
            subject.opened = open_proto(
                subject.proto, detach, config, kept, changed=other is not None
            )
        subject.proto = subject.opened.source.proto
    except (InvalidGraph, InvalidArgument) as error:
        # What was begun has moved weights out of it.
        subject.proto = decode_model(data, subject.path, config.input_budget, other)
        if isinstance(error, InvalidGraph):
            findings.add_error("model-invalid", error, hint=_FETCH)
        elif (
            subject.names_weights
            and subject.path is None
            and not config.external_initializers_folder
        ):
            findings.add_error("file-not-sought", error)
        else:
            raise


def read_nodes(subject: Subject) -> list[ContextNodeRecord]:
    """Decode all EPContext nodes, each as far as a load would read it, and note what a
    load refuses.
    """
    findings = subject.findings
    opened = subject.opened
    records = read_context_nodes(
        subject.proto.graph, partial(findings.add_error, "node-refused")
    )
    if opened is not None:
        for record in records:
            with findings.collect("subgraph-not-run", (NotImplementedByProvider,)):
                opened.graph_of(record)
    return records


def check_references(subject: Subject) -> None:
    """Check that a node of each EP carries a payload, unless nodes were left out."""
    owners = {r.name: ep for ep, records in subject.work.nodes.items() for r in records}
    by_owner: dict[str, list[ContextNodeRecord]] = {}
    for record in (
        subject.records if "node-refused" not in subject.findings.codes else ()
    ):
        by_owner.setdefault(owners.get(record.name, record.source), []).append(record)
    for owner, same in by_owner.items():
        with subject.findings.collect("primary-missing"):
            if owner:
                check_primaries(same, owner)


def check_types(subject: Subject) -> None:
    """Check the types of the inputs and outputs of each node."""
    with subject.findings.collect("model-invalid"), require_text_names():
        tables = types_of(subject.proto.graph)
        for record in subject.records:
            declared = tables.find_subgraph(record.path)
            for code, error in find_wrong_types(record, declared):
                subject.findings.add_error(code, error)


def find_payloads(subject: Subject) -> None:
    """Find the payloads of all primaries and check every byte; those that a load
    refuses are noted and left out.

    Args:
        subject: the model; gets a reader, which keeps the payloads, and reports.
    """
    config = subject.config
    findings = subject.findings
    subject.reader = reader = PayloadReader(
        {record.name: record for record in subject.records},
        folder=subject.folder,
        manifest=subject.manifest,
        scratch=subject.work.providers.scratch,
        source_tensor=make_tensor_source(
            subject.records, subject.folder, config, subject.manifest
        ),
        reading=Reading(
            verification=Verification.FULL,
            data_reader=config.data_reader,
            opened=subject.files,
        ),
    )

    # An exception of the host's callback is the host's.
    refused = (
        (InvalidGraph,) if config.data_reader is not None else (InvalidGraph, Fail)
    )
    tried: set[PayloadKey] = set()
    for record in subject.records:
        if not record.main_context:
            continue
        with (
            findings.collect("file-not-sought", (InvalidArgument,), node=record.name),
            findings.collect("payload-refused", refused, node=record.name),
            findings.collect(
                "digest-mismatch", (ReplacedBinaryError,), node=record.name
            ),
            _report_refused(record, subject),
        ):
            if subject.folder is None:
                check_has_folder(record, config)
            key = get_payload_key(record)
            if key not in tried:
                tried.add(key)
                _read_payload(record, subject)
            if key in reader.loaded:
                payload = reader.loaded[key]
                subject.reports[record.name] = PayloadReport(
                    name=key[0],
                    embedded=key[1],
                    size=payload.nbytes,
                    digests=payload.verified,
                )


@contextmanager
def _report_refused(record: ContextNodeRecord, subject: Subject) -> Iterator[None]:
    """Report a payload that is another one than the model was written with."""
    try:
        yield
    except ReplacedBinaryError:
        name, embedded = key = get_payload_key(record)
        status = (
            None
            if embedded or not subject.folder
            else subject.folder.status(name, what="the payload")
        )
        size = status.st_size if status is not None else len(record.cache or b"")
        subject.refused[key] = PayloadReport(
            name=name, embedded=embedded, size=size, digests=False
        )
        raise


def _read_payload(record: ContextNodeRecord, subject: Subject) -> None:
    """Read the payload of a node as a load does, and note what a load ignores."""
    payload = subject.reader.read(record)
    if subject.manifest is not None and subject.reader.find_entry(record) is None:
        subject.findings.add(
            "manifest-unlisted",
            f"the manifest says nothing about the payload {payload.name!r}, so it was "
            "checked against no digests.",
            node=record.name,
            hint=(
                "The model was put together from others, or changed; compile it again "
                "to have all checked."
            ),
        )

    file = payload.mapped
    folder = subject.folder
    if (
        file
        and folder
        and os.path.relpath(file.path, folder.folder).startswith(STAGING_PREFIX)
    ):
        subject.findings.add(
            "publication-unfinished",
            f"the context binary {payload.name!r} is another one, and the right one "
            "is in what an unfinished compile left in the folder; loads take it from "
            "there.",
            node=record.name,
            hint=(
                "Compile into the folder again, which finishes or takes back what was "
                "left."
            ),
        )


def check_manifest(subject: Subject, data: bytes) -> Manifest | None:
    """Return the manifest if it can be used, and note what is wrong with it, or with
    the model that it was sealed for.
    """
    findings = subject.findings
    proto = subject.proto
    text = get_metadata(proto, MANIFEST) or get_metadata(proto, SEALED)
    with (
        findings.collect("manifest-damaged"),
        findings.collect("seal-broken", (ReplacedBinaryError,)),
    ):
        limit = subject.config.input_budget.manifest_entries
        manifest = find_manifest(proto, subject.path, lambda: subject.digest, limit)
        if manifest is not None:
            seal = manifest.sealed
            # Nothing but the manifest may have been added.
            if seal is not None and not seal.is_of(data, text):
                findings.add(
                    "seal-broken",
                    (
                        "the model was changed after it was sealed: its bytes have "
                        "another digest."
                    ),
                    hint=(
                        "Fetch it again. If the change is right, `epctx seal --force` "
                        "seals it anew."
                    ),
                )
        elif text is not None:
            version = f"{parse_json(text)['version']!r:.40}"
            findings.add(
                "manifest-unknown",
                f"the model's manifest has the version {version}, and this epctx "
                f"reads {VERSION}: its payloads were checked against no digests.",
                hint="Upgrade epctx-core.",
            )
        elif subject.records:
            findings.add(
                "manifest-missing",
                f"the model has no {MANIFEST} metadata, so its payloads were checked "
                "against no digests.",
                hint=(
                    "Models that epctx did not write have none; `epctx seal` adds "
                    "digests."
                ),
            )
        return manifest

    return None


def check_dependencies(subject: Subject) -> None:
    """Check the stated dependencies of the model; a model need not state any.

    Whether the payloads of others left weights in their source is not known here, so
    that is not denied.
    """
    stated = read_dependencies(subject.proto)
    if stated is None or not subject.records:
        return
    needed = {
        SOURCE_MODEL: bool((subject.manifest or NO_MANIFEST).source_weights),
        EXTERNAL_WEIGHTS: subject.names_weights,
        CONTEXT_BINARY: any(
            r.main_context and not r.embed_mode for r in subject.records
        ),
    }
    for word, is_needed in needed.items():
        if is_needed != (word in stated) and (is_needed or word != SOURCE_MODEL):
            subject.findings.add(
                "dependencies-wrong",
                f"the model's {DEPENDENCIES_KEY} metadata is "
                f"{';'.join(stated)!r:.80}, and {word} is "
                f"{'needed' if is_needed else 'not needed'}.",
                hint=(
                    "A tool moved weights or payloads and left the metadata as it "
                    "was: compile it again."
                ),
            )
