"""Payloads: found as a load finds them, and checked against the manifest byte by byte, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epctx_core.context.callbacks import receive
from epctx_core.context.manifest import PayloadEntry, damaged
from epctx_core.context.paths import checked_name
from epctx_core.context.unfinished import interrupted_copies
from epctx_core.errors import InvalidGraph
from epctx_core.graph.mapping import MappedFile
from epctx_core.verify.manifest import payload_key

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.paths import ModelFolder
    from epctx_core.verify.findings import Findings
    from epctx_core.verify.subject import Subject

_OTHER = "The file does not belong to this model or was altered; fetch both again, or compile again."
_WHAT = "the context binary"
_SHOWN_RANGES = 5


@dataclass(kw_only=True, eq=False)
class FoundPayload:
    """A payload that is there.

    Attributes:
        node: the first node that carries it.
        mapped: the file it lies in, if it lies in one.
        received: whether the host's callback gave it.
        digest: its root digest, if all of it was checked against the manifest and is right.
        sound: False if it is known to be another one than the model was written with.
    """

    name: str
    embedded: bool
    node: str
    view: memoryview
    mapped: MappedFile | None = None
    received: bool = False
    digest: str | None = None
    sound: bool = True

    def forget(self, offset: int, length: int) -> None:
        """Give back the pages of a range that was read."""
        if self.mapped is not None:
            self.mapped.forget(offset, length)


def find_payloads(subject: Subject, findings: Findings) -> dict[str, FoundPayload]:
    """Return the payload that each primary carries by the primary's name; those that cannot be had are left out."""
    finder = _Finder(subject, findings)
    return {
        record.name: found
        for record in subject.records
        if record.main_context and record.cache and (found := finder.find(record)) is not None
    }


