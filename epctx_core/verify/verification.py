"""`verify_model`: the checks in their order."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.kernel_types import read_kernel_types
from epctx_core.errors import errors_typed
from epctx_core.options import SessionOptions
from epctx_core.registry import Registry, default_registry
from epctx_core.sessions.providers import ProviderSession
from epctx_core.verify.findings import Findings, PayloadReport, VerifyReport
from epctx_core.verify.nodes import check_references, check_types, read_nodes
from epctx_core.verify.payloads import (
    check_dependencies,
    check_folder,
    check_manifest,
    check_unused,
    find_payloads,
)
from epctx_core.verify.providers import ask_providers, rehearse_load, route_nodes
from epctx_core.verify.subject import Subject, read_subject

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    subject = read_subject(path_or_bytes, session, registry, findings)
    payloads: list[PayloadReport] = []
    if subject is not None:
        with closing(ProviderSession(session, registry)) as providers:
            payloads = _verify(subject, providers)
    return VerifyReport(
        path=None if isinstance(path_or_bytes, bytes) else Path(path_or_bytes),
        findings=findings.sorted(),
        nodes=len(subject.records) if subject is not None else 0,
        payloads=payloads,
    )


def _verify(subject: Subject, providers: ProviderSession) -> list[PayloadReport]:
    findings = subject.findings
    subject.records = read_nodes(subject)
    if not subject.records:
        findings.add(
            "no-context-nodes", "the model has no EPContext nodes that can be read: nothing is compiled."
        )
    check_types(subject)
    subject.manifest = check_manifest(subject)
    with findings.collected("kernel-types-damaged"):
        read_kernel_types(subject.proto)
    check_dependencies(subject)
    find_payloads(subject, providers.scratch)
    routing = route_nodes(subject)
    check_references(subject, routing)
    check_unused(subject)
    looked: dict[str, str] = {}
    if _has_source(subject):
        if routing is not None:
            looked = ask_providers(subject, routing, providers)
        looked |= rehearse_load(subject, providers)
    check_folder(subject)
    return _reports(subject, looked)


def _has_source(subject: Subject) -> bool:
    """Whether the weights that payloads left in the source model can be had; each is checked against its digest."""
    with subject.findings.collected("source-refused"):
        for name in subject.manifest.source_weights if subject.manifest is not None else ():
            subject.reader.source_tensor(name)
        return True
    return False


def _reports(subject: Subject, looked: Mapping[str, str]) -> list[PayloadReport]:
    """Return what came of each payload; where nothing is wrong, note those of which no byte was judged.

    Args:
        subject: the model.
        looked: a primary's name to who looked into its payload.
    """
    reports = subject.reports
    readers = {reports[name]: reader for name, reader in looked.items()}
    carriers = {report: name for name, report in reversed(list(reports.items()))}
    every = list(dict.fromkeys(reports.values()))
    for report in every if not subject.findings.has_errors else ():
        if not report.digests and report not in readers:
            subject.findings.add(
                "not-checked",
                f"no byte of the payload {report.name!r} was judged: nothing says its digest, and no EP here looked "
                "into it.",
                node=carriers[report],
                hint="Verify it where the EP that made it is installed.",
            )
    return [replace(report, looked_into_by=readers.get(report)) for report in every]
