"""The context model that a session writes beside running it: `ep.context_enable=1`."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from epctx_core.compiling.emit import check_can_export
from epctx_core.compiling.node_names import check_names
from epctx_core.compiling.passthrough import PassThrough
from epctx_core.compiling.pipeline import write_context_model
from epctx_core.compiling.provenance import check_mix
from epctx_core.compiling.sharing.member import CompiledMember
from epctx_core.compiling.sharing.open_groups import open_groups
from epctx_core.compiling.sharing.rules import check_member, check_shared_options
from epctx_core.compiling.writing.destination import Destination, destination_of
from epctx_core.compiling.writing.initializers import InitializerPlacement
from epctx_core.compiling.writing.outputs import Outputs
from epctx_core.compiling.writing.size import check_weights_fit
from epctx_core.sessions.cancellation import CompileCancellation
from epctx_core.sessions.providers import private_workspace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from epctx_core.compiling.sharing.group import Group
    from epctx_core.options import SessionConfig, SessionOptions
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.providers import ProviderChoice, ProviderSession, WorkspaceOf
    from epctx_core.sessions.source import OpenModel
    from epctx_core.sessions.stages import Stopwatch

_log = logging.getLogger("epctx.compile")


def export_destination(
    source: Path | None, config: SessionConfig, reads: tuple[str, ...] = ()
) -> Destination:
    """Return where a session writes its context model; never over one that exists, as in ONNX Runtime.

    Args:
        source: the path of the session's model, None for one from bytes.
        config: the session's options.
        reads: the files that the model's weights lie in.

    Raises:
        InvalidArgument: see `destination_of`.
    """
    return destination_of(
        source,
        config.context_file_path,
        replace=False,
        reads=reads,
        initializers=config.external_initializers_file,
    )


class SessionExport:
    """Where a session's context model goes, settled before anything is compiled.

    With `ep.share_ep_contexts=1` it becomes a member of an open share group, whose workspaces the session's
    EPs get.

    Args:
        source: the path of the session's model, None for one from bytes.
        session: the session's options.

    Raises:
        InvalidArgument: an output path that names a folder.
    """

    def __init__(self, source: Path | None, session: SessionOptions) -> None:
        self._session = session
        self._config = config = session.config()
        self._placement = InitializerPlacement(file=config.external_initializers_file)
        self._group: Group | None = None
        export_destination(source, config).check_place()

    @contextmanager
    def opened(self, model: OpenModel, choices: Sequence[ProviderChoice]) -> Iterator[None]:
        """Settle where everything goes; what is entered ends what a share group knows of the session.

        Args:
            model: what the session runs; EPContext nodes that it has pass through.
            choices: the EPs.

        Raises:
            InvalidArgument: options that contradict a share group.
        """
        config = self._config
        self._existing = PassThrough(model, config)
        wanted = export_destination(model.source.path, config, model.source.weights_files)
        with ExitStack() as stack:
            if config.share_contexts:
                check_shared_options(config, embedded=config.embed, delivered=False, in_memory=False)
                # Before it joins: a model that is refused must not begin a new group.
                check_member(model, wanted)
                self._group = stack.enter_context(open_groups.get().joined(wanted, choices))
                self._group.share_digests(model)
            self._destination = self._existing.plan(wanted, embedded=config.embed)
            yield

    @property
    def workspace_of(self) -> WorkspaceOf:
        """Gives what the session's EPs share with others."""
        return private_workspace if self._group is None else self._group.workspace_of

    def start(self, model: OpenModel, providers: ProviderSession) -> None:
        """Check what can be checked before anything is compiled.

        Args:
            model: what is compiled: the model after optimising.
            providers: the live EPs.

        Raises:
            InvalidArgument, Fail: see `Destination.check`; a model that exists is never replaced,
                as in ONNX Runtime.
            NotImplementedByProvider: an EP cannot save what it compiles.
        """
        self._model, self._providers = model, providers
        check_can_export(providers)
        destination = self._destination
        binaries = {ep: destination.binary_name(c.binary_suffix) for ep, c in providers.choices.items()}
        destination.check({} if self._config.embed or self._group is not None else binaries)

    def check(self, assignment: Assignment) -> None:
        """Raise if the model could not be written for what it says, before anything is compiled."""
        check_names(self._model, assignment)
        check_mix(self._model, self._existing.manifest, assignment, self._providers)
        check_weights_fit(
            assignment, self._placement, self._providers.weightless, embedded=self._config.embed
        )

    def write(self, assignment: Assignment, watch: Stopwatch) -> None:
        """Write it, unless it would have no EPContext node; see `write_context_model`."""
        if self._group is not None:
            self._write_member(self._group, assignment, watch)
        elif assignment.partitions or self._existing.records:
            outputs = Outputs(
                self._destination, embedded=self._config.embed, cancel=self._session.cancellation
            )
            write_context_model(
                self._model,
                assignment,
                self._providers,
                outputs,
                self._placement,
                self._existing,
                watch=watch,
            )
        else:
            _log.warning(
                "nothing was compiled of %s, so there is no context model to write.", self._model.source.where
            )

    def _write_member(self, group: Group, assignment: Assignment, watch: Stopwatch) -> None:
        member = CompiledMember(
            model=self._model,
            assignment=assignment,
            providers=self._providers,
            destination=self._destination,
            placement=self._placement,
            existing=self._existing,
            cancel=CompileCancellation(self._session.cancellation),
            watch=watch,
        )
        if not self._config.stop_sharing:
            if assignment.partitions:
                group.publish(member)
        elif assignment.partitions:
            group.stop(member)
        else:
            group.stop_without(member)
