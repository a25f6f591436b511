"""`Compile`: one context model on its way, from a host's request to the last file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epctx_core.compiling.destination import Destination, destination_of
from epctx_core.compiling.emit import NO_GRAPHS, ContextModel, GraphsByModel, check_names, make_context_model
from epctx_core.compiling.group import Group, check_shared_options, open_groups
from epctx_core.compiling.initializers import InitializerPlacement, check_weights_fit, placement_of
from epctx_core.compiling.outputs import (
    CompileReport,
    ModelSink,
    OutputFile,
    Outputs,
    make_report,
)
from epctx_core.compiling.provenance import PassThrough, check_mix
from epctx_core.compiling.read_back import read_back
from epctx_core.context.receipts import model_receipt, note, note_published
from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.errors import Fail, InvalidArgument, NotImplementedByProvider, errors_typed
from epctx_core.graph.garbage import collection_paused
from epctx_core.graph.weights import share_digests
from epctx_core.options import GraphOptimizationLevel, OrtCompileApiFlags, SessionOptions
from epctx_core.plugin import EnginePolicy, Purpose
from epctx_core.plugin.hookspecs import CONTEXT_HOOKS
from epctx_core.registry import Registry, default_registry
from epctx_core.sessions.assignment import Assignment, assign_nodes
from epctx_core.sessions.claims import compile_partitions
from epctx_core.sessions.compile_host import CompileCancellation, path_of
from epctx_core.sessions.optimise import optimise_model
from epctx_core.sessions.providers import (
    Progress,
    ProviderChoice,
    ProviderSession,
    WorkspaceOf,
    choose_providers,
    kept_functions,
    no_progress,
    private_workspace,
)
from epctx_core.sessions.source import OpenModel, open_model

if TYPE_CHECKING:
    from epctx_core.context.callbacks import WriteCallback
    from epctx_core.publish.publication import Publication

_log = logging.getLogger("epctx.compile")


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """What a host asks for.

    Attributes:
        session: EPs and options.
        model: the source, a path or bytes.
        destination: where everything goes, as far as it is known before the model is read.
        embedded: whether payloads are stored in the model.
        placement: where the initializers that stay go.
        flags: what is an error.
        level: how far the model is optimised before EPs see it.
        progress: called with (stage, done, total).
        registry: where EPs are looked up.
        sink: gets the bytes of the model; None for the destination's file.
        deliver: the host's write callback; None for files.
        plain: whether a model of which nothing was compiled is written.
    """

    session: SessionOptions
    model: str | os.PathLike[str] | bytes
    destination: Destination
    embedded: bool
    placement: InitializerPlacement
    flags: OrtCompileApiFlags = OrtCompileApiFlags.NONE
    level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL
    progress: Progress = no_progress
    registry: Registry = default_registry
    sink: ModelSink | None = None
    deliver: WriteCallback | None = None
    plain: bool = True


class Compile:
    """One context model, stage by stage; each stage uses what those before it left in the attributes.

    `run` takes all stages. A share group takes them to `compile` and writes its members together. A session that
    exports hands over what its own stages give: it calls `settled`, `start`, `check` and `write`.

    Args:
        request: what the host asks for.
        group: the share group that the model is a member of; None to join one that session options drive, if
            they ask for it.

    Attributes:
        choices: the EPs to compile with.
        providers: the live EPs.
        model: the source; once it is optimised, as EPs see it.
        existing: the EPContext nodes that the source has already.
        destination: where everything goes.
        assignment: which EP takes which nodes.
        seconds: what each stage took.
        cancel: the wish to stop.
        context: the context model; None if none is written.
        payloads: of those written, the ones that are not embedded.
        files: the file for initializers, then the model; those of them that are files of this compile.
    """

    choices: Sequence[ProviderChoice]
    providers: ProviderSession
    model: OpenModel
    existing: PassThrough
    destination: Destination
    assignment: Assignment
    context: ContextModel | None = None
    payloads: tuple[OutputFile, ...] = ()
    files: tuple[OutputFile, ...] = ()

    def __init__(self, request: CompileRequest, group: Group | None = None) -> None:
        self.request = request
        self.config = request.session.config()
        self.group = group
        self.seconds: dict[str, float] = {}
        self.cancel = CompileCancellation(request.session.cancellation)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    @errors_typed("compiling the model")
    def run(self) -> CompileReport:
        """Take all stages.

        Raises:
            EpctxError: see `ModelCompiler.compile_to_file`.
        """
        with ExitStack() as stack, self.cancel.by_interrupt():
            self.choose()
            stack.enter_context(closing(self.providers))
            self.open()
            with (
                collection_paused(self.model.node_count),
                self.settled(self.model, self.choices) as workspace_of,
            ):
                self.compile(workspace_of)
                self.request.progress("write", 0, 1)
                self.write()
                self.request.progress("write", 1, 1)
            return make_report(self)

    def choose(self) -> None:
        """Choose the EPs, and refuse what is wrong whatever the source holds."""
        request = self.request
        session, registry = request.session, request.registry
        self.choices, skipped = choose_providers(session.providers, session, registry, Purpose.EXPORT)
        self.check_place(has_payloads=bool(self.choices))
        self.providers = ProviderSession(session, registry, progress=request.progress, cancel=self.cancel)
        self.providers.skipped = skipped

    def check_place(self, *, has_payloads: bool = True) -> None:
        """Raise for what is wrong with the output whatever the source holds."""
        request = self.request
        if self.config.share_contexts and self.group is None:
            in_memory, delivered = request.sink is not None, request.deliver is not None
            check_shared_options(
                self.config, embedded=request.embedded, delivered=delivered, in_memory=in_memory
            )
        self._destination_for("", has_payloads=has_payloads).check_place()

    def _destination_for(self, name: str, *, has_payloads: bool) -> Destination:
        in_files = has_payloads and not self.request.embedded and self.request.deliver is None
        return self.request.destination.for_model(name, writes_binaries=in_files)

    def open(self) -> None:
        """Read the source."""
        request = self.request
        request.progress("read", 0, 1)
        with self.stage("read"):
            self.model = open_model(request.model, self.config, lambda: kept_functions(self.choices))
        share_digests(self.model.source.weights.values())
        request.progress("read", 1, 1)

    @contextmanager
    def settled(self, model: OpenModel, choices: Sequence[ProviderChoice]) -> Iterator[WorkspaceOf]:
        """Settle where everything goes, and in which share group, before an EP is made; a group is left at the end.

        Gives what EPs share with other models of the group.

        Raises:
            InvalidArgument, Fail: see `Destination.check`; a share group's model that is a context model already.
            InvalidGraph, NotImplementedByProvider: see `PassThrough`.
        """
        self.model, self.choices, request = model, choices, self.request
        destination = replace(
            self._destination_for(model.source.name, has_payloads=bool(choices or model.context_nodes)),
            reads=tuple(model.source.locations),
        )
        with ExitStack() as stack:
            if self.config.share_contexts or self.group is not None:
                # Before it joins: a model that is refused must not begin a new group.
                if model.context_nodes:
                    # Its payloads would not be the group's.
                    raise InvalidArgument(
                        f"{model.source.where} is a context model already (EPContext node "
                        f"{model.context_nodes[0].name!r}), and a share group takes models that are not.",
                        path=model.source.path,
                        hint="Compile the model that it was made from.",
                    )
                # Whether binaries may be written is looked at when the group ends and its models are known.
                destination.check({})
                if self.group is None:
                    self.group = stack.enter_context(open_groups.get().joined(destination, choices))
                    # A session that reads its model again comes here again, and this group may be over by then.
                    stack.callback(setattr, self, "group", None)
                self.group.share_digests(model)
            self.existing = PassThrough(model, self.config)
            self.destination = self.existing.plan(
                destination, embedded=request.embedded, delivered=request.deliver is not None
            )
            if self.group is None:
                named = choices if not request.embedded and request.deliver is None else ()
                self.destination.check({c.name: self.destination.binary_name(c.binary_suffix) for c in named})
            yield private_workspace if self.group is None else self.group.workspace_of

    def compile(self, workspace_of: WorkspaceOf) -> None:
        """Make the EPs, optimise the model, assign its nodes, and have the partitions compiled."""
        progress = self.request.progress
        self.providers.start(
            self.choices,
            purpose=Purpose.EXPORT,
            model=self.model.identity,
            engine=CpuEngine(EnginePolicy(engine=self.config.engine)),
            workspace_of=workspace_of,
        )
        self.start(self.providers)
        with self.stage("optimise"):
            model = optimise_model(self.model, self.providers, self.request.level)
        progress("partition", 0, 1)
        with self.stage("partition"):
            assignment = assign_nodes(model, self.providers, list(self.providers.choices))
        progress("partition", 1, 1)
        self.check(model, assignment)
        with self.stage("compile"):
            compile_partitions(assignment, self.providers, Purpose.EXPORT)

    def start(self, providers: ProviderSession) -> None:
        """Take the live EPs, before they are asked for anything.

        Raises:
            NotImplementedByProvider: an EP cannot save what it compiles.
        """
        for ep in providers.choices:
            # What runs by kernels alone leaves nothing to save.
            for hook in CONTEXT_HOOKS if providers.instances.implements(ep, "compile") else ():
                if not providers.instances.implements(ep, hook):
                    raise NotImplementedByProvider(
                        f"{ep} runs models but cannot save what it compiled: it has no {hook} hook.",
                        ep=ep,
                        hint="Leave it out of the compile; it still runs in sessions.",
                    )
        self.providers = providers

    def check(self, model: OpenModel, assignment: Assignment) -> None:
        """Take the model as EPs see it, and an assignment; raise if what they compile could not be written."""
        self.model, source = model, model.source
        if not assignment.partitions and self.request.flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED:
            refusal = next(iter(assignment.refusals), None)
            raise Fail(
                f"no node of {source.where} could be compiled by {', '.join(self.providers.choices) or 'any EP'}.",
                path=source.path,
                hint=f"{refusal.ep} says: {refusal.reason}."
                if refusal
                else "Add an EP to the session options.",
            )
        check_names(self.model, assignment)
        check_mix(self.model, self.existing.manifest, assignment, self.providers)
        check_weights_fit(
            assignment, self.request.placement, self.providers.weightless, embedded=self.request.embedded
        )
        self.assignment = assignment

    def write(self) -> None:
        """Write the context model and its files, all or none; a share group's member as its group does."""
        is_written = bool(self.assignment.partitions or self.existing.records or self.request.plain)
        if self.group is None:
            if is_written:
                self.publish(self.outputs())
            else:
                _log.warning(
                    "nothing was compiled of %s, so there is no context model to write.",
                    self.model.source.where,
                )
        elif self.config.stop_sharing:
            self.group.stop(self, is_member=is_written)
        elif is_written:
            self.group.publish(self)

    def outputs(self, named: Destination | None = None, publication: Publication | None = None) -> Outputs:
        """Return where the model goes.

        Args:
            named: of a share group, whose binaries are named as this destination's and are the group's business.
            publication: an open one that brings the group's files to their names together.
        """
        return Outputs(
            self.destination if named is None else self.destination.named_as(named),
            self.request,
            self.cancel,
            final=named is None,
            publication=publication,
        )

    def describe(self, outputs: Outputs, earlier: GraphsByModel = NO_GRAPHS) -> ContextModel:
        """Have EPs write their payloads and say their nodes; return the context model, which is nowhere yet.

        Args:
            outputs: where payloads go.
            earlier: of its share group, the models before this one.

        Raises:
            PluginError: an EP describes its nodes wrongly.
            Fail, InvalidArgument: see `place_initializers`.
        """
        kept = self.existing.keep(outputs.open_payload)
        self.context = make_context_model(self, outputs, kept, earlier)
        return self.context

    def publish(self, outputs: Outputs, earlier: GraphsByModel = NO_GRAPHS) -> ContextModel:
        """Describe the model, have EPs read their payloads back, and bring all files to their names.

        Raises:
            Fail: the model exists meanwhile, a file belongs to another model, the disk is full, a callback of
                the host's raised.
            PluginError: an EP describes its nodes wrongly, or does not read what it wrote.
            ModelLoadCanceled: the host asked to stop.
        """
        with collection_paused(self.model.node_count), outputs:
            with self.stage("write"):
                context = self.describe(outputs, earlier)
            with self.stage("read_back"):
                read_back(
                    context.proto,
                    context.to_read,
                    context.written,
                    self.providers,
                    source_tensors=context.source_tensors,
                )
            with self.stage("write"):
                model = self.finish(context, outputs)
                note_published(outputs.states, context.digests)
                if model is not None and any(entry.embedded for entry in context.payloads):
                    note([model_receipt(model.digest)])
        return context

    def finish(self, context: ContextModel, outputs: Outputs) -> OutputFile | None:
        """Hand over the model and what belongs to it; return the model's file, None without one."""
        model = outputs.finish(context.serialized(embedded=outputs.embedded), context.named_files)
        self.payloads = tuple(OutputFile.of(entry) for entry in context.payloads if not entry.embedded)
        weights = [] if context.initializers is None else [OutputFile.of(context.initializers)]
        self.files = (*weights, *([] if model is None else [model]))
        return model


@errors_typed("loading the model")
def session_export(
    model: str | os.PathLike[str] | bytes, session: SessionOptions, registry: Registry
) -> Compile:
    """Return what writes the context model of a session; never over one that exists, as in ONNX Runtime.

    Args:
        model: what the session runs, a path or bytes.
        session: the session's options.
        registry: where EPs are looked up.

    Raises:
        InvalidArgument: options that contradict a share group, or an output path that names a folder.
        Fail: the context model exists, or the system refuses its path.
    """
    config = session.config()
    file = config.external_initializers_file
    export = Compile(
        CompileRequest(
            session=session,
            model=model,
            destination=destination_of(
                path_of(model), config.context_file_path, replace=False, initializers=file
            ),
            embedded=config.embed,
            placement=placement_of(None, 0, None, file),
            registry=registry,
            plain=False,
        )
    )
    export.check_place()
    return export
