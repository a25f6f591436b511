"""A share group: which models belong to it, what their EPs have in common, and the publication at its end.

Core of `ShareGroup` and of groups driven by session options. Knows no option and no table of groups.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.compile.emit import make_context_model, write_shared_payloads
from epctx_core.compile.pipeline import serialize, what_was_written, write_context_model
from epctx_core.compile.provenance import complete_manifest
from epctx_core.compile.providers import close_quietly
from epctx_core.compile.report import OutputFile, Written
from epctx_core.compile.sharing.member import CompiledMember, PublishedMember
from epctx_core.compile.sharing.savings import Savings
from epctx_core.compile.writing.outputs import Outputs
from epctx_core.context.workspace import SharedWorkspace, SharedWorkspaces
from epctx_core.errors import Fail
from epctx_core.graph.garbage import collection_paused
from epctx_core.publish import Publication

if TYPE_CHECKING:
    from epctx_core.compile.emit import ContextModel
    from epctx_core.compile.providers import ProviderChoice
    from epctx_core.compile.writing.destination import Destination
    from epctx_core.context.manifest import PayloadEntry


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What the end of a group wrote.

    Attributes:
        binaries: one a payload.
        members: what was written of the models that were not published before, in their order.
        completed: the models that were, as they are now.
        saved_bytes: bytes of weights that separate binaries would have stored again.
    """

    binaries: tuple[OutputFile, ...]
    members: tuple[Written, ...]
    completed: tuple[OutputFile, ...]
    saved_bytes: int


