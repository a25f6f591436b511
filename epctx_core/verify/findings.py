"""Findings of a verification: their codes, and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    NotImplementedByProvider,
    one_line,
)
from epctx_core.frozen import dataclass
from epctx_core.plugin import Finding, Severity
from epctx_core.rendering import render

if TYPE_CHECKING:
    from pathlib import Path

_ERROR = Severity.ERROR
_WARNING = Severity.WARNING
_INFO = Severity.INFO
CODES: Mapping[str, Severity] = MappingProxyType(
    {
        # The model.
        "model-unreadable": _ERROR,
        "budget-exceeded": _ERROR,
        "model-invalid": _ERROR,
        "no-context-nodes": _INFO,
        # EPContext nodes.
        "node-refused": _ERROR,
        "source-missing": _ERROR,
        "primary-missing": _ERROR,
        "subgraph-not-run": _ERROR,
        "type-not-allowed": _ERROR,
        "type-undeclared": _ERROR,
        # Payloads.
        "payload-refused": _ERROR,
        "file-not-sought": _WARNING,
        # The manifest.
        "manifest-missing": _INFO,
        "manifest-unknown": _WARNING,
        "manifest-damaged": _ERROR,
        "manifest-unlisted": _WARNING,
        "seal-broken": _ERROR,
        "digest-mismatch": _ERROR,
        "source-refused": _ERROR,
        "publication-unfinished": _WARNING,
        "dependencies-wrong": _WARNING,
        # Plugins.
        "plugin-missing": _WARNING,
        "plugin-broken": _ERROR,
        "compatibility-damaged": _ERROR,
        "compatibility-unsupported": _ERROR,
        "compatibility-outdated": _WARNING,
        # What EPs find in payloads.
        "container-refused": _ERROR,
        "kernel-missing": _WARNING,
        "container-not-checked": _INFO,
        "not-checked": _INFO,
    }
)
"""Every code with its severity, in the order of the checks; `epctx docs verify`
explains them.
"""

LISTED = 1000
"""Findings of one code that are listed one by one."""

UNJUDGED = frozenset({"not-checked", "file-not-sought"})
"""Codes of payloads with unchecked bytes."""

_OF_FILES = (InvalidGraph, InvalidProtobuf)
_ORDER = (_ERROR, _WARNING, _INFO)


class Findings:
    """Findings of a verification, as they are made."""

    def __init__(self) -> None:
        self._found: dict[Finding, None] = {}
        self._counts: Counter[tuple[Severity, str]] = Counter()

    def add(
        self, code: str, message: str, *, node: str | None = None, hint: str = ""
    ) -> None:
        """Note a finding; one that was made before counts once."""
        self.take(Finding(CODES[code], code, message, node=node, hint=hint))

    def add_error(
        self, code: str, error: EpctxError, *, node: str | None = None, hint: str = ""
    ) -> None:
        """Note an error as a finding."""
        self.add(code, error.message, node=error.node or node, hint=error.hint or hint)

    @contextmanager
    def collect(
        self,
        code: str,
        others: Mapping[type[EpctxError], str] = MappingProxyType({}),
        *,
        node: str | None = None,
    ) -> Iterator[None]:
        """Note the error that a load would end with, and go on behind what raised it.

        Args:
            code: of the finding, if the error blames a file.
            others: codes of further errors; of several that fit, the first counts.
            node: what the finding names if the error does not.
        """
        codes = {**others, **dict.fromkeys(_OF_FILES, code)}
        try:
            yield
        except EpctxError as error:
            fitting = [codes[kind] for kind in codes if isinstance(error, kind)]
            if not fitting:
                raise
            self.add_error(fitting[0], error, node=node)

    @contextmanager
    def collect_of_plugin(
        self, code: str, missing: str = "kernel-missing", *, node: str | None = None
    ) -> Iterator[None]:
        """Note what an EP raises: with a code what blames a file, with another one that
        something is missing, else that the plugin is broken.

        A wrong option or a cancellation of the host is raised.
        """
        try:
            with self.collect(code, {NotImplementedByProvider: missing}, node=node):
                yield
        except (InvalidArgument, ModelLoadCanceled):
            raise
        except EpctxError as error:
            hint = "`epctx plugins list` shows every plugin and its state."
            self.add_error("plugin-broken", error, node=node, hint=hint)

    def take(self, finding: Finding) -> None:
        """Note a finding that is one already; of one code beyond `LISTED`, that it was
        there. Its message, which may be an EP's, becomes one printable line.
        """
        finding = replace(finding, message=one_line(finding.message))
        if finding in self._found:
            return
        kind = finding.severity, finding.code
        self._counts[kind] += 1
        if self._counts[kind] <= LISTED:
            self._found[finding] = None

    @property
    def codes(self) -> AbstractSet[str]:
        """The codes of all so far."""
        return {code for _, code in self._counts}

    @property
    def has_errors(self) -> bool:
        """True if there is an error so far."""
        return any(severity is Severity.ERROR for severity, _ in self._counts)

    def sorted(self) -> tuple[Finding, ...]:
        """Return all, errors first, else in the order in which they were made; after
        too many of a code, how many.
        """
        more = [
            Finding(
                severity,
                code,
                f"{count - LISTED:,} more findings of the code {code} are not listed.",
                hint="Fix what is listed, then verify again.",
            )
            for (severity, code), count in self._counts.items()
            if count > LISTED
        ]
        return tuple(
            sorted(
                [*self._found, *more],
                key=lambda finding: _ORDER.index(finding.severity),
            )
        )


@dataclass(frozen=True, kw_only=True)
class PayloadReport:
    """One payload in a report.

    Attributes:
        name: the name of its file, or of its node if it is embedded.
        embedded: whether it is in the model.
        size: length in bytes.
        digests: whether all its bytes were checked against the manifest and are right.
        looked_into_by: origin of the EP that checked it, such as `epctx-sim-qnn 0.1.0`;
            None if none could.
    """

    name: str
    embedded: bool
    size: int
    digests: bool
    looked_into_by: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx verify --json` prints."""
        return {
            "name": self.name,
            "embedded": self.embedded,
            "bytes": self.size,
            "digests_checked": self.digests,
            "looked_into_by": self.looked_into_by,
        }


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """Result of a verification.

    Attributes:
        path: the model's file, None for one from bytes.
        findings: all of them, errors first.
        nodes: number of EPContext nodes.
        payloads: those that could be read.
    """

    path: Path | None
    findings: Sequence[Finding]
    nodes: int
    payloads: Sequence[PayloadReport]

    @property
    def ok(self) -> bool:
        """True if there is no error; warnings and notes do not count."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def checked(self) -> bool:
        """True if of each payload the digests were checked, or its EP checked it."""
        return not any(finding.code in UNJUDGED for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The verdict in a word: `not-ok`, `not-checked` where nothing is wrong and
        nobody here could check a payload, or `ok`.
        """
        if not self.ok:
            return "not-ok"
        return "ok" if self.checked else "not-checked"

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx verify --json` prints."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "findings": [finding.as_dict() for finding in self.findings],
            "nodes": self.nodes,
            "payloads": [payload.as_dict() for payload in self.payloads],
        }

    def __str__(self) -> str:
        """Return the report as tables."""
        return self._render()

    def _repr_html_(self) -> str:
        """Return the report as a notebook shows it."""
        return self._render(as_html=True)

    def _render(self, *, as_html: bool = False) -> str:
        name = self.path.name if self.path else "model"
        return render(
            f"{name}: {self.verdict}, EPContext nodes: {self.nodes}",
            self.as_dict(),
            as_html=as_html,
            findings="severity code node message hint",
            payloads="name bytes digests_checked looked_into_by",
        )
