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
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.compiling.compile import Compile
from epctx_core.compiling.descriptions import HOOK, check_written
from epctx_core.compiling.destination import (
    Destination,
    GraphsByModel,
    Outputs,
    report_writing,
)
from epctx_core.compiling.emit import ContextModel, make_payload_set
from epctx_core.compiling.report import OutputFile
from epctx_core.context.manifest import MANIFEST, dump_manifest, read_manifest
from epctx_core.context.metadata import set_metadata
from epctx_core.context.receipts import note_published
from epctx_core.errors import Fail, InvalidArgument, PluginError
from epctx_core.feature_table import FEATURES
from epctx_core.frozen import dataclass
from epctx_core.graph.mapping import read_small_file
from epctx_core.graph.model_io import MOST_BYTES
from epctx_core.graph.weights import share_digests
from epctx_core.options import SessionConfig
from epctx_core.plugin.protos import ModelProto
from epctx_core.process import PerProcess, pause_collection
from epctx_core.publish.publication import Publication
from epctx_core.registry.guard import close_quietly
from epctx_core.sessions.shared_workspaces import fingerprint_providers
from epctx_core.sessions.workspaces import SessionWorkspace, shared_workspaces

if TYPE_CHECKING:
    from epctx_core.context.payload_writer import PayloadWriter
    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.graph.mapping import ExtentDigests
    from epctx_core.sessions.providers import ProviderSession, WorkspaceOf
    from epctx_core.sessions.routing import ProviderChoice
    from epctx_core.sessions.stage_values import Assigned, Opened

_log = logging.getLogger("epctx.sharing")


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