@dataclass(kw_only=True)
class Group:
    """One share group. The first member decides folder and binaries' names.

    Attributes:
        models: the paths of the members that were added, in order.
        finished: whether its end was written.
    """

    models: list[Path] = field(default_factory=list)
    finished: bool = False
    _named_after: Path | None = None
    _binary_folder: str = ""
    _eps: set[str] = field(default_factory=set)
    _published: list[PublishedMember] = field(default_factory=list)
    _savings: Savings = field(default_factory=Savings)
    _workspaces: SharedWorkspaces = field(default_factory=SharedWorkspaces)
    _held: dict[str, SharedWorkspace] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def pending(self) -> list[Path]:
        """Return the models that were published and wait for the group's end."""
        with self._lock:
            return [] if self.finished else [m.path for m in self._published if m.is_pending]

    def workspace_of(self, choice: ProviderChoice) -> SharedWorkspace:
        """Return what an EP's instances have in common; it lives as long as the group."""
        with self._lock:
            if choice.name not in self._held:
                self._held[choice.name] = self._workspaces.join(choice.name)
            return self._workspaces.join(choice.name)

    def destination(self, wanted: Destination) -> Destination:
        """Return a member's destination with the group's name for binaries; nothing is decided yet but that."""
        with self._lock:
            if self._named_after is None:
                self._named_after, self._binary_folder = wanted.named_after, wanted.binary_folder
            return replace(wanted, named_after=self._named_after, binary_folder=self._binary_folder)

    def add(self, member: CompiledMember) -> None:
        """Take a member whose partitions were compiled."""
        with self._lock:
            self._eps.update(partition.ep for partition in member.assignment.partitions)
            if member.destination.path is not None:
                self.models.append(member.destination.path)

    @collection_paused()
    def publish(self, member: CompiledMember) -> Written:
        """Publish a member at once, its binaries pending."""
        with self._lock:
            self._refuse_finished(member)
            with self._added(member):
                written = write_context_model(
                    member.model,
                    member.assignment,
                    member.providers,
                    member.outputs(),
                    member.placement,
                    member.existing,
                    watch=member.watch,
                )
            # Only now all digests are known.
            self._savings.add(member.assignment.partitions)
            if written.pending and member.destination.folder is not None:
                file = written.others[-1]
                path = Path(os.path.realpath(member.destination.folder)) / file.path
                self._published.append(PublishedMember(path=path, digest=file.digest))
            return written

    @collection_paused()
    def finish(self, members: Sequence[CompiledMember], last: CompiledMember) -> Finished:
        """Write binaries and models in one publication: these members' and those published before.

        Args:
            members: those to be written, added before.
            last: its EPs write the binaries.

        Raises:
            Fail: a published model was replaced meanwhile, or a file belongs to a model outside of the group.
            PluginError: an EP wrote nothing.
        """
        folder = last.destination.folder
        if folder is None:
            raise Fail("a share group without a folder cannot be written.")
        self._refuse_finished(last)
        check = last.cancel.raise_if_requested
        with self._lock, last.watch.stage("write"), Publication(folder, before_writing=check) as publication:
            # First all nodes: an EP knows what to write when it was asked for those of every member.
            models = [self._make(member, publication) for member in members]
            binaries, entries = self._write_binaries(last, publication)
            written = [model.write(entries) for model in models]
            completed = [_complete(member, publication, entries) for member in self._published]
            check()
            names = [w.others[-1].path for w in written] + [file.path for file in completed]
            if names:
                files = [*binaries, *(name for model in models for name in model.outputs.files)]
                publication.commit(binaries=files, models=names, replace=True)
            self.finished = True
        return Finished(
            binaries=tuple(OutputFile(path=e.name, bytes=e.size, digest=e.root) for e in entries.values()),
            members=tuple(written),
            completed=tuple(completed),
            saved_bytes=self._savings.with_more(member.assignment.partitions for member in members).saved,
        )

    def stop(self, member: CompiledMember) -> Written:
        """Write the end with a last member; what is said of it includes the binaries."""
        with self._lock:
            self._refuse_finished(member)
            with self._added(member):
                finished = self.finish([member], member)
        return replace(finished.members[0], payloads=finished.binaries, pending=())

    def stop_without(self, member: CompiledMember) -> None:
        """Write the end by the EPs of a last member that is not written itself."""
        with self._lock:
            self._refuse_finished(member)
            self.finish([], member)

    def close(self) -> None:
        """Let go of what EPs keep for the group; further calls do nothing."""
        with self._lock:
            held, self._held = self._held, {}
        for workspace in held.values():
            close_quietly(workspace.close, "what an EP kept for a share group")

    @contextmanager
    def _added(self, member: CompiledMember) -> Iterator[None]:
        """Add a member, and take it out again if it cannot be written."""
        count = len(self.models)
        self.add(member)
        try:
            yield
        except BaseException:
            del self.models[count:]
            raise

    def _refuse_finished(self, member: CompiledMember) -> None:
        if self.finished:
            raise Fail(
                f"the share group of {member.model.source.where} was stopped while it was compiled.",
                path=member.model.source.path,
                hint="Stop a group when all its other models are compiled.",
            )

    def _make(self, member: CompiledMember, publication: Publication) -> _Made:
        outputs = member.outputs(publication)
        with outputs:
            kept = member.existing.keep(outputs.open_payload)
            context = make_context_model(
                member.model, member.assignment, member.providers, outputs, member.placement, kept
            )
        return _Made(member=member, outputs=outputs, context=context)

    def _write_binaries(
        self, last: CompiledMember, publication: Publication
    ) -> tuple[tuple[str, ...], dict[str, PayloadEntry]]:
        """Have the last member's EPs write for all; return the files and their entries by name."""
        folder = last.destination.folder or Path()
        # As this member's folder is spelled: its files are compared by path.
        fellows = tuple(folder / path.name for path in self.models)
        destination = replace(last.destination, fellows=fellows)
        outputs = Outputs(destination, embedded=False, cancel=last.cancel, publication=publication)
        entries: dict[str, PayloadEntry] = {}
        for ep, choice in last.providers.choices.items():
            if ep in self._eps:
                entries.update((e.name, e) for e in write_shared_payloads(choice, last.providers, outputs))
        return outputs.files, entries


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A context model of which only the manifest is not complete."""

    member: CompiledMember
    outputs: Outputs
    context: ContextModel

    def write(self, entries: Mapping[str, PayloadEntry]) -> Written:
        complete_manifest(self.context.proto, entries)
        written = self.outputs.finish(serialize(self.context, embedded=False), self.context.named_files)
        return what_was_written(self.context, self.outputs, self.member.existing, written)


def _complete(
    member: PublishedMember, publication: Publication, entries: Mapping[str, PayloadEntry]
) -> OutputFile:
    data = member.completed(entries)
    with publication.create(member.path.name) as file:
        file.write(data)
    return OutputFile(path=member.path.name, bytes=len(data), digest=hashlib.sha256(data).hexdigest())
