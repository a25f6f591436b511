"""Share group: its members, the workspaces of their EPs, and the publication at its
end.

Core of `ShareGroup` and of groups that session options drive. Each process has one
table of the latter: models belong to one group if they are written into one folder by
the same EPs with the same options.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from onnx import ModelProto

from epctx_core.compiling.destination import Destination, Outputs
from epctx_core.compiling.emit import ContextModel, GraphsByModel, write_all_payloads
from epctx_core.compiling.provenance import complete_manifest
from epctx_core.compiling.read_back import compare_shapes, read_back
from epctx_core.compiling.report import OutputFile
from epctx_core.context.receipts import note_published
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.graph.garbage import pause_collection
from epctx_core.graph.mapping import read_small_file
from epctx_core.graph.model_io import MOST_BYTES
from epctx_core.graph.weights import share_digests
from epctx_core.options import WeightlessMode
from epctx_core.publish.publication import Publication
from epctx_core.registry.forking import PerProcess
from epctx_core.registry.guard import close_quietly
from epctx_core.sessions.shared_workspaces import fingerprint_providers
from epctx_core.sessions.workspaces import SharedWorkspace, SharedWorkspaces

if TYPE_CHECKING:
    from epctx_core.context.payload_writer import PayloadWriter
    from epctx_core.graph.mapping import ExtentDigests
    from epctx_core.options import SessionConfig
    from epctx_core.sessions.providers import ProviderChoice
    from epctx_core.sessions.source import OpenModel
    from epctx_core.sessions.work import Work

_log = logging.getLogger("epctx.sharing")


def check_shared_options(
    config: SessionConfig, *, embedded: bool, is_delivered: bool, is_streamed: bool
) -> None:
    """Raise InvalidArgument for options that leave nothing to share, before a model is
    read.

    Args:
        config: the host's options.
        embedded: whether payloads are stored in the model.
        is_delivered: whether they go to a write callback.
        is_streamed: whether the model goes to bytes or a stream.
    """
    for problem, is_set in {
        (
            "ep.context_embed_mode=1 and ep.share_ep_contexts=1 contradict each other"
        ): embedded,
        "a share group cannot hand payloads to a write callback": is_delivered,
        (
            "a model of a share group cannot be compiled to bytes or to a stream"
        ): is_streamed,
        (
            "ep.enable_weightless_mode and ep.share_ep_contexts=1 contradict each other"
        ): config.weightless is not WeightlessMode.NONE,
    }.items():
        if is_set:
            raise InvalidArgument(
                f"{problem}.",
                hint=(
                    "A share group is context models in files, with binaries in files "
                    "beside them that hold the weights of all: leave one of the two "
                    "out."
                ),
            )


def read_published(path: Path, digest: str) -> bytes:
    """Return a model that was published before its group's end.

    Raises:
        Fail: another file lies there by now.
    """
    reason = "it is not the file that was written"
    try:
        data = read_small_file(path, MOST_BYTES)
    except OSError as error:
        data = b""
        reason = str(error)
    if hashlib.sha256(data).hexdigest() != digest:
        raise Fail(
            f"the share group's model {str(path)!r} cannot be completed: {reason}.",
            path=path,
            hint=f"Compile the group again, the source of {path.name!r} first, which "
            "begins a new one; or use epctx.ShareGroup, which publishes all "
            "models together.",
        )
    return data


class Member(Protocol):
    """Compile of one model of a share group; see `Compile`."""

    work: Work
    destination: Destination
    payloads: tuple[OutputFile, ...]
    files: tuple[OutputFile, ...]

    def time_stage(self, name: str) -> AbstractContextManager[None]:
        """Add the time spent inside to a stage."""

    def describe(self, outputs: Outputs, earlier: GraphsByModel) -> ContextModel:
        """Return the context model, not yet written."""

    def publish(self, named: Destination, earlier: GraphsByModel) -> ContextModel:
        """Write the context model and its files."""

    def finish(self, context: ContextModel, outputs: Outputs) -> None:
        """Write the model itself."""


class Group:
    """Share group.

    The first member that is written determines the names of the binaries.

    Attributes:
        models: paths of the members that were added, in order.
        compiling: for groups that session options drive, names of the models that are
            being compiled.
        is_ending: whether its end is being written, or was.
        finished: whether its end was written.
    """

    def __init__(self) -> None:
        self.models: list[Path] = []
        self.compiling: set[str] = set()
        self.is_ending = False
        self.finished = False
        self._naming: Destination | None = None
        self._graphs: GraphsByModel = {}
        # File of each model that was published before the end: SHA-256 (hex), and its
        # `ContextModel.to_read`.
        self._published: dict[Path, tuple[str, frozenset[str]]] = {}
        self._digests: ExtentDigests = {}
        self._workspaces = SharedWorkspaces()
        self._workspaces_in_use: dict[str, SharedWorkspace] = {}
        self._lock = threading.RLock()

    def workspace_of(self, choice: ProviderChoice) -> SharedWorkspace:
        """Return the workspace that an EP's instances share; it lives as long as the
        group.
        """
        with self._lock:
            if choice.name not in self._workspaces_in_use:
                self._workspaces_in_use[choice.name] = self._workspaces.join(
                    choice.name
                )
            return self._workspaces.join(choice.name)

    def share_digests(self, model: OpenModel) -> None:
        """Give a member the digests that others made: a file of weights is digested
        once.
        """
        share_digests(model.source.weights.values(), self._digests)

    def abandon(self) -> None:
        """Warn of models that were published and will never be completed, and release
        what EPs keep.
        """
        pending = []
        for path, (digest, _) in [] if self.finished else [*self._published.items()]:
            with suppress(Fail):
                read_published(path, digest)
                pending.append(path)
        if pending:
            _log.warning(
                (
                    "a share group was never stopped: %s cannot be loaded. Compile "
                    "its last model with ep.stop_share_ep_contexts=1."
                ),
                ", ".join(repr(str(path)) for path in pending),
            )
        self.close()

    def add(self, member: Member) -> None:
        """Add a member whose partitions were compiled."""
        with self._lock:
            if member.destination.path is not None:
                self.models.append(member.destination.path)

    def publish(self, member: Member) -> None:
        """Publish a member at once, its binaries pending."""
        with self._lock:
            self._refuse_finished(member)
            named = self._naming or member.destination
            context = member.publish(named, self._graphs)
            # Only now: of a member that failed, nothing may count.
            self.add(member)
            self._naming = named
            self._graphs = _add_names(self._graphs, member)
            if context.pending and member.destination.folder is not None:
                file = member.files[-1]
                path = Path(os.path.realpath(member.destination.folder)) / file.path
                self._published[path] = file.digest, context.to_read

    def finish(
        self, members: Sequence[Member], last: Member
    ) -> tuple[PayloadWriter, ...]:
        """Write binaries and models in one publication: these members' and those
        published before; return what wrote the binaries.

        Args:
            members: members to write, which were added before.
            last: the member whose EPs write the binaries.

        Raises:
            Fail: a published model was replaced meanwhile, or a file belongs to a model
                outside of the group.
            PluginError: an EP wrote nothing, or cannot read what it wrote.
        """
        folder = last.destination.folder or Path()
        with (
            pause_collection(sum(member.work.model.node_count for member in members)),
            self._lock,
            self._mark_ending(),
            last.time_stage("write"),
            Publication(folder, before_writing=last.work.before_writing) as publication,
        ):
            named = self._naming or members[0].destination
            # All nodes first: an EP knows what to write after it was asked for those of
            # every member.
            models, graphs = self._describe(members, publication, named)
            # As this member's folder is spelled: its files are compared by path.
            group_models = tuple(folder / path.name for path in self.models)
            destination = replace(
                last.destination.use_names_of(named), group_models=group_models
            )
            destination.check_model()
            payloads = write_all_payloads(
                last.work.providers, Outputs(destination, publication), graphs
            )
            entries = {writer.name: writer.make_entry() for writer in payloads.values()}

            # As they are on disk.
            earlier = {
                path: ModelProto.FromString(read_published(path, digest))
                for path, (digest, _) in self._published.items()
            }
            written = [
                (context.proto, context.to_read, member.work.providers)
                for member, _, context in models
            ]
            written += [
                (proto, self._published[path][1], last.work.providers)
                for path, proto in earlier.items()
            ]
            for proto, to_read, providers in written:
                complete_manifest(proto, entries)
                read_back(proto, to_read, payloads, providers)

            for member, each, context in models:
                member.finish(context, each)
            for path, proto in earlier.items():
                with publication.create(path.name) as file:
                    file.write(proto.SerializeToString(deterministic=True))
            last.work.cancel.raise_if_requested()

            names = [member.files[-1].path for member in members]
            names += [path.name for path in earlier]
            digests = {entry.name: entry.root for entry in entries.values()}
            for _, _, context in models:
                digests |= context.digests
            if names:
                note_published(publication.commit(names), digests)
            self.finished = True
        return tuple(payloads.values())

    def _describe(
        self, members: Sequence[Member], publication: Publication, named: Destination
    ) -> tuple[list[tuple[Member, Outputs, ContextModel]], GraphsByModel]:
        """Return the members' context models without payloads, and the graphs of the
        group with theirs.
        """
        graphs = self._graphs
        models = []
        for member in members:
            destination = member.destination.use_names_of(named)
            destination.check_model()
            outputs = Outputs(destination, publication, final=False)
            context = member.describe(outputs, graphs)
            compare_shapes(
                member.work.assignment, context.to_read, member.work.providers
            )
            models.append((member, outputs, context))
            graphs = _add_names(graphs, member)
        return models, graphs

    def stop(self, last: Member, *, is_member: bool) -> None:
        """Write the end by the EPs of a last model, and that model too if it is a
        member.
        """
        with self._lock:
            self._refuse_finished(last)
            if is_member:
                last.payloads = tuple(
                    OutputFile.from_entry(writer.make_entry())
                    for writer in self.finish([last], last)
                )
                self.add(last)
            elif self._published:
                self.finish([], last)
            self.is_ending = self.finished = True

    def close(self) -> None:
        """Release what EPs keep for the group; further calls do nothing."""
        with self._lock:
            in_use = self._workspaces_in_use
            self._workspaces_in_use = {}
        for workspace in in_use.values():
            close_quietly(workspace.close, "closing what an EP kept for a share group")

    def _refuse_finished(self, member: Member) -> None:
        if self.finished:
            source = member.work.model.source
            raise Fail(
                f"the share group of {source.where} was stopped while it was compiled.",
                path=source.path,
                hint="Stop a group when all its other models are compiled.",
            )

    @contextmanager
    def _mark_ending(self) -> Iterator[None]:
        """Accept no member while the end is written; if that fails, the group is open
        again.
        """
        self.is_ending = True
        try:
            yield
        except BaseException:
            self.is_ending = False
            raise


def _add_names(graphs: GraphsByModel, member: Member) -> GraphsByModel:
    """Return the names of the graphs of all members, with those of one more, whose
    nodes EPs described.
    """
    more = dict(graphs)
    for ep in member.work.providers.choices:
        names = {p.name: p.graph_name for p in member.work.assignment.of(ep)}
        if names:
            more[ep] = (*more.get(ep, ()), names)
    return more


_open_groups = PerProcess(lambda: (threading.Lock(), dict[Hashable, Group]()))
"""Open share groups of each process, by folder, EPs and options.