class Group:
    """Share group.

    The first member that is written determines the names of the binaries.

    Attributes:
        models: names of the members that were published before the end.
        compiling: for groups that session options drive, names of the models that are
            being compiled.
        is_over: whether its end is being written, or was.
        digests: those that members made: a file of weights is digested once.
    """

    def __init__(self) -> None:
        self.models: set[str] = set()
        self.compiling: set[str] = set()
        self.is_over = False
        self.digests: ExtentDigests = {}
        self._naming: Destination | None = None
        self._graphs: GraphsByModel = {}
        # File of each published model without its binaries yet: SHA-256
        # (hex), and its `ContextModel.to_read`.
        self._pending: dict[Path, tuple[str, frozenset[str]]] = {}
        self._workspaces_in_use: dict[str, SessionWorkspace] = {}
        self._lock = threading.RLock()

    def workspace_of(self, choice: ProviderChoice) -> SessionWorkspace:
        """Return the workspace that an EP's instances share; it lives as long as the
        group.
        """
        with self._lock:
            join = partial(shared_workspaces.get().join, (self, choice.name))
            if choice.name not in self._workspaces_in_use:
                self._workspaces_in_use[choice.name] = join()
            return join()

    def write(
        self, members: Sequence[Member], last: Member, *, is_end: bool
    ) -> tuple[PayloadWriter, ...]:
        """Write members in one publication; return what wrote the binaries.

        Before the end, binaries are pending. At the end they are written, and the
        members that were published before are completed.

        Args:
            members: members to write.
            last: the member whose EPs write the binaries; one of which nothing is
                written is not among `members`.
            is_end: whether this is the end. If it fails, the group is open again.

        Raises:
            Fail: the group is over, a published model was replaced meanwhile, or a file
                belongs to a model outside of the group.
            PluginError: an EP wrote nothing, or cannot read what it wrote.
        """
        with self._lock:
            if self.is_over:
                source = last.work.model.source
                raise Fail(
                    f"the share group of {source.where} was stopped while it was "
                    "compiled.",
                    path=source.path,
                    hint="Stop a group when all its other models are compiled.",
                )
            # No member is accepted while the end is written.
            self.is_over = is_end
            try:
                return self._publish(members, last) if members or self._pending else ()
            except BaseException:
                self.is_over = False
                raise

    def _publish(
        self, members: Sequence[Member], last: Member
    ) -> tuple[PayloadWriter, ...]:
        """Publish members, and at the end all that the group has to write."""
        folder = last.destination.folder or Path()
        with (
            pause_collection(sum(member.work.model.node_count for member in members)),
            last.time_stage("write"),
            Publication(
                folder, before_writing=report_writing(last.work)
            ) as publication,
        ):
            named = self._naming or members[0].destination
            graphs = dict(self._graphs)
            # All nodes first: an EP knows what to write after it was asked for those of
            # every member.
            models = [_describe(m, publication, named, graphs) for m in members]
            payloads: Mapping[bytes, PayloadWriter] = {}
            completed: list[str] = []
            if self.is_over:
                # As this member's folder is spelled: its files are compared by path.
                paths = [folder / name for name in self.models]
                destination = _use_names_of(
                    named,
                    last.destination,
                    (*paths, *(m.destination.path for m in members)),
                )
                payloads = _write_payloads(
                    last.work.providers, Outputs(destination, publication), graphs
                )
                for member, context, _ in models:
                    _complete(context.proto, context.to_read, payloads, member)
                completed = self._complete_published(payloads, last, publication)

            for member, context, outputs in models:
                member.finish(context, outputs)
            last.work.cancel.raise_if_requested()
            names = [member.files[-1].path for member in members]
            digests = {each.name: each.make_entry().root for each in payloads.values()}
            digests |= {file.path: file.digest for m in members for file in m.files}
            note_published(publication.commit([*names, *completed]), digests)

        # Only now: of a member that failed, nothing may count.
        self._naming = named
        self._graphs = graphs
        self.models.update(names)
        for member, context, _ in models:
            if context.pending:
                file = member.files[-1]
                path = publication.folder / file.path
                self._pending[path] = file.digest, context.to_read
        if self.is_over:
            self._pending.clear()
        return tuple(payloads.values())

    def _complete_published(
        self,
        payloads: Mapping[bytes, PayloadWriter],
        last: Member,
        publication: Publication,
    ) -> list[str]:
        """Write the models anew that were published before the end; return their
        names.
        """
        for path, (digest, to_read) in self._pending.items():
            # As it is on disk.
            proto = ModelProto.FromString(read_published(path, digest))
            _complete(proto, to_read, payloads, last)
            with publication.create(path.name) as file:
                file.write(proto.SerializeToString(deterministic=True))
        return [path.name for path in self._pending]

    def close(self) -> None:
        """Warn of models that were published and will never be completed, and release
        what EPs keep; further calls do nothing.
        """
        with self._lock:
            pending, self._pending = self._pending, {}
            in_use, self._workspaces_in_use = self._workspaces_in_use, {}
        left = []
        for path, (digest, _) in pending.items():
            with suppress(Fail):
                read_published(path, digest)
                left.append(repr(str(path)))
        if left:
            _log.warning(
                (
                    "a share group was never stopped: %s cannot be loaded. Compile "
                    "its last model with ep.stop_share_ep_contexts=1."
                ),
                ", ".join(left),
            )
        for workspace in in_use.values():
            close_quietly(workspace.close, "closing what an EP kept for a share group")


