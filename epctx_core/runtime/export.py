"""The context model that a session writes beside running it: `ep.context_enable=1`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.compile.emit import check_can_export
from epctx_core.compile.node_names import check_names
from epctx_core.compile.passthrough import PassThrough
from epctx_core.compile.pipeline import write_context_model
from epctx_core.compile.provenance import check_mix
from epctx_core.compile.writing.destination import destination_of
from epctx_core.compile.writing.initializers import InitializerPlacement
from epctx_core.compile.writing.outputs import Outputs
from epctx_core.compile.writing.size import check_weights_fit

if TYPE_CHECKING:
    from epctx_core.compile.assign import Assignment
    from epctx_core.compile.providers import ProviderSession
    from epctx_core.compile.report import Stopwatch
    from epctx_core.compile.source import OpenModel
    from epctx_core.options import SessionOptions


class SessionExport:
    """Where a session's context model goes, checked before anything is compiled.

    Args:
        model: what the session runs; EPContext nodes that it has pass through.
        session: the session's options.
        providers: the live EPs.

    Raises:
        InvalidArgument, NoSuchFile, Fail: see `Destination.check`; a model that exists is never replaced,
            as in ONNX Runtime.
        NotImplementedByProvider: an EP cannot save what it compiles.
    """

    def __init__(self, model: OpenModel, session: SessionOptions, providers: ProviderSession) -> None:
        config = session.config()
        config.check_sharing(embedded=config.embed)
        self._model = model
        self._providers = providers
        self._placement = InitializerPlacement(file=config.external_initializers_file)
        self._existing = PassThrough(model, config)
        destination = self._existing.plan(
            destination_of(
                model.source.path,
                config.context_file_path,
                replace=False,
                reads=model.source.weights_files,
                initializers=self._placement.file,
            ),
            embedded=config.embed,
        )
        self._outputs = Outputs(destination, embedded=config.embed, cancel=session.cancellation)
        check_can_export(providers)
        binaries = {ep: destination.binary_name(c.binary_suffix) for ep, c in providers.choices.items()}
        destination.check({} if config.embed else binaries)

    def check(self, assignment: Assignment) -> None:
        """Raise if the model could not be written for what it says, before anything is compiled."""
        check_names(self._model, assignment)
        check_mix(self._model, self._existing.manifest, assignment, self._providers)
        check_weights_fit(
            assignment, self._placement, self._providers.weightless, embedded=self._outputs.embedded
        )

    def write(self, assignment: Assignment, watch: Stopwatch) -> None:
        """Write it, unless it would have no EPContext node; see `write_context_model`."""
        if not assignment.partitions and not self._existing.records:
            return
        write_context_model(
            self._model,
            assignment,
            self._providers,
            self._outputs,
            self._placement,
            self._existing,
            watch=watch,
        )
