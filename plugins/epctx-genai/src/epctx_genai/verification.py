"""`verify_folder`: whether a folder is whole, and its stages fit each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import epctx_files

from epctx_core import (
    SessionOptions,
    default_registry,
    inspect_model,
    verify_model,
)
from epctx_core.errors import EpctxError, convert_errors
from epctx_core.plugin import Severity
from epctx_genai.configuration import (
    GenaiFolder,
    PathInput,
    Stage,
    read_folder,
    refuse_dlc,
)
from epctx_genai.libraries import name_in_epctx
from epctx_genai.replacement import DIGEST

if TYPE_CHECKING:
    from epctx_core import ModelInfo


@dataclass(frozen=True, kw_only=True)
class GenaiFinding:
    """Fault of a folder.

    Attributes:
        subject: the stage or the file.
        code: `file-missing`, `file-added`, `file-older`, `file-newer` and
            `file-foreign` by the digest of the folder; `payload-type`,
            `input-missing`, `output-missing`, `ep-missing` and `options-wrong` by the
            configuration; of a context model a code of `epctx verify`.
        message: what is wrong.
    """

    subject: str
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class GenaiReport:
    """Result of `verify_folder`.

    Attributes:
        sealed: whether the folder has a digest, which ties its files together.
        findings: all faults; none in a right folder.
    """

    sealed: bool
    findings: tuple[GenaiFinding, ...]

    @property
    def ok(self) -> bool:
        """True if there is no fault."""
        return not self.findings


@convert_errors("verifying the folder")
def verify_folder(folder: PathInput) -> GenaiReport:
    """Compare a folder with its digest, and verify its context models and what the
    configuration says of them.

    A signature is checked by `epctx_files.verify_folder`.

    Args:
        folder: the folder.

    Raises:
        NoSuchFile, InvalidGraph: there is no such folder, or its configuration, its
            digest or a model cannot be read.

    Examples:
        >>> verify_folder("phi").findings[0].message
        "epctx/decode/model_qnn.bin is that of an earlier build"
    """
    path = Path(folder)
    findings: list[GenaiFinding] = []
    sealed = (path / DIGEST).exists()
    if sealed:
        report = epctx_files.verify_folder(path)
        findings += [
            GenaiFinding(
                subject=each.name,
                code=f"file-{each.problem}",
                message=f"{each.name} {_PROBLEMS[each.problem]}",
            )
            for each in report.findings
        ]
    # The configuration of a missing file cannot be read.
    if not any(finding.code == "file-missing" for finding in findings):
        found = read_folder(path)
        for stage in found.stages:
            findings += _check_stage(found, stage)
    return GenaiReport(sealed=sealed, findings=tuple(findings))


_PROBLEMS = {
    "missing": "is missing",
    "added": "was not in the folder when this was sealed",
    "older": "is that of an earlier build",
    "newer": "has other content, and was written after the folder was sealed",
    "foreign": "has other content than the folder was sealed with",
}


def _check_stage(folder: GenaiFolder, stage: Stage) -> Iterator[GenaiFinding]:
    """Yield what is wrong with a stage."""
    path = folder.path / stage.file
    try:
        info = inspect_model(path)
        refuse_dlc(stage, info)
    except EpctxError as error:
        yield _make_finding(stage, "payload-type", error.message)
        return

    for kind, names, has in (
        ("input", stage.inputs, info.inputs),
        ("output", stage.outputs, info.outputs),
    ):
        for name in names:
            if name not in has:
                yield _make_finding(
                    stage,
                    f"{kind}-missing",
                    f"{stage.file} has no {kind} {name!r}, which the configuration "
                    "names.",
                )
    missing = list(_check_eps(folder, stage, info))
    yield from missing
    # Another EP's opinion of a payload says nothing.
    if info.ep_contexts and not missing:
        try:
            found = verify_model(path, _make_options(folder, stage)).findings
        except EpctxError as error:
            yield _make_finding(stage, "options-wrong", error.message)
            return
        for finding in found:
            if finding.severity is Severity.ERROR:
                yield _make_finding(stage, finding.code, finding.message)


def _make_options(folder: GenaiFolder, stage: Stage) -> SessionOptions:
    """Return options with the EPs of a stage's session that are installed."""
    options = SessionOptions()
    for name, given in folder.list_eps(stage).items():
        if default_registry.find(name_in_epctx(name)):
            options.add_provider(name_in_epctx(name), given)
    return options


def _check_eps(
    folder: GenaiFolder, stage: Stage, info: ModelInfo
) -> Iterator[GenaiFinding]:
    """Yield the EPs of context nodes that a stage's session does not have."""
    names = {name_in_epctx(name) for name in folder.list_eps(stage)}
    # A source key such as `QNN` belongs to an EP whose plugin says so.
    sources = {
        str(node.plugin["ep"]) if node.plugin else node.source
        for node in info.ep_contexts
    }
    for source in sorted(sources - names):
        yield _make_finding(
            stage,
            "ep-missing",
            f"{stage.file} is compiled for {source}, and the stage's session has "
            f"{', '.join(sorted(names)) or 'no EP'}.",
        )


def _make_finding(stage: Stage, code: str, message: str) -> GenaiFinding:
    return GenaiFinding(subject=stage.name, code=code, message=message)