@dataclass(kw_only=True, eq=False)
class Member(Compile):
    """Compile of one model of a share group; its group writes all members together.

    Args:
        group: the group; None to join one that session options drive.
    """

    group: Group | None = None

    def check_destination(self, *, has_payloads: bool = True) -> None:
        """Refuse options that leave nothing to share, too."""
        for problem in self._find_contradictions():
            raise InvalidArgument(
                f"{problem}.",
                hint=(
                    "A share group is context models in files, with binaries in files "
                    "beside them that hold the weights of all: leave one of the two "
                    "out."
                ),
            )
        super().check_destination(has_payloads=has_payloads)

    def _find_contradictions(self) -> Iterator[str]:
        """Yield a sentence for each wish of the host that a share group cannot meet."""
        if self.embedded:
            yield (
                "ep.context_embed_mode=1 and ep.share_ep_contexts=1 contradict each "
                "other"
            )
        if self.deliver is not None:
            yield "a share group cannot hand payloads to a write callback"
        if self.sink is not None:
            yield "a model of a share group cannot be compiled to bytes or to a stream"
        for feature in FEATURES:
            if not feature.is_shareable and getattr(
                self.request.config, feature.option
            ):
                yield (
                    f"{getattr(SessionConfig, feature.option).key} and "
                    "ep.share_ep_contexts=1 contradict each other"
                )

    @contextmanager
    def settle(self, work: Opened) -> Iterator[WorkspaceOf]:
        """Join the group, too, and leave it at the end; give the workspaces that EPs
        share with its other models.

        Raises:
            InvalidArgument: the model is a context model already.
            EpctxError: see `Compile.settle`.
        """
        model = work.model
        if model.context_nodes:
            # Its payloads would not be the group's.
            raise InvalidArgument(
                f"{model.source.where} is a context model already (EPContext "
                f"node {model.context_nodes[0].name!r}), and a share group "
                "takes models that are not.",
                path=model.source.path,
                hint="Compile the model that it was made from.",
            )
        with super().settle(work), ExitStack() as stack:
            # Not before: a model that is refused must not begin a new group.
            if self.group is None:
                self.group = stack.enter_context(
                    join_group(self.destination, work.choices)
                )
                # A session that reads its model again comes here again, and this group
                # may be over by then.
                stack.callback(setattr, self, "group", None)
            share_digests(model.source.weights.values(), self.group.digests)
            yield self.group.workspace_of

    def name_binaries(self, choices: Sequence[ProviderChoice]) -> Mapping[str, str]:  # noqa: ARG002 - see `Compile`
        """Return none: they are checked when the group ends and its models are
        known.
        """
        return {}

    def write(self, work: Assigned) -> None:
        """Have a group that session options drive write the model, and its binaries if
        this is its last.
        """
        members = [self] if self.is_written(work) else []
        is_end = work.config.stop_sharing
        if self.group is not None and (members or is_end):
            binaries = self.group.write(members, self, is_end=is_end)
            self.payloads = tuple(
                OutputFile.from_entry(each.make_entry()) for each in binaries
            )


def _describe(
    member: Member,
    publication: Publication,
    named: Destination,
    graphs: dict[str, tuple[Mapping[str, str], ...]],
) -> tuple[Member, ContextModel, Outputs]:
    """Return a member with its context model, without payloads, and the outputs for its
    files.

    Args:
        member: the member.
        publication: stages the files.
        named: destination that names the binaries.
        graphs: see `GraphsByModel`; gets those of this member.
    """
    work = member.work
    outputs = Outputs(
        _use_names_of(named, member.destination),
        publication,
        final=False,
        earlier=graphs,
    )
    context = member.describe(outputs)
    work.stages.check_compiled(work.assignment, context.to_read, work.providers)
    for ep in work.providers.choices:
        names = {p.name: p.graph_name for p in work.assignment.of(ep)}
        if names:
            graphs[ep] = (*graphs.get(ep, ()), names)
    return member, context, outputs


def _use_names_of(
    named: Destination, destination: Destination, models: tuple[Path | None, ...] = ()
) -> Destination:
    """Return a destination with the names of another's binaries, and the models of the
    group that name them.
    """
    return replace(
        destination,
        named_after=named.named_after,
        binary_folder=named.binary_folder,
        group_models=models,
    )


def _write_payloads(
    providers: ProviderSession, outputs: Outputs, graphs: GraphsByModel
) -> dict[bytes, PayloadWriter]:
    """Have EPs write the payloads of all members.

    Args:
        providers: those of the last member, whose EPs write; it need not have
            partitions of them.
        outputs: where payloads go.
        graphs: the partitions of all members.

    Returns:
        The finished payloads, by the `ep_cache_context` of their primaries.

    Raises:
        PluginError: an EP wrote nothing.
    """
    written: dict[bytes, PayloadWriter] = {}
    for ep, by_model in graphs.items():
        choice = providers.choices[ep]
        # They hold the weights of all members.
        payloads = make_payload_set(
            choice, outputs, tuple(map(tuple, by_model)), lambda _: None
        )
        providers.instances.call(ep, HOOK, writer=payloads.handle)
        check_written(choice, payloads)
        for writer in payloads.writers.values():
            written[writer.get_cache_value()] = writer
    return written


