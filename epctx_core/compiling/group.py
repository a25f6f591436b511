"""Share group: its members, what their EPs have in common, and the publication at its end.

Core of `ShareGroup` and of groups that session options drive. Of these there is one table a process: models meet in a
group if they go into one folder and are compiled by the same EPs with the same options.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from onnx import ModelProto

from epctx_core.compiling.destination import Destination, Outputs
from epctx_core.compiling.emit import ContextModel, GraphsByModel, write_shared_payloads
from epctx_core.compiling.provenance import complete_manifest
from epctx_core.compiling.read_back import read_back
from epctx_core.compiling.report import OutputFile
from epctx_core.context.receipts import note_published
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.graph.garbage import collection_paused
from epctx_core.graph.weights import ExtentDigests, share_digests
from epctx_core.options import WeightlessMode
from epctx_core.publish.publication import Publication
from epctx_core.registry.forking import PerProcess
from epctx_core.sessions.providers import ProviderChoice, close_quietly
from epctx_core.sessions.shared_workspaces import (
    SharedWorkspace,
    SharedWorkspaces,
    fingerprint,
    refuse_isolated,
)

if TYPE_CHECKING:
    from epctx_core.compiling.compile import Compile
    from epctx_core.sessions.source import OpenModel

_log = logging.getLogger("epctx.sharing")


def check_shared_options(compile_: Compile) -> None:
    """Raise InvalidArgument for options that leave nothing to share; before a model is read."""
    refuse_isolated(compile_.config)
    for problem, is_set in {
        "ep.context_embed_mode=1 and ep.share_ep_contexts=1 contradict each other": compile_.embedded,
        "a share group cannot hand payloads to a write callback": compile_.deliver is not None,
        "a model of a share group cannot be compiled to bytes or to a stream": compile_.sink is not None,
        "ep.enable_weightless_mode and ep.share_ep_contexts=1 contradict each other": compile_.config.weightless
        is not WeightlessMode.NONE,
    }.items():
        if is_set:
            raise InvalidArgument(
                f"{problem}.",
                hint="A share group is context models in files, with binaries in files beside them that hold the weights "
                "of all: leave one of the two out.",
            )


def read_published(path: Path, digest: str) -> bytes:
    """Return a model that was published before its group's end.

    Raises:
        Fail: another file lies there by now.
    """
    reason = "it is not the file that was written"
    try:
        data = path.read_bytes()
    except OSError as error:
        data, reason = b"", str(error)
    if hashlib.sha256(data).hexdigest() != digest:
        raise Fail(
            f"the share group's model {str(path)!r} cannot be completed: {reason}.",
            path=path,
            hint=f"Compile the group again, the source of {path.name!r} first, which begins a new one; or use "
            "epctx.ShareGroup, which publishes all models together.",
        )
    return data


@dataclass(kw_only=True, eq=False)
class Group:
    """One share group. The first member that is written decides the binaries' names.

    Attributes:
        models: the paths of the members that were added, in order.
        names: of groups that session options drive, the models that are being compiled.
        is_ending: whether its end is being written, or was.
        finished: whether its end was written.
    """

    models: list[Path] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    is_ending: bool = False
    finished: bool = False
    _named: Destination | None = None
    _graphs: GraphsByModel = field(default_factory=dict)
    _published: dict[Path, tuple[str, frozenset[str]]] = field(default_factory=dict)
    """File of each model that was published before the end: SHA-256 (hex), and its `ContextModel.to_read`."""
    _digests: ExtentDigests = field(default_factory=dict)
    _workspaces: SharedWorkspaces = field(default_factory=SharedWorkspaces)
    _held: dict[str, SharedWorkspace] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def workspace_of(self, choice: ProviderChoice) -> SharedWorkspace:
        """Return what an EP's instances have in common; it lives as long as the group."""
        with self._lock:
            if choice.name not in self._held:
                self._held[choice.name] = self._workspaces.join(choice.name)
            return self._workspaces.join(choice.name)

    def share_digests(self, model: OpenModel) -> None:
        """Let a member that was read have what others found out: a file of weights is digested once."""
        share_digests(model.source.weights.values(), self._digests)

    def abandon(self) -> None:
        """Say which models were published and will never be completed, and let go of what EPs keep."""
        pending = []
        for path, (digest, _) in [] if self.finished else [*self._published.items()]:
            with suppress(Fail):
                read_published(path, digest)
                pending.append(path)
        if pending:
            _log.warning(
                "a share group was never stopped: %s cannot be loaded. Compile its last model with "
                "ep.stop_share_ep_contexts=1.",
                ", ".join(repr(str(path)) for path in pending),
            )
        self.close()

    def add(self, member: Compile) -> None:
        """Take a member whose partitions were compiled."""
        with self._lock:
            if member.destination.path is not None:
                self.models.append(member.destination.path)

    def publish(self, member: Compile) -> None:
        """Publish a member at once, its binaries pending."""
        with self._lock:
            self._refuse_finished(member)
            named = self._named or member.destination
            context = member.publish(named, self._graphs)
            # Only now: of a member that failed, nothing may count.
            self.add(member)
            self._named, self._graphs = named, _with(self._graphs, member)
            if context.pending and member.destination.folder is not None:
                file = member.files[-1]
                path = Path(os.path.realpath(member.destination.folder)) / file.path
                self._published[path] = file.digest, context.to_read

    def finish(self, members: Sequence[Compile], last: Compile) -> tuple[OutputFile, ...]:
        """Write binaries and models in one publication: these members' and those published before; return the binaries.

        Args:
            members: those to be written, added before.
            last: its EPs write the binaries.

        Raises:
            Fail: a published model was replaced meanwhile, or a file belongs to a model outside of the group.
            PluginError: an EP wrote nothing, or does not read what it wrote.
        """
        folder = last.destination.folder or Path()
        with (
            collection_paused(sum(member.model.node_count for member in members)),
            self._lock,
            self._ending(),
            last.stage("write"),
            Publication(folder, before_writing=last.cancel.raise_if_requested) as publication,
        ):
            named = self._named or members[0].destination
            graphs = self._graphs
            models: list[tuple[Compile, Outputs, ContextModel]] = []
            # First all nodes: an EP knows what to write when it was asked for those of every member.
            for member in members:
                outputs = Outputs(member.destination.named_as(named), publication, final=False)
                models.append((member, outputs, member.describe(outputs, graphs)))
                graphs = _with(graphs, member)
            # As this member's folder is spelled: its files are compared by path.
            fellows = tuple(folder / path.name for path in self.models)
            destination = replace(last.destination.named_as(named), fellows=fellows)
            payloads = write_shared_payloads(last, Outputs(destination, publication), graphs)
            entries = {writer.name: writer.finish() for writer in payloads.values()}
            earlier = {
                path: ModelProto.FromString(read_published(path, digest))
                for path, (digest, _) in self._published.items()
            }
            for member, _, context in models:
                complete_manifest(context.proto, entries)
                read_back(context.proto, context.to_read, payloads, member.providers)
            for path, proto in earlier.items():
                complete_manifest(proto, entries)
                read_back(proto, self._published[path][1], payloads, last.providers)
            for member, each, context in models:
                member.finish(context, each)
            for path, proto in earlier.items():
                with publication.create(path.name) as file:
                    file.write(proto.SerializeToString(deterministic=True))
            last.cancel.raise_if_requested()
            names = [*(m.files[-1].path for m in members), *(path.name for path in earlier)]
            if names:
                states = publication.commit(names)
                digests = {name: digest for *_, c in models for name, digest in c.digests.items()}
                note_published(states, {**digests, **{entry.name: entry.root for entry in entries.values()}})
            self.finished = True
        return tuple(OutputFile.of(entry) for entry in entries.values())

    def stop(self, last: Compile, *, is_member: bool) -> None:
        """Write the end by the EPs of a last model, and that model too if it is a member."""
        with self._lock:
            self._refuse_finished(last)
            if is_member:
                # What is said of it includes the binaries.
                last.payloads = self.finish([last], last)
                self.add(last)
            elif self._published:
                self.finish([], last)
            self.is_ending = self.finished = True

    def close(self) -> None:
        """Let go of what EPs keep for the group; further calls do nothing."""
        with self._lock:
            held, self._held = self._held, {}
        for workspace in held.values():
            close_quietly(workspace.close, "what an EP kept for a share group")

    def _refuse_finished(self, member: Compile) -> None:
        if self.finished:
            raise Fail(
                f"the share group of {member.model.source.where} was stopped while it was compiled.",
                path=member.model.source.path,
                hint="Stop a group when all its other models are compiled.",
            )

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Take nobody in while the end is written; if that fails, the group is open again."""
        self.is_ending = True
        try:
            yield
        except BaseException:
            self.is_ending = False
            raise


def _with(graphs: GraphsByModel, member: Compile) -> GraphsByModel:
    """Return the names of all members' graphs with those of a further one, whose nodes EPs described."""
    more = {ep: {p.name: p.graph_name for p in member.assignment.of(ep)} for ep in member.providers.choices}
    return {**graphs, **{ep: (*graphs.get(ep, ()), names) for ep, names in more.items() if names}}