The lock is held only to read and change the table: nothing is read, compiled, logged or
closed under it.
"""


@contextmanager
def join_group(
    destination: Destination, choices: Sequence[ProviderChoice]
) -> Iterator[Group]:
    """Give the group of a model while it is compiled and written.

    A group whose first model fails is forgotten. A new one begins where the old one is
    being ended, and where it was never stopped and has the model already.

    Raises:
        Fail: the model is being compiled into its group already.
    """
    lock, groups = _open_groups.get()
    key = (os.path.realpath(destination.folder or ""), fingerprint_providers(choices))
    model = destination.model or ""
    with lock:
        group = replaced = groups.get(key)
        if group is not None and model in group.compiling:
            raise Fail(
                f"{model!r} is being compiled into its share group already.",
                hint=(
                    "Give each model of a group a name of its own, and compile it once."
                ),
            )
        if (
            group is None
            or group.is_ending
            or any(path.name == model for path in group.models)
        ):
            group = groups[key] = Group()
        group.compiling.add(model)

    try:
        if replaced is not None and replaced is not group and not replaced.compiling:
            # Whoever uses it still closes it.
            replaced.abandon()
        yield group
    finally:
        is_over = False
        with lock:
            group.compiling.discard(model)
            if not group.compiling:
                is_over = group.finished or not group.models
                if not is_over:
                    # A group whose end failed may still be ended, unless another one
                    # has replaced it by now.
                    is_over = groups.setdefault(key, group) is not group
                elif groups.get(key) is group:
                    del groups[key]
        if is_over:
            group.abandon()


@atexit.register
def abandon_open_groups() -> None:
    """Abandon the groups that are still open; the process ends."""
    lock, groups = _open_groups.get()
    with lock:
        abandoned = list(groups.values())
        groups.clear()
    for group in abandoned:
        group.abandon()
