"""`verify_model`: the checks in their order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidGraph, InvalidProtobuf, errors_typed
from epctx_core.options import SessionOptions
from epctx_core.registry import Registry, default_registry
from epctx_core.sessions.loading import source_weights
from epctx_core.verify.findings import Findings, PayloadReport, VerifyReport
from epctx_core.verify.folder import check_folder
from epctx_core.verify.manifest import check_dependencies, check_kernel_types, check_manifest
from epctx_core.verify.nodes import check_references, read_nodes
from epctx_core.verify.payloads import find_payloads
from epctx_core.verify.providers import ask_providers
from epctx_core.verify.rehearsal import rehearse_load
from epctx_core.verify.subject import Subject, read_subject
from epctx_core.verify.types import check_types

if TYPE_CHECKING:
    from epctx_core.verify.payloads import FoundPayload

ATTEMPTS = 5
"""How often a verification starts again because the model was being replaced meanwhile, as a load does."""


@errors_typed("verifying the model")
def verify_model(
    path_or_bytes: str | os.PathLike[str] | bytes,
    sess_options: SessionOptions | None = None,
    *,
    registry: Registry = default_registry,
) -> VerifyReport:
    """Check a context model and its payloads as far as no device is needed, and list all that is found.

    The model is read as a load would read it: the ONNX checker, the EPContext operator's rules, the files
    that nodes name. Every byte of every payload is checked against the manifest, in bounded memory. The EPs that
    would load the nodes judge what they once wrote, and look into their payloads. Where nothing is wrong so far,
    EPs that need no device for it load their nodes, and engines prepare the operators left over. Nothing is
    written or run.

    Args:
        path_or_bytes: the model.
        sess_options: as for a load: EP options, where files lie. None for the defaults.
        registry: where EPs are looked up.

    Raises:
        NoSuchFile: there is no such file.
        InvalidArgument: neither a path nor bytes, a folder, or a wrong option.

    Example:
        >>> report = verify_model("model_ctx.onnx")
        >>> report.ok, [finding.code for finding in report.findings]
        (True, [])
    """
    session = sess_options or SessionOptions()
    for _ in range(ATTEMPTS - 1):
        before = _state(path_or_bytes)
        report = _attempt(path_or_bytes, session, registry)
        if report.ok or _state(path_or_bytes) == before:
            return report
    return _attempt(path_or_bytes, session, registry)


def _state(path_or_bytes: str | os.PathLike[str] | bytes) -> tuple[int, ...] | None:
    """Return what changes with a model's file: where it was replaced meanwhile, its binary was, too."""
    if isinstance(path_or_bytes, bytes):
        return None
    try:
        status = Path(path_or_bytes).stat()
    except (OSError, ValueError, TypeError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _attempt(
    path_or_bytes: str | os.PathLike[str] | bytes, session: SessionOptions, registry: Registry
) -> VerifyReport:
    findings = Findings()
    path, subject = read_subject(path_or_bytes, session, registry, findings)
    payloads = _verify(subject, findings) if subject is not None else []
    return VerifyReport(
        path=path,
        findings=findings.sorted(),
        nodes=len(subject.records) if subject is not None else 0,
        payloads=payloads,
    )


def _verify(subject: Subject, findings: Findings) -> list[PayloadReport]:
    subject.records = read_nodes(subject, findings)
    if not subject.records:
        findings.add(
            "no-context-nodes", "the model has no EPContext nodes that can be read: nothing is compiled."
        )
    whole = check_references(subject.records, findings)
    check_types(subject, findings)
    subject.manifest = check_manifest(subject, findings, whole=whole)
    check_kernel_types(subject, findings)
    check_dependencies(subject, findings)
    found = find_payloads(subject, findings)
    looked: dict[str, str] = {}
    if _has_source(subject, findings):
        looked = ask_providers(subject, found, findings)
        looked |= rehearse_load(subject, found, findings)
    check_folder(subject, findings)
    if findings.has_errors:
        return _reports(found, looked)
    judged = {found[node] for node in looked}
    for payload in dict.fromkeys(found.values()):
        if payload.digest is None and payload not in judged:
            findings.add(
                "not-checked",
                f"no byte of the payload {payload.name!r} was judged: nothing says its digest, and no EP here looked "
                "into it.",
                node=payload.node,
                hint="Verify it where the EP that made it is installed.",
            )
    return _reports(found, looked)


def _has_source(subject: Subject, findings: Findings) -> bool:
    """Whether the weights that payloads left in the source model can be had; each is checked against its digest."""
    if subject.manifest is None or not subject.manifest.source_weights:
        return True
    source = source_weights(subject.records, subject.folder, subject.config, subject.manifest)
    try:
        for name in subject.manifest.source_weights:
            source.tensor(name)
    except (InvalidGraph, InvalidProtobuf) as error:
        findings.add_error("source-refused", error)
        return False
    return True


def _reports(found: Mapping[str, FoundPayload], looked: Mapping[str, str]) -> list[PayloadReport]:
    readers = {payload: looked[node] for node, payload in found.items() if node in looked}
    return [
        PayloadReport(
            name=payload.name,
            embedded=payload.embedded,
            size=len(payload.view),
            digests=payload.digest is not None,
            looked_into_by=readers.get(payload),
        )
        for payload in dict.fromkeys(found.values())
    ]