class OpenGroups:
    """Groups by what their models have in common, until they end."""

    def __init__(self) -> None:
        # Held for a look at the table only: nothing is read, compiled, logged or closed under it.
        self._lock = threading.Lock()
        self._groups: dict[Hashable, Group] = {}

    @contextmanager
    def joined(self, destination: Destination, choices: Sequence[ProviderChoice]) -> Iterator[Group]:
        """Give the group of a model while it is compiled and written.

        A group whose first model fails is forgotten. A new one begins where the old one is being ended, and where it
        was never stopped and has the model already.

        Raises:
            Fail: the model is being compiled into its group already.
        """
        key = (os.path.realpath(destination.folder or ""), fingerprint(choices))
        model = destination.model or ""
        with self._lock:
            group = replaced = self._groups.get(key)
            if group is not None and model in group.names:
                raise Fail(
                    f"{model!r} is being compiled into its share group already.",
                    hint="Give each model of a group a name of its own, and compile it once.",
                )
            if group is None or group.is_ending or any(path.name == model for path in group.models):
                group = self._groups[key] = Group()
            group.names.add(model)
        try:
            if replaced is not None and replaced is not group and not replaced.names:
                # Whoever uses it still closes it.
                replaced.abandon()
            yield group
        finally:
            is_over = False
            with self._lock:
                group.names.discard(model)
                if not group.names:
                    is_over = group.finished or not group.models
                    if not is_over:
                        # One whose end failed may be ended yet, unless another has its place by now.
                        is_over = self._groups.setdefault(key, group) is not group
                    elif self._groups.get(key) is group:
                        del self._groups[key]
            if is_over:
                group.abandon()

    def abandon(self) -> None:
        """Abandon the groups that are open still; the process ends."""
        with self._lock:
            groups, self._groups = list(self._groups.values()), {}
        for group in groups:
            group.abandon()


open_groups = PerProcess(OpenGroups)
"""Of each process."""

atexit.register(lambda: open_groups.get().abandon())