def _complete(
    proto: ModelProto,
    to_read: frozenset[str],
    payloads: Mapping[bytes, PayloadWriter],
    reader: Member,
) -> None:
    """Complete a model with pending binaries, and have its payloads read back.

    Args:
        proto: its context model; one without pending payloads stays as it is.
        to_read: see `ContextModel`.
        payloads: all of the group; see `_write_payloads`.
        reader: the member with the EPs that read.
    """
    manifest = read_manifest(proto)
    if manifest is not None and manifest.pending:
        written = {each.name: each for each in payloads.values()}
        missing = [name for name in manifest.pending if name not in written]
        if missing:
            raise PluginError(
                f"the payload {missing[0]!r} of a share group was not written at the "
                "group's end.",
                hook="get_ep_context_nodes",
                hint="The EP did not start it when `ContextWriter.final` was True.",
            )
        entries = (written[name].make_entry() for name in manifest.pending)
        complete = replace(manifest, payloads=tuple(entries), pending=())
        set_metadata(proto, MANIFEST, dump_manifest(complete))
    reader.work.stages.check_written(
        proto, to_read, payloads, reader.work.providers, {}
    )


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

    A group is forgotten if its first model fails. A new one begins where the old one is
    being ended, and where it was never stopped and has the model already.

    Raises:
        Fail: the model is being compiled into its group already.
    """
    lock, groups = _open_groups.get()
    key = (os.path.realpath(destination.folder or ""), fingerprint_providers(choices))
    model = destination.model or ""
    with lock:
        group = groups.get(key)
        if group is not None and model in group.compiling:
            raise Fail(
                f"{model!r} is being compiled into its share group already.",
                hint=(
                    "Give each model of a group a name of its own, and compile it once."
                ),
            )
        replaced = None
        if group is None or group.is_over or model in group.models:
            replaced = group
            group = groups[key] = Group()
        group.compiling.add(model)

    try:
        if replaced is not None and not replaced.compiling:
            # Whoever uses it still closes it.
            replaced.close()
        yield group
    finally:
        with lock:
            group.compiling.discard(model)
            is_left = not group.compiling and (
                group.is_over
                or not group.models
                # A group whose end failed may still be ended, unless another one has
                # replaced it by now.
                or groups.setdefault(key, group) is not group
            )
            if is_left and groups.get(key) is group:
                del groups[key]
        if is_left:
            group.close()


@atexit.register
def abandon_open_groups() -> None:
    """Abandon the groups that are still open; the process ends."""
    _, groups = _open_groups.get()
    for group in list(groups.values()):
        group.close()


def count_saved_bytes(
    members: Iterable[Iterable[GraphPartition]], payloads: Iterable[PayloadWriter]
) -> int:
    """Count the bytes of weights that separate binaries would store again.

    Only weights that lie in a payload as the models have them count: of what an EP
    converted, or wrote as mere bytes, nobody knows which models it serves.

    Args:
        members: the partitions of each model.
        payloads: what was written for all of them.
    """
    users = Counter(
        weight
        for partitions in members
        for weight in {
            (p.ep, w.digest, w.nbytes) for p in partitions for w in p.weights.values()
        }
    )
    stored = Counter(
        (payload.ep, segment.digest, segment.length)
        for payload in payloads
        for segment in payload.make_entry().segments
        if segment.is_weight
    )

    # An EP may store one weight in several payloads.
    return sum(
        count * weight[-1]
        for weight, count in (users - stored).items()
        if weight in stored
    )
