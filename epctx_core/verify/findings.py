"""The codes of findings, and what a verification comes to. Checks nothing itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    NotImplementedByProvider,
)
from epctx_core.plugin import Finding, Severity

if TYPE_CHECKING:
    from pathlib import Path


class Code(NamedTuple):
    """How much a code matters, and what it means; docs/verify.md says the same and what to do."""

    severity: Severity
    meaning: str


_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
CODES: Mapping[str, Code] = MappingProxyType(
    {
        # The model.
        "model-unreadable": Code(_ERROR, "The file is no ONNX model."),
        "budget-exceeded": Code(_ERROR, "The file would decode to more than its host allows."),
        "model-invalid": Code(_ERROR, "The ONNX checker, or the reading of values and types, refuses it."),
        "weights-refused": Code(
            _ERROR, "A weight in a file cannot be had, or the file is not as it was written."
        ),
        "no-context-nodes": Code(_INFO, "The model has no EPContext node: nothing in it is compiled."),
        # EPContext nodes.
        "name-not-text": Code(_ERROR, "A name in an EPContext node is not UTF-8."),
        "name-repeated": Code(_WARNING, "Two EPContext nodes have one name."),
        "attribute-type": Code(_ERROR, "An attribute has another type than the operator says."),
        "attribute-value": Code(_ERROR, "An attribute has a value that the operator does not have."),
        "attribute-unreadable": Code(_ERROR, "An attribute cannot be decoded."),
        "attribute-repeated": Code(_ERROR, "An attribute stands in a node twice."),
        "outputs-missing": Code(_ERROR, "An EPContext node has no outputs."),
        "source-missing": Code(_ERROR, "A node does not say which EP made it."),
        "partition-name-missing": Code(_INFO, "A node has no partition_name; its own name stands for it."),
        "partition-repeated": Code(_WARNING, "Two nodes run one graph of one payload."),
        "payload-missing": Code(_ERROR, "A primary node carries no payload and names no file."),
        "payload-ignored": Code(
            _WARNING, "A node that refers to another's payload has one that is not read."
        ),
        "primary-missing": Code(_ERROR, "Nodes refer to a payload, and no node of their source has one."),
        "body-not-run": Code(_ERROR, "A node lies in a body that no session works on."),
        "type-not-allowed": Code(_ERROR, "A node reads or makes a value of a type that EPContext has not."),
        "type-undeclared": Code(_ERROR, "The model does not declare the type of a node's output."),
        # Files.
        "name-unsafe": Code(_ERROR, "A node names a file that cannot lie in the model's folder."),
        "file-missing": Code(_ERROR, "A context binary is not there."),
        "file-refused": Code(
            _ERROR, "A context binary is a link that leaves the folder, or no regular file."
        ),
        "file-empty": Code(_ERROR, "A context binary has no bytes."),
        "share-group-pending": Code(_ERROR, "A context binary is written when the model's share group ends."),
        "file-not-sought": Code(_WARNING, "The model was given as bytes, so its files were not looked for."),
        "file-unnamed": Code(_INFO, "A binary with this model's name lies beside it and no model names it."),
        # The manifest.
        "manifest-missing": Code(_INFO, "The model has no manifest, so no digest was checked."),
        "manifest-unknown": Code(_WARNING, "The manifest has a version that is not known here."),
        "manifest-damaged": Code(_ERROR, "The manifest cannot be read."),
        "manifest-root": Code(_ERROR, "A root digest is not that of the segments in the manifest."),
        "manifest-unlisted": Code(_WARNING, "The manifest does not know a payload."),
        "manifest-unused": Code(_WARNING, "The manifest knows a payload that no node has."),
        "digest-size": Code(_ERROR, "A payload has another size than the model was written with."),
        "digest-mismatch": Code(_ERROR, "Bytes of a payload are not those that the model was written with."),
        "source-refused": Code(_ERROR, "Weights that were left in the source model cannot be had."),
        "publication-unfinished": Code(_WARNING, "The binary is found in what an unfinished compile left."),
        "dependencies-wrong": Code(
            _WARNING, "What the model says that it needs besides its file is not what it needs."
        ),
        "kernel-types-damaged": Code(_ERROR, "What the model says of operators for kernels cannot be read."),
        # Plugins.
        "plugin-missing": Code(_WARNING, "No plugin of this machine loads nodes of a source."),
        "plugin-broken": Code(_ERROR, "A plugin cannot be used, raised, or broke its contract."),
        "compatibility-damaged": Code(_ERROR, "The compatibility information is not text."),
        "compatibility-unsupported": Code(_ERROR, "The EP does not run what was compiled."),
        "compatibility-outdated": Code(_WARNING, "The EP runs it less well than if compiled again."),
        "compatibility-not-judged": Code(_INFO, "The EP does not judge this compatibility information."),
        # What EPs find in payloads.
        "container-refused": Code(_ERROR, "The EP would not load a node: its payload does not fit."),
        "kernel-missing": Code(
            _WARNING, "Nobody on this machine runs an operator of the model, or of a payload."
        ),
        "container-not-checked": Code(_INFO, "Nobody here can look into a payload."),
        "not-checked": Code(_INFO, "No byte of a payload was judged, neither by digests nor by an EP."),
    }
)
"""Every code, in the order of the checks."""

LISTED = 1000
"""Findings of one code that are listed one by one."""

UNJUDGED = frozenset({"not-checked", "file-not-sought"})
"""Codes that say that nothing is known of a file's bytes."""

