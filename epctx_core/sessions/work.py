"""`Work`: one model and the EPs that work on it, stage by stage."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from epctx_core.context.digests import IN_PLACE
from epctx_core.context.manifest import NO_MANIFEST, find_manifest
from epctx_core.context.payload_reader import find_entry
from epctx_core.errors import Fail, InvalidGraph
from epctx_core.graph.mapping import CHUNK
from epctx_core.plugin import Purpose
from epctx_core.process import pause_collection
from epctx_core.registry.guard import blame
from epctx_core.sessions.assignment import begin_assignment, complete_assignment
from epctx_core.sessions.host import CompileCancellation
from epctx_core.sessions.placement import Placement, describe_placement
from epctx_core.sessions.providers import (
    ProviderSession,
    check_progress,
    make_private_workspace,
)
from epctx_core.sessions.routing import (
    accept,
    choose_provider,
    find_keeper,
    find_maker,
    find_other_maker,
    no_provider_error,
)
from epctx_core.sessions.source import (
    index_source,
    read_one_state,
    read_source,
    warn_of_declarations,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from epctx_core.context.digests import DigestChecks
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.payload_reader import PayloadReader
    from epctx_core.engines.cpu_engine import CpuEngine
    from epctx_core.graph.functions import FunctionId
    from epctx_core.graph.mapping import ModelInput, OpenedFiles
    from epctx_core.graph.model_io import SourceModel
    from epctx_core.options import GraphOptimizationLevel, SessionOptions
    from epctx_core.plugin import CompiledPartition, ContextNode, ContextReader
    from epctx_core.registry import PluginRecord, Registry
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.providers import Progress, WorkspaceOf
    from epctx_core.sessions.routing import (
        ProviderChoice,
        ProviderRequest,
        SkippedProvider,
    )
    from epctx_core.sessions.source import OpenModel

_log = logging.getLogger("epctx.session")


class Work:
    """One model and the EPs that work on it, stage by stage.

    The stages, in order: `choose`, `open`, `route`, `start`, `optimise`, `assign`,
    `compile`, `close`. Each returns its value and keeps it for those after it. Drivers
    skip stages that they do not need: a compile routes no nodes, a load of a context
    model optimises nothing, and a model can be opened without any EP.

    Args:
        source: the model, a path or bytes.
        session: the host's options.
        registry: the registry of EPs.
        requested: the EPs that the host named; None to let the nodes' sources decide.
        progress: called with (stage, done, total); a total of 0 says that `done` are
            bytes written.

    Attributes:
        config: the host's options, read.
        cancel: the flag that EPs poll.
        purpose: of the EPs.
        choices: the EPs.
        skipped: optional EPs that could not be had.
        providers: their instances.
        model: the model; once it is optimised, as EPs see it.
        manifest: what the model says about its payloads, if it does.
        nodes: EP name to the EPContext nodes that it loads.
        readers: EP name to the reader of its payloads, if they were read before.
        keepers: EPs that kept others in the model when it was compiled.
        engine: the engine that EPs are lent, and that runs what no EP takes.
        assignment: the nodes that each EP takes.
        written: bytes of files so far.
    """

    model: OpenModel
    engine: CpuEngine
    assignment: Assignment
    written = 0

    def __init__(
        self,
        source: ModelInput,
        session: SessionOptions,
        registry: Registry,
        requested: Sequence[ProviderRequest] | None,
        progress: Progress = check_progress,
    ) -> None:
        self.source = source
        self.session = session
        self.registry = registry
        self.requested = requested
        self.progress = progress
        self.cancel = CompileCancellation(session.cancellation)
        self.config = session.config()
        self._reset()

    def _reset(self) -> None:
        self.purpose = Purpose.RUN
        self.choices: list[ProviderChoice] = []
        self.skipped: tuple[SkippedProvider, ...] = ()
        self.manifest: Manifest | None = None
        self.nodes: dict[str, list[ContextNodeRecord]] = {}
        self.readers: dict[str, PayloadReader] = {}
        self.keepers: list[str] = []
        self._eps_by_source: dict[str, str] = {}

    def before_writing(self, size: int) -> None:
        """Count the bytes of a piece that is about to be written; report every 8 MiB.

        Raises:
            ModelLoadCanceled: the host asked to stop.
        """
        self.cancel.raise_if_requested()
        self.written += size
        # True where a multiple was passed: EPs write pieces of any size.
        if self.written % CHUNK < size:
            self.progress("write", self.written, 0)

    def begin(self) -> None:
        """Begin anew: no EP is chosen, and nothing is open.

        Raises:
            EpctxError: a host plugin cannot be had; see `list_host_plugins`.
        """
        self._reset()
        self.providers = ProviderSession(
            self.session,
            self.registry,
            progress=self.progress,
            cancel=self.cancel,
            config=self.config,
        )

    def choose(self, purpose: Purpose | None) -> Sequence[ProviderChoice]:
        """Begin anew: look up, import and check the EPs that the host named.

        Args:
            purpose: of the EPs; None for a session, which loads a context model and
                runs any other: `route` decides.

        Raises:
            EpctxError: see `begin`.
            InvalidArgument, PluginError: see `ProviderSession.look_up`.
        """
        self.begin()
        self._search = self.providers.look_up(self.requested or ())
        self._is_decided = purpose is not None
        self.admit(purpose)
        return self.choices

    def admit(self, purpose: Purpose | None) -> None:
        """Decide the EPs' purpose, None for none yet, and which of them there are for
        it.
        """
        self.purpose = purpose or Purpose.RUN
        self.choices, self.skipped = self.providers.admit(self._search, purpose)

    def open(self) -> OpenModel:
        """Read the model, check, type and index it, its files all of one state.

        Raises:
            EpctxError: see `read_source`, `index_source`.
        """

        def read(opened: OpenedFiles) -> OpenModel:
            return self.index_source(self.read_source(opened), opened)

        return read_one_state(read)

    def read_source(
        self, opened: OpenedFiles, checks: DigestChecks = IN_PLACE
    ) -> SourceModel:
        """Read and check the model; see `read_source`.

        Args:
            opened: gets the files that are opened; see `read_one_state`.
            checks: of a load, for files that are checked once.
        """
        return read_source(
            self.source,
            self.config,
            self.find_kept_functions,
            checks,
            opened=opened,
            digested=bool(self.choices),
        )

    def index_source(
        self,
        source: SourceModel,
        opened: OpenedFiles,
        checks: DigestChecks = IN_PLACE,
    ) -> OpenModel:
        """Type and index the model that was read; see `read_source`."""
        self.model = index_source(source, self.config)
        self.model.checks = checks
        self.model.opened = opened
        warn_of_declarations(self.model)
        return self.model

    def find_kept_functions(self) -> Collection[FunctionId]:
        """Return the functions that EPs keep as calls."""
        # Such a call is a single node to all other EPs: only those count that will be
        # there.
        if self.choices and not self._is_decided:
            self.admit(self.purpose)
        functions: set[FunctionId] = set()
        for choice in self.choices:
            with blame(choice.record, "keeps_functions"):
                functions.update(choice.cls.keeps_functions)
        return functions

    def route(self) -> Mapping[str, Sequence[ContextNodeRecord]]:
        """Read the manifest, and give each EPContext node to the EP that takes its
        source.

        Raises:
            InvalidGraph: the manifest is damaged.
            EpctxError: see `route_nodes`.
        """
        source = self.model.source
        limit = self.config.input_budget.manifest_entries
        self.manifest = find_manifest(
            source.proto, source.path, lambda: source.digest, limit
        )
        self.route_nodes(self.model.context_nodes)
        return self.nodes

    def route_nodes(self, nodes: Sequence[ContextNodeRecord]) -> None:
        """Give each EPContext node to the EP that takes its source.

        Where sources decide, EPs are added: those of the nodes, and those that kept
        others in the model when it was compiled, as far as they are there.

        Raises:
            NotImplementedByProvider: no EP takes a node.
            InvalidArgument, PluginError: see `ProviderSession.look_up`.
        """
        if not self._is_decided:
            self.admit(Purpose.LOAD if nodes else Purpose.RUN)
        for node in nodes:
            self.route_node(node)
        self._add_keepers()

    def route_node(self, node: ContextNodeRecord) -> None:
        """Give a node to the EP that takes its source.

        Raises:
            NotImplementedByProvider: no EP does.
            PluginError: the EP is broken, or several could take it and the host has not
                chosen.
        """
        source = node.source
        if source not in self._eps_by_source:
            # Only EPs that the host allows are imported.
            among: list[PluginRecord] | None = [c.record for c in self.choices]
            if self.requested is None:
                makers = (self.manifest or NO_MANIFEST).providers
                maker = find_maker(source, makers, self.registry)
                among = None if maker is None else [maker]
            record = self.registry.route(source, among=among)
            if record is None:
                raise no_provider_error(
                    node,
                    [choice.name for choice in self.choices],
                    self.skipped,
                    self.registry,
                )
            self._add_choice(record)
            self._eps_by_source[source] = record.name
        self.nodes.setdefault(self._eps_by_source[source], []).append(node)

    def _add_keepers(self) -> None:
        """Add the EPs that kept nodes in the model when it was compiled, as far as they
        are there; none if the host named all that may be used.
        """
        names = (self.manifest or NO_MANIFEST).keepers
        for ep in names if self.requested is None else ():
            choice = find_keeper(ep, self.registry, self.purpose)
            if choice is not None:
                self.keepers.append(choice.name)
                self._add_choice(choice)

    def _add_choice(self, record: PluginRecord) -> None:
        """Add an EP that the host did not name, unless it is there."""
        if all(choice.name != record.name for choice in self.choices):
            self.choices.append(
                choose_provider(record, {}, self.session, self.registry)
            )

    @property
    def settled(self) -> Collection[str]:
        """EPs that decided what to compile when the model was compiled."""
        return {*self.nodes, *self.keepers}

    def check_compatibility(self, infos: Mapping[str, Sequence[str]]) -> None:
        """Have each EP validate its texts about the model; see `validate`.

        Called before any EP instance exists.

        Args:
            infos: see `read_compatibility_info`.
        """
        for choice in self.choices:
            for info in infos.get(choice.name, ()):
                self.validate(choice, info)

    def validate(self, choice: ProviderChoice, info: str) -> None:
        """Have an EP validate its text about the model; log a warning where it
        recommends to compile again.

        Raises:
            InvalidGraph: the EP says that it cannot run the model any more.
            NotImplementedByProvider: nor is it available on this machine.
            Fail: it recommends to compile again, and the host made that an error.
            PluginError: it raised, or did not return a verdict.
        """
        reason = accept(choice, info, self.registry)
        if reason and self.config.fail_on_suboptimal:
            hint = "Compile the source model again."
            raise Fail(reason, ep=choice.name, hint=hint)
        if reason:
            _log.warning("%s", reason)

    def find_contained(self) -> str:
        """Return an EP whose session gets a process of its own because a payload
        without digests could end this one; empty if there is none.
        """
        if self.config.trust_unverified:
            return ""
        contained = (
            choice.name
            for choice in self.choices
            for record in self.nodes.get(choice.name, ())
            if choice.cls.needs_verified_payloads and record.main_context
            if find_entry(record, self.manifest) is None
        )
        return next(contained, "")

    def start(
        self,
        engine: CpuEngine,
        workspace_of: WorkspaceOf = make_private_workspace,
    ) -> ProviderSession:
        """Make the EPs' instances, which are lent an engine; see
        `ProviderSession.start`.
        """
        self.engine = engine
        self.providers.start(
            self.choices,
            purpose=self.purpose,
            model=self.model,
            engine=engine,
            workspace_of=workspace_of,
        )
        return self.providers

    def load_nodes(
        self, ep: str, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Have an EP load its nodes; see `ProviderSession.load_nodes`.

        An EP that refuses the payload of another distribution of its name cannot know
        whose it is: the manifest does.
        """
        purpose = Purpose.EXPORT if self.purpose is Purpose.EXPORT else Purpose.LOAD
        try:
            return self.providers.load_nodes(ep, nodes, reader, purpose)
        except InvalidGraph as error:
            record = self.providers.choices[ep].record
            maker = find_other_maker((self.manifest or NO_MANIFEST).providers, record)
            # What has a path is wrong with a file, for whichever distribution.
            if maker and not error.path:
                error.hint = (
                    f"{maker} made it: install that if it is missing, and name it "
                    f'"{maker}:{ep}" among the providers.'
                )
            raise

    def optimise(self, level: GraphOptimizationLevel | None) -> OpenModel:
        """Have plugins of the host, the engine and EPs change the model; see
        `optimise_model`.
        """
        # A load of a context model does not need it.
        from epctx_core.sessions.optimise import optimise_model

        self.model = optimise_model(self.model, self.providers, level, self.engine)
        return self.model

    def assign(self, settled: Collection[str] = ()) -> Assignment:
        """Ask EPs for their claims and make partitions of them.

        Each EP is asked once for each graph, for subgraphs before the graph that holds
        them. No EP can claim existing EPContext nodes.

        Args:
            settled: EPs that are asked only if they keep nodes in models: of their
                claims only those with `keep_nodes` count.

        Raises:
            PluginError: the result of an EP breaks the contract.
        """
        self.cancel.raise_if_requested()
        self.assignment = begin_assignment(self.model)
        self._settled = settled
        self.ask(self.providers.instances.names)
        return self.assignment

    def describe_placement(self) -> Placement:
        """Return the nodes of each EP, once they are assigned."""
        records = {ep: choice.record for ep, choice in self.providers.choices.items()}
        loaded = {ep: len(nodes) for ep, nodes in self.nodes.items()}
        # A compile does not look for the EPs of nodes that it keeps.
        loaded = loaded or Counter(node.source for node in self.model.context_nodes)
        return describe_placement(self.model, self.assignment, records, loaded)

    def ask(self, eps: Sequence[str]) -> None:
        """Ask some EPs for their claims, and complete the assignment; see `assign`."""
        with pause_collection(self.model.node_count):
            for ep in eps:
                compiles = ep not in self._settled
                if compiles or self.providers.choices[ep].cls.keeps_nodes:
                    # Most loads ask no EP.
                    from epctx_core.sessions.claims import ask_ep

                    ask_ep(self.assignment, ep, self.providers, compiles=compiles)

        complete_assignment(
            self.assignment, self.config.node_name_prefix, len(self.model.context_nodes)
        )

    def compile(self, check: Callable[[], object]) -> Assignment:
        """Have each EP compile its partitions; `Assignment.compiled` gets the results.

        An export compiles none whose nodes stay in the model.

        Args:
            check: called where nodes went to other EPs because one failed.

        Raises:
            EpctxError: see `compile_partitions`; raised by `check`.
        """
        # Most loads compile nothing.
        from epctx_core.sessions.claims import compile_all

        def ask_again(eps: Sequence[str]) -> None:
            self.ask(eps)
            check()

        compile_all(self.assignment, self.providers, self.purpose, ask_again)
        self.cancel.raise_if_requested()
        return self.assignment

    def close(self) -> None:
        """Shut the EPs down; do nothing if there are none, or if that is done."""
        if hasattr(self, "providers"):
            self.providers.close()
