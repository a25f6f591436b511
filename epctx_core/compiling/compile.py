"""`Compile`: one context model on its way, from a host's request to the last file."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from epctx_core.compiling.descriptions import check_names
from epctx_core.compiling.destination import (
    Destination,
    Outputs,
    report_writing,
)
from epctx_core.compiling.emit import (
    ContextModel,
    make_context_model,
    make_weight_filter,
)
from epctx_core.compiling.initializers import check_weights_fit
from epctx_core.compiling.pass_through import PassThrough, find_existing
from epctx_core.compiling.provenance import check_mix
from epctx_core.compiling.report import (
    CompileReport,
    OutputFile,
    describe_partition,
    describe_refusal,
)
from epctx_core.context.callbacks import WriteCallback, deliver
from epctx_core.context.manifest import NO_MANIFEST
from epctx_core.context.receipts import make_model_receipt, note, note_published
from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.errors import (
    Fail,
    InvalidArgument,
    NotImplementedByProvider,
    convert_errors,
)
from epctx_core.feature_table import COMPILE
from epctx_core.frozen import dataclass
from epctx_core.graph.weights import share_digests
from epctx_core.options import (
    GraphOptimizationLevel,
    Isolation,
    OrtCompileApiFlags,
)
from epctx_core.plugin import Purpose
from epctx_core.plugin.hookspecs import CONTEXT_HOOKS
from epctx_core.process import pause_collection
from epctx_core.publish.publication import Publication, settle_death
from epctx_core.sessions.claims import explain_unused_eps
from epctx_core.sessions.plan import list_implementers
from epctx_core.sessions.providers import WorkspaceOf, make_private_workspace
from epctx_core.sessions.stage_values import choose
from epctx_core.sessions.stages import make_stages

if TYPE_CHECKING:
    from epctx_core.sessions.providers import ProviderSession
    from epctx_core.sessions.routing import ProviderChoice
    from epctx_core.sessions.stage_values import Assigned, Chosen, Opened, Started
    from epctx_core.sessions.stages import Request

_log = logging.getLogger("epctx.compile")

ModelSink: TypeAlias = "Callable[[Iterator[memoryview]], None]"
"""Function that takes the bytes of a context model, chunk by chunk."""


@dataclass(kw_only=True, eq=False)
class Compile:
    """Compile of one context model, stage by stage.

    `run` takes all stages. A session that exports hands its own values over: it calls
    `settle`, `check_hooks`, `check` and `write`.

    Args:
        request: the source, the host's options and EPs.
        destination: destination of all files, as far as it is known before the model is
            read.
        embedded: whether payloads are stored in the model.
        flags: which outcomes are errors.
        level: how far the model is optimised before EPs see it.
        sink: gets the bytes of the model; None for the destination's file.
        deliver: the host's write callback; None for files.
        plain: whether a model of which nothing was compiled is written.

    Attributes:
        providers: the EPs, once they are chosen.
        work: the source and what EPs take of it, once it is checked.
        existing: the EPContext nodes that the source has already.
        seconds: time of each stage.
        context: the context model; None if none is written.
        payloads: payloads that were written outside of the model.
        files: the file for initializers and the model, as far as this compile wrote
            them.
    """

    request: Request
    destination: Destination
    embedded: bool
    flags: OrtCompileApiFlags = OrtCompileApiFlags.NONE
    level: GraphOptimizationLevel | None = None
    sink: ModelSink | None = None
    deliver: WriteCallback | None = None
    plain: bool = True
    providers: ProviderSession = field(init=False)
    work: Assigned = field(init=False)
    existing: PassThrough = field(init=False)
    seconds: dict[str, float] = field(init=False, default_factory=dict)
    context: ContextModel | None = field(init=False, default=None)
    payloads: tuple[OutputFile, ...] = field(init=False, default=())
    files: tuple[OutputFile, ...] = field(init=False, default=())

    @contextmanager
    def time_stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a stage, which host plugins observe."""
        start = time.perf_counter()
        try:
            with self.providers.instances.span(name):
                yield
        finally:
            self.seconds[name] = (
                self.seconds.get(name, 0.0) + time.perf_counter() - start
            )

    @contextmanager
    def report_stage(self, name: str) -> Iterator[None]:
        """Report the begin and the end of a stage that is one step."""
        self.request.progress(name, 0, 1)
        yield
        self.request.progress(name, 1, 1)

    @convert_errors("compiling the model")
    def run(self) -> CompileReport:
        """Take all stages.

        Raises:
            EpctxError: see `ModelCompiler.compile_to_file`.
        """
        if self.request.config.compile_isolation is not Isolation.NONE:
            return self._run_isolated()
        with closing(self.request):
            return self.run_stages()

    def _run_isolated(self) -> CompileReport:
        """Take all stages in another process."""
        from epctx_core.sessions.isolation import use_isolation

        self.check_destination(has_payloads=False)
        functions = {
            "sink": self.sink,
            "write": self.deliver,
            "locate": self.destination.placement.locate,
        }
        with (
            settle_death(self.destination.folder),
            use_isolation(self.request.config) as isolation,
        ):
            return isolation.call(
                self.request,
                Compile.run_stages,
                {"self": self},
                CompileReport,
                functions,
            )

    def run_stages(self) -> CompileReport:
        """Take all stages in this process; the caller closes the request."""
        with ExitStack() as stack, self.request.cancel.by_interrupt():
            opened = self.open(self.choose())
            stack.enter_context(pause_collection(opened.model.node_count))
            with self.settle(opened) as workspace_of:
                assigned = self.compile(opened, workspace_of)
                with self.report_stage("write"):
                    self.write(assigned)
            return self.make_report()

    def choose(self) -> Chosen:
        """Choose the EPs, and refuse mistakes that do not depend on the source."""
        chosen = choose(self.request, Purpose.EXPORT)
        self.providers = chosen.providers
        self.check_destination(has_payloads=bool(chosen.choices))
        return chosen

    def check_destination(self, *, has_payloads: bool = True) -> None:
        """Raise for a mistake in the output that does not depend on the source."""
        self._resolve_destination("", has_payloads=has_payloads).check_path()

    @property
    def writes_binaries(self) -> bool:
        """True if payloads go into files."""
        return not self.embedded and self.deliver is None

    def _resolve_destination(self, name: str, *, has_payloads: bool) -> Destination:
        return self.destination.resolve(
            name, writes_binaries=has_payloads and self.writes_binaries
        )

    def open(self, chosen: Chosen) -> Opened:
        """Read the source."""
        with self.report_stage("read"), self.time_stage("read"):
            opened = chosen.open()
            share_digests(opened.model.source.weights.values())
        return opened

    @contextmanager
    def settle(self, work: Opened) -> Iterator[WorkspaceOf]:
        """Settle where files go, before an EP is made; give the EPs' workspaces.

        Raises:
            InvalidArgument, Fail: see `Destination.check`.
            InvalidGraph, NotImplementedByProvider: see `find_existing`.
        """
        self.providers = work.providers
        model = work.model
        choices = work.choices
        destination = replace(
            self._resolve_destination(
                model.source.name, has_payloads=bool(choices or model.context_nodes)
            ),
            source_files=tuple(model.source.locations),
            # Of an earlier attempt, if a session reads its model again.
            kept=(),
            copied=(),
        )
        self.existing = find_existing(
            model,
            destination,
            work.config,
            embedded=self.embedded,
            delivered=self.deliver is not None,
        )
        self.destination = self.existing.destination
        self.destination.check(self.name_binaries(choices))
        yield make_private_workspace

    def name_binaries(self, choices: Sequence[ProviderChoice]) -> Mapping[str, str]:
        """Return the binary that this compile writes for each EP, by the EP's name."""
        writers = choices if self.writes_binaries else ()
        return {c.name: self.destination.binary_name(c.binary_suffix) for c in writers}

    def compile(self, work: Opened, workspace_of: WorkspaceOf) -> Assigned:
        """Make the EPs, optimise the model, assign its nodes, and have the partitions
        compiled.
        """
        engine = CpuEngine(replace(work.model.policy))
        started = work.keep_nodes().start(engine, workspace_of)
        self.check_hooks(started)
        with self.time_stage("optimise"):
            started = started.optimise(self.level)
        with self.report_stage("partition"), self.time_stage("partition"):
            assigned = started.assign()
        self.check(assigned)
        with self.time_stage("compile"):
            assigned.compile(partial(self.check, assigned))
        return assigned

    def check_hooks(self, work: Started) -> None:
        """Check that the live EPs can save what they compile, before they are asked for
        anything.

        Raises:
            NotImplementedByProvider: one cannot.
        """
        instances = work.providers.instances
        for ep in list_implementers(instances, "compile"):
            for hook in CONTEXT_HOOKS:
                if not instances.implements(ep, hook):
                    raise NotImplementedByProvider(
                        f"{ep} runs models but cannot save what it compiled: it has "
                        f"no {hook} hook.",
                        ep=ep,
                        hint="Leave it out of the compile; it still runs in sessions.",
                    )

    def check(self, work: Assigned) -> None:
        """Raise if the results of the assignment could not be written."""
        # Nodes of the source may need a feature that no option asks for.
        marks = (self.existing.manifest or NO_MANIFEST).parts
        self.work = replace(work, stages=make_stages(work.config, {COMPILE, *marks}))
        model = work.model
        assignment = work.assignment
        providers = work.providers
        if (
            not assignment.partitions
            and self.flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
        ):
            why = explain_unused_eps(assignment, model, providers.choices)
            raise Fail(
                f"no node of {model.source.where} could be compiled by "
                f"{', '.join(providers.choices) or 'any EP'}.",
                path=model.source.path,
                hint=why.strip() or "Add an EP to the session options.",
            )

        check_names(model, assignment)
        check_mix(work, self.existing)
        check_weights_fit(
            assignment,
            self.destination.placement,
            make_weight_filter(work),
            embedded=self.embedded,
        )

    def write(self, work: Assigned) -> None:
        """Write the context model and its files, all or none."""
        if self.is_written(work):
            self.publish()

    def is_written(self, work: Assigned) -> bool:
        """Return whether there is a context model to write; warn if there is none."""
        if work.assignment.partitions or self.existing.records or self.plain:
            return True
        _log.warning(
            "nothing was compiled of %s, so there is no context model to write.",
            work.model.source.where,
        )
        return False

    def describe(self, outputs: Outputs) -> ContextModel:
        """Have EPs write their payloads and describe their nodes; return the context
        model, not yet written.

        Args:
            outputs: the outputs for payloads.

        Raises:
            PluginError: an EP describes its nodes wrongly.
            Fail, InvalidArgument: see `place_initializers`.
        """
        # Its folder may have changed since the compile began.
        outputs.destination.check_model()
        self.existing.keep(outputs.open_payload)
        self.context = make_context_model(self.work, self.existing, outputs)
        return self.context

    def publish(self) -> None:
        """Describe the model, have EPs read their payloads back, and bring all files to
        their names.

        Raises:
            Fail: the model exists by now, a file belongs to another model, the disk is
                full, or a callback of the host raised.
            PluginError: an EP describes its nodes wrongly, or cannot read what it
                wrote.
            ModelLoadCanceled: the host asked to stop.
        """
        destination = self.destination
        publication = None
        with pause_collection(self.work.model.node_count), ExitStack() as stack:
            if destination.folder is not None:
                publication = Publication(
                    destination.folder,
                    before_writing=report_writing(self.request),
                )
                stack.enter_context(publication)
            outputs = Outputs(
                destination,
                publication,
                embedded=self.embedded,
                in_files=self.writes_binaries,
            )
            with self.time_stage("write"):
                context = self.describe(outputs)
            with self.time_stage("read_back"):
                providers = self.work.providers
                stages = self.work.stages
                stages.check_compiled(self.work.assignment, context.to_read, providers)
                stages.check_written(
                    context.proto,
                    context.to_read,
                    context.written,
                    providers,
                    context.left,
                )
            with self.time_stage("write"):
                self.finish(context, outputs)
                self.work.cancel.raise_if_requested()
                models = [] if destination.model is None else [destination.model]
                if publication is not None and (models or outputs.files):
                    states = publication.commit(models)
                    files = (*self.payloads, *self.files)
                    note_published(states, {file.path: file.digest for file in files})
                if models and any(entry.embedded for entry in context.payloads):
                    note([make_model_receipt(self.files[-1].digest)])

    def finish(self, context: ContextModel, outputs: Outputs) -> None:
        """Hand over payloads, then the model; files are complete, and get their names
        by a commit.

        Raises:
            Fail: a callback raised, or the system refused a step.
            InvalidArgument: the host wrote a file under a name that this compile
                writes.
            ModelLoadCanceled: the host asked to stop.
        """
        model = context.serialize()
        for name in context.named_files:
            if name in {*outputs.files, outputs.destination.model}:
                raise InvalidArgument(
                    f"get_initializer_location_func named the file {name!r}, which "
                    "this compile writes itself.",
                    hint="Write initializers into a file of another name.",
                )

        for name, sink in outputs.in_memory.items():
            self.request.cancel.raise_if_requested()
            if self.deliver is not None:
                deliver(self.deliver, name, sink)
        if self.sink is not None:
            self.sink(self._stop_if_cancelled(model.chunks()))
        self.payloads = tuple(
            OutputFile.from_entry(each)
            for each in context.payloads
            if not each.embedded
        )
        placed = filter(None, [context.initializers])
        self.files = tuple(map(OutputFile.from_entry, placed))
        path = outputs.destination.model
        if outputs.publication is not None and path is not None:
            digest = hashlib.sha256()
            with outputs.publication.create(
                path, replace=self.destination.replace
            ) as file:
                for chunk in model.chunks():
                    digest.update(chunk)
                    file.write(chunk)
            self.files += (
                OutputFile(path=path, bytes=model.size, digest=digest.hexdigest()),
            )

    def make_report(self) -> CompileReport:
        """Return the report; warn if nothing was compiled."""
        work = self.work
        context = self.context
        delivered = self.payloads if self.deliver is not None else ()
        outputs = (*(() if delivered else self.payloads), *self.files)
        required: list[str] = []
        if context is not None:
            required = [
                *(() if delivered else self.existing.files),
                *context.pending,
                *(file.path for file in outputs),
                *context.named_files,
            ]

        # Of a context model what was compiled before counts for nothing.
        is_new = work.assignment.partitions and not work.model.context_nodes
        placement = work.describe_placement()
        warnings = [
            f"{sentence}{explain_unused_eps(work.assignment, work.model, [ep])}"
            for ep, sentence in placement.find_small_shares().items()
            if is_new
        ]
        for warning in warnings:
            _log.warning("%s", warning)
        report = CompileReport(
            output=self.destination.path,
            folder=self.destination.folder,
            outputs=outputs,
            partitions=tuple(map(describe_partition, work.assignment.partitions)),
            total_nodes=placement.total_nodes,
            inside_nodes=placement.inside_nodes,
            assignments={row["ep"]: row["nodes"] for row in placement.eps},
            refusals=tuple(map(describe_refusal, work.assignment.find_refusals())),
            timings=dict(self.seconds),
            required_files=tuple(dict.fromkeys(required)),
            delivered=delivered,
            source_files=() if context is None else context.source_files,
            kept_nodes=tuple(record.name for record in self.existing.records),
            skipped_providers=tuple(work.skipped),
            providers=tuple(c.record for c in work.providers.choices.values()),
            folded_nodes=placement.folded_nodes,
            contradictions=tuple(work.model.types.contradictions.values()),
            warnings=tuple(warnings),
        )
        if not report.compiled:
            _log.warning(
                "nothing was compiled of %s by %s, so %s is a plain model.%s",
                work.model.source.where,
                " or ".join(work.providers.choices) or "any EP",
                "the model" if report.output is None else repr(report.output.name),
                explain_unused_eps(work.assignment, work.model, work.providers.choices),
            )
        return report

    def _stop_if_cancelled(self, chunks: Iterator[memoryview]) -> Iterator[memoryview]:
        for chunk in chunks:
            self.request.cancel.raise_if_requested()
            yield chunk