_OF_FILES = (InvalidGraph, InvalidProtobuf)
_PLUGINS = "`epctx plugins list` shows every plugin and its state."
_ORDER = {severity: place for place, severity in enumerate((_ERROR, _WARNING, _INFO))}


class Findings:
    """What is found, as it is found."""

    def __init__(self) -> None:
        self._found: dict[Finding, None] = {}
        self._counts: Counter[tuple[Severity, str]] = Counter()
        self._has_errors = False

    def add(self, code: str, message: str, *, node: str | None = None, hint: str = "") -> None:
        """Note a finding; one that was made before counts once."""
        self.take(Finding(CODES[code].severity, code, message, node=node, hint=hint))

    def add_error(self, code: str, error: EpctxError, *, node: str | None = None, hint: str = "") -> None:
        """Note what an error says."""
        self.add(code, error.message, node=error.node or node, hint=error.hint or hint)

    @contextmanager
    def collected(
        self,
        code: str,
        errors: tuple[type[EpctxError], ...] = _OF_FILES,
        *,
        node: str | None = None,
        hint: str = "",
    ) -> Iterator[None]:
        """Note the error that a load would end with, and go on behind what raised it.

        Args:
            code: of the finding.
            errors: which; those that blame a file by default.
            node: what the finding names if the error does not.
            hint: as `node`.
        """
        try:
            yield
        except errors as error:
            self.add_error(code, error, node=node, hint=hint)

    @contextmanager
    def collected_of_plugin(self, code: str, *, node: str | None = None) -> Iterator[None]:
        """Note what an EP raises: with a code what blames a file, else that a kernel is missing or the plugin broken.

        What is the host's own, a wrong option or its wish to stop, is raised.
        """
        try:
            yield
        except (InvalidArgument, ModelLoadCanceled):
            raise
        except _OF_FILES as error:
            self.add_error(code, error, node=node)
        except NotImplementedByProvider as error:
            self.add_error("kernel-missing", error, node=node)
        except EpctxError as error:
            self.add_error("plugin-broken", error, node=node, hint=_PLUGINS)

    def take(self, finding: Finding) -> None:
        """Note a finding that is one already; of one code beyond `LISTED`, that it was there."""
        if finding in self._found:
            return
        self._has_errors |= finding.severity is Severity.ERROR
        kind = finding.severity, finding.code
        self._counts[kind] += 1
        if self._counts[kind] <= LISTED:
            self._found[finding] = None

    def is_unchecked(self, nodes: Iterable[str]) -> bool:
        """Whether somebody said that he cannot look into the payloads of one of these nodes."""
        unchecked = {finding.node for finding in self._found if finding.code == "container-not-checked"}
        return not unchecked.isdisjoint(nodes)

    @property
    def codes(self) -> AbstractSet[str]:
        """The codes of all so far."""
        return {code for _, code in self._counts}

    @property
    def has_errors(self) -> bool:
        """Whether anything is wrong so far."""
        return self._has_errors

    def sorted(self) -> tuple[Finding, ...]:
        """Return all, errors first, else in the order in which they were made; after too many of a code, how many."""
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
        return tuple(sorted([*self._found, *more], key=lambda finding: _ORDER[finding.severity]))


@dataclass(frozen=True, kw_only=True)
class PayloadReport:
    """One payload as the verification left it.

    Attributes:
        name: the name of its file, or of its node if it is embedded.
        size: length in bytes.
        digests: whether all its bytes were checked against the manifest and are right.
        looked_into_by: who looked into it, such as `epctx-sim-qnn 0.1.0`; None if nobody could.
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
    """What a verification came to.

    Attributes:
        path: the model's file, None for one from bytes.
        findings: all of them, errors first.
        nodes: how many EPContext nodes there are.
        payloads: those that could be read.
    """

    path: Path | None
    findings: Sequence[Finding]
    nodes: int
    payloads: Sequence[PayloadReport]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong: warnings and notes do not count."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def checked(self) -> bool:
        """Whether something of each payload was judged: its digests, or what the EP says of it."""
        return not any(finding.code in UNJUDGED for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx verify --json` prints."""
        return {
            "ok": self.ok,
            "findings": [finding.as_dict() for finding in self.findings],
            "nodes": self.nodes,
            "payloads": [payload.as_dict() for payload in self.payloads],
        }