class _Finder:
    def __init__(self, subject: Subject, findings: Findings) -> None:
        self._folder: ModelFolder | None = subject.folder
        self._data_reader = subject.config.data_reader
        self._manifest = subject.manifest
        self._findings = findings
        self._found: dict[tuple[str, bool], FoundPayload | None] = {}

    def find(self, record: ContextNodeRecord) -> FoundPayload | None:
        """Return a primary's payload; several nodes may name one file."""
        key = payload_key(record)
        if key not in self._found:
            self._found[key] = self._embedded(record) if record.embed_mode else self._outside(record)
            found = self._found[key]
            if found is not None:
                self._check(found)
        return self._found[key]

    def _embedded(self, record: ContextNodeRecord) -> FoundPayload:
        view = memoryview(record.cache or b"")
        return FoundPayload(name=record.name, embedded=True, node=record.name, view=view)

    def _outside(self, record: ContextNodeRecord) -> FoundPayload | None:
        if self._is_pending(record):
            return None
        if self._data_reader is None:
            return self._in_file(record)
        try:
            name = record.file_name or ""
        except InvalidGraph as error:
            self._findings.add_error("name-unsafe", error)
            return None
        content = receive(self._data_reader, name)
        if not content.size:
            self._note_empty(name, record)
            return None
        return FoundPayload(name=name, embedded=False, node=record.name, view=content.view, received=True)

    def _is_pending(self, record: ContextNodeRecord) -> bool:
        """Whether a payload is written when the model's share group ends; whatever lies there is not it."""
        if self._manifest is None or not self._manifest.pending:
            return False
        try:
            self._manifest.refuse_pending(record.file_name or "", record.name)
        except InvalidGraph as error:
            self._findings.add_error("share-group-pending", error)
            return True
        return False

    def _in_file(self, record: ContextNodeRecord) -> FoundPayload | None:
        try:
            name = record.file_name or ""
            checked_name(name, f"{record.name!r} names {_WHAT}", record.name)
        except InvalidGraph as error:
            self._findings.add_error("name-unsafe", error)
            return None
        if self._folder is None:
            self._findings.add(
                "file-not-sought",
                f"the model was given as bytes, so the file {name!r} of EPContext node {record.name!r} was not "
                "looked for.",
                node=record.name,
                hint="Give the model's path, or set the session option 'ep.context_file_path' to the one it would have.",
            )
            return None
        return self._mapped(name, record, self._folder)

    def _mapped(self, name: str, record: ContextNodeRecord, folder: ModelFolder) -> FoundPayload | None:
        try:
            with folder.open(name, what=_WHAT, node=record.name) as file:
                mapped = MappedFile(file.fileno(), file.path)
        except InvalidGraph as error:
            missing = isinstance(error.__cause__, FileNotFoundError)
            self._findings.add_error("file-missing" if missing else "file-refused", error)
            return None
        except (OSError, ValueError) as error:
            message = f"{record.name!r} names {_WHAT} {name!r}, which cannot be read: {error}."
            self._findings.add("file-refused", message, node=record.name)
            return None
        if not mapped.size:
            self._note_empty(name, record)
            return None
        return FoundPayload(name=name, embedded=False, node=record.name, view=mapped.view, mapped=mapped)

    def _note_empty(self, name: str, record: ContextNodeRecord) -> None:
        self._findings.add(
            "file-empty",
            f"the context binary {name!r} of EPContext node {record.name!r} is empty.",
            node=record.name,
            hint="Fetch it again, or compile the model again.",
        )

    def _check(self, found: FoundPayload) -> None:
        """Hold a payload against the manifest."""
        if self._manifest is None:
            return
        entry = self._manifest.entry(found.name, embedded=found.embedded)
        if entry is None:
            self._findings.add(
                "manifest-unlisted",
                f"the manifest says nothing about the payload {found.name!r}, so it was checked against no digests.",
                node=found.node,
                hint="The model was put together from others, or changed; compile it again to have all checked.",
            )
            return
        fault = _fault(entry, found.view, found.forget)
        if fault is None or self._is_kept(entry, found):
            found.digest = entry.root
            return
        found.sound = False
        code, message = fault
        self._findings.add(code, message, node=found.node, hint=_OTHER)

    def _is_kept(self, entry: PayloadEntry, found: FoundPayload) -> bool:
        """Whether an unfinished publication holds the right bytes, from where a load takes them."""
        if found.mapped is None or self._folder is None:
            return False
        for copy in interrupted_copies(self._folder.folder, found.name):
            with suppress(OSError, ValueError, InvalidGraph):
                mapped = _map(copy)
                if _fault(entry, mapped.view, mapped.forget) is None:
                    found.view, found.mapped = mapped.view, mapped
                    self._findings.add(
                        "publication-unfinished",
                        f"the context binary {found.name!r} is another one, and the right one is in what an unfinished "
                        "compile left in the folder; loads take it from there.",
                        node=found.node,
                        hint="Compile into the folder again, which finishes or takes back what was left.",
                    )
                    return True
        return False


def _map(path: Path) -> MappedFile:
    with path.open("rb") as file:
        return MappedFile(file.fileno(), str(path))


def _fault(
    entry: PayloadEntry, view: memoryview, forget: Callable[[int, int], None]
) -> tuple[str, str] | None:
    """Return code and message of what differs, None if nothing does."""
    if len(view) != entry.size:
        return "digest-size", (
            f"the payload {entry.name!r} has {len(view):,} bytes; the model was written with one of {entry.size:,}."
        )
    wrong = list(damaged(view, entry.segments, forget))
    if not wrong:
        return None
    ranges = [
        f"{s.offset:,} to {s.offset + s.length:,}{' (a weight)' if s.is_weight else ''}"
        for s in wrong[:_SHOWN_RANGES]
    ]
    more = f", and {len(wrong) - _SHOWN_RANGES:,} more" if len(wrong) > _SHOWN_RANGES else ""
    return "digest-mismatch", (
        f"{len(wrong):,} of {len(entry.segments):,} segments of the payload {entry.name!r} have another digest "
        f"than the model was written with: bytes {', '.join(ranges)}{more}."
    )
