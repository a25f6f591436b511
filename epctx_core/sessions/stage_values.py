"""Values that the stages of a compile and a load hand on.

    Request -> Chosen -> Opened -> Routed -> Started -> Assigned

Each is frozen, has all that the one before it has, and makes the next by a method, so
that no stage can be left out by mistake. A compile leaves EPContext nodes where they
are (`Opened.keep_nodes`); only a model without any is optimised.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from epctx_core.context.digests import IN_PLACE
from epctx_core.context.manifest import NO_MANIFEST, find_manifest
from epctx_core.context.payload_reader import find_entry
from epctx_core.context.scratch import make_scratch_folder
from epctx_core.errors import InvalidGraph
from epctx_core.frozen import dataclass
from epctx_core.plugin import ProviderContext, Purpose
from epctx_core.plugin.provider import no_span
from epctx_core.process import pause_collection
from epctx_core.registry.guard import blame
from epctx_core.sessions.assignment import begin_assignment, complete_assignment
from epctx_core.sessions.placement import Placement, describe_placement
from epctx_core.sessions.providers import (
    ProviderSession,
    ep_logger,
    make_private_workspace,
)
from epctx_core.sessions.routing import (
    ProviderChoice,
    SkippedProvider,
    check_availability,
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
from epctx_core.sessions.stages import Request
from epctx_core.sessions.workspaces import SessionWorkspace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from epctx_core.context.digests import DigestChecks
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.engines.cpu_engine import CpuEngine
    from epctx_core.graph.functions import FunctionId
    from epctx_core.graph.mapping import OpenedFiles
    from epctx_core.graph.model_io import SourceModel
    from epctx_core.options import GraphOptimizationLevel
    from epctx_core.plugin import (
        CompiledPartition,
        ContextNode,
        ContextReader,
        ModelIdentity,
    )
    from epctx_core.registry import PluginRecord
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.providers import WorkspaceOf
    from epctx_core.sessions.routing import Outcome
    from epctx_core.sessions.source import OpenModel


@dataclass(frozen=True, kw_only=True, eq=False)
class Chosen(Request):
    """Request with its EPs looked up.

    Attributes:
        providers: gets the instances of the EPs.
        outcomes: the result of the search for each EP that the host named.
        purpose: of the EPs; None while the model has to decide it.
        choices: the EPs.
        skipped: optional EPs that could not be had.
    """

    providers: ProviderSession
    outcomes: Sequence[Outcome] = ()
    purpose: Purpose | None = None
    choices: Sequence[ProviderChoice] = ()
    skipped: Sequence[SkippedProvider] = ()

    def find_kept_functions(self) -> Collection[FunctionId]:
        """Return the functions that EPs keep as calls."""
        # Such a call is a single node to all other EPs: only those count that will be
        # there.
        choices = self.choices
        if self.purpose is None:
            choices = _admit(self, self.outcomes, Purpose.RUN)["choices"]
        functions: set[FunctionId] = set()
        for choice in choices:
            with blame(choice.record, "keeps_functions"):
                functions.update(choice.cls.keeps_functions)
        return functions

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
    ) -> Opened:
        """Type and index the model that was read; see `read_source`."""
        model = index_source(source, self.config)
        model.checks = checks
        model.opened = opened
        warn_of_declarations(model)
        return Opened(**vars(self), model=model)

    def open(self) -> Opened:
        """Read the model, check, type and index it, its files all of one state.

        Raises:
            EpctxError: see `read_source`, `index_source`.
        """

        def read(opened: OpenedFiles) -> Opened:
            return self.index_source(self.read_source(opened), opened)

        return read_one_state(read)

    def check_compatibility(self, infos: Mapping[str, Sequence[str]]) -> None:
        """Have each EP validate its texts about the model, before any instance of it
        exists.

        Args:
            infos: see `read_compatibility_info`.

        Raises:
            InvalidGraph: an EP says that it cannot run the model any more.
            NotImplementedByProvider: nor is it available on this machine.
            Fail: it recommends to compile again, and the host made that an error.
            PluginError: it raised, or did not return a verdict.
        """
        for choice in self.choices:
            for info in infos.get(choice.name, ()):
                self.stages.validate(self, choice, info)

    def make_context(
        self,
        choice: ProviderChoice,
        purpose: Purpose,
        model: ModelIdentity,
        engine: CpuEngine,
        workspace: SessionWorkspace | None = None,
    ) -> ProviderContext:
        """Return the context of an EP's instance."""
        instances = self.providers.instances
        context = ProviderContext(
            options=choice.options,
            session_config=self.session.config_entries,
            purpose=purpose,
            target=None,
            model=model,
            logger=ep_logger(choice.name),
            cancel=self.cancel,
            progress=self.progress,
            scratch=make_scratch_folder,
            engine=engine,
            workspace=workspace or SessionWorkspace(),
            intra_op_num_threads=self.session.intra_op_num_threads,
            span=partial(instances.span, category="ep", ep=choice.name)
            if instances.is_observed
            else no_span,
        )
        return self.stages.make_context(self, choice, context)


def choose(
    request: Request, purpose: Purpose | None, providers: ProviderSession | None = None
) -> Chosen:
    """Look up, import and check the EPs that the host named; see `Request.look_up`.

    Args:
        request: the host's.
        purpose: of the EPs; None for a session, which loads a context model and runs
            any other: `Opened.route` decides.
        providers: gets the instances; None for new ones.

    Raises:
        EpctxError: see `Request.make_providers` and `Request.look_up`.
    """
    providers = providers or request.make_providers()
    outcomes = request.look_up()
    return Chosen(
        **vars(request),
        providers=providers,
        outcomes=outcomes,
        **_admit(request, outcomes, purpose),
    )


def _admit(
    request: Request, outcomes: Sequence[Outcome], purpose: Purpose | None
) -> dict[str, Any]:
    """Return which of the EPs that were looked up there are for a purpose, as fields of
    a `Chosen`.
    """
    admitted = request.stages.admit(request, outcomes, purpose)
    return {
        "purpose": purpose,
        "choices": [each for each in admitted if isinstance(each, ProviderChoice)],
        "skipped": [each for each in admitted if isinstance(each, SkippedProvider)],
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened(Chosen):
    """Request with its model read.

    Attributes:
        model: the model; once it is optimised, as EPs see it.
    """

    model: OpenModel

    def route(self) -> Routed:
        """Read the manifest, and give each EPContext node to the EP that takes its
        source.

        Raises:
            InvalidGraph: the manifest is damaged.
            EpctxError: see `route_nodes`.
        """
        source = self.model.source
        limit = self.config.input_budget.manifest_entries
        nodes = self.model.context_nodes
        manifest = find_manifest(
            source.proto, source.path, lambda: source.digest, limit, nodes
        )
        routing = route_nodes(self, manifest, nodes)
        return Routed(**routing, manifest=manifest)

    def keep_nodes(self) -> Routed:
        """Give no EPContext node to an EP: they stay as they are."""
        return Routed(**vars(self))


def route_nodes(
    chosen: Chosen, manifest: Manifest | None, nodes: Sequence[ContextNodeRecord]
) -> dict[str, Any]:
    """Give each EPContext node to the EP that takes its source.

    Where sources decide, EPs are added: those of the nodes, and those that kept others
    in the model when it was compiled, as far as they are there.

    Args:
        chosen: the EPs.
        manifest: what the model says about its payloads, if it does.
        nodes: the nodes.

    Returns:
        The fields of the request with its EPs, and `nodes` and `keepers` of a `Routed`.

    Raises:
        NotImplementedByProvider: no EP takes a node.
        InvalidArgument, PluginError: see `choose`; an EP is broken, or several could
            take a node and the host has not chosen.
    """
    decided = dict(vars(chosen))
    if chosen.purpose is None:
        purpose = Purpose.LOAD if nodes else Purpose.RUN
        decided |= _admit(chosen, chosen.outcomes, purpose)
    stated = manifest or NO_MANIFEST
    choices = decided["choices"] = list(decided["choices"])

    def add(record: PluginRecord) -> None:
        if record.name not in [choice.name for choice in choices]:
            choices.append(choose_provider(record, {}, chosen.session, chosen.registry))

    def find(node: ContextNodeRecord) -> str:
        record = _find_taker(node, chosen, decided, stated)
        add(record)
        return record.name

    eps: dict[str, str] = {}
    routed: dict[str, list[ContextNodeRecord]] = {}
    for node in nodes:
        ep = eps.get(node.source) or chosen.stages.route(node, find)
        if ep is not None:
            eps[node.source] = ep
            routed.setdefault(ep, []).append(node)

    # None if the host named all that may be used.
    keepers = []
    for name in stated.keepers if chosen.requested is None else ():
        keeper = find_keeper(name, chosen.registry, decided["purpose"])
        if keeper is not None:
            keepers.append(keeper.name)
            add(keeper)
    return {**decided, "nodes": routed, "keepers": keepers}


def _find_taker(
    node: ContextNodeRecord,
    chosen: Chosen,
    decided: Mapping[str, Any],
    manifest: Manifest,
) -> PluginRecord:
    """Return the EP that takes an EPContext node.

    Args:
        node: the node.
        chosen: says what the host asked for.
        decided: the EPs that there are, as fields of a `Chosen`.
        manifest: what the model says about its payloads.

    Raises:
        NotImplementedByProvider: there is none.
    """
    choices: Sequence[ProviderChoice] = decided["choices"]
    if chosen.requested is None:
        maker = find_maker(node.source, manifest.providers, chosen.registry)
        among = [maker] if maker else None
    else:
        # Only EPs that the host allows are imported.
        among = [choice.record for choice in choices]
    record = chosen.registry.route(node.source, among=among)
    if record is None:
        raise no_provider_error(
            node,
            [choice.name for choice in choices],
            decided["skipped"],
            chosen.registry,
        )
    return record


@dataclass(frozen=True, kw_only=True, eq=False)
class Routed(Opened):
    """Request with an EP for each EPContext node of its model.

    Attributes:
        manifest: what the model says about its payloads, if it does.
        nodes: EP name to the EPContext nodes that it loads.
        keepers: EPs that kept others in the model when it was compiled.
    """

    manifest: Manifest | None = None
    nodes: Mapping[str, Sequence[ContextNodeRecord]] = field(default_factory=dict)
    keepers: Sequence[str] = ()

    @property
    def settled(self) -> Collection[str]:
        """EPs that decided what to compile when the model was compiled."""
        return {*self.nodes, *self.keepers}

    def start(
        self, engine: CpuEngine, workspace_of: WorkspaceOf = make_private_workspace
    ) -> Started:
        """Make the EPs' instances, which are lent an engine.

        The workspaces that `workspace_of` returns are closed with them.

        Raises:
            NotImplementedByProvider: an EP is not available for the purpose.
            PluginError: an EP's constructor or its `availability` raised.
        """
        purpose = self.purpose or Purpose.RUN
        for choice in self.choices:
            check_availability(choice.record, purpose, self.registry)
            workspace = workspace_of(choice)
            self.providers.keep(workspace)
            context = self.make_context(
                choice, purpose, self.model.identity, engine, workspace
            )
            self.providers.add(choice, context)
        return Started(**vars(self), engine=engine)


def find_contained(
    chosen: Chosen,
    nodes: Mapping[str, Sequence[ContextNodeRecord]],
    manifest: Manifest | None,
) -> str:
    """Return an EP whose session gets a process of its own because a payload without
    digests could end this one; empty if there is none.
    """
    for choice in chosen.choices if not chosen.config.trust_unverified else ():
        if not choice.cls.needs_verified_payloads:
            continue
        for record in nodes.get(choice.name, ()):
            if record.main_context and find_entry(record, manifest) is None:
                return choice.name
    return ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Started(Routed):
    """Request with instances of its EPs.

    Attributes:
        engine: the engine that EPs are lent, and that runs what no EP takes.
    """

    engine: CpuEngine

    def load_nodes(
        self, ep: str, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Have an EP load its nodes; see `ProviderSession.load_nodes`.

        An EP that refuses the payload of another distribution of its name cannot know
        whose it is: the manifest does.
        """
        load = partial(self._load_nodes, ep, nodes, reader)
        return self.stages.load(ep, nodes, load)

    def _load_nodes(
        self, ep: str, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
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

    def optimise(self, level: GraphOptimizationLevel | None) -> Self:
        """Have plugins of the host, the engine and EPs change the model; see
        `optimise_model`.
        """
        # A load of a context model does not need it.
        from epctx_core.sessions.optimise import optimise_model

        model = optimise_model(self.model, self.providers, level, self.engine)
        return replace(self, model=model)

    def assign(self, settled: Collection[str] = ()) -> Assigned:
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
        assigned = Assigned(
            **vars(self), assignment=begin_assignment(self.model), asked_less=settled
        )
        assigned.ask(self.providers.instances.names)
        return assigned


@dataclass(frozen=True, kw_only=True, eq=False)
class Assigned(Started):
    """Request with the nodes of its model assigned to EPs.

    Attributes:
        assignment: the nodes that each EP takes; gets the compiled partitions.
        asked_less: EPs that are asked only if they keep nodes in models.
    """

    assignment: Assignment
    asked_less: Collection[str] = ()

    def ask(self, eps: Sequence[str]) -> None:
        """Ask some EPs for their claims, and complete the assignment; see
        `Started.assign`.
        """
        with pause_collection(self.model.node_count):
            for ep in eps:
                compiles = ep not in self.asked_less
                if compiles or self.providers.choices[ep].cls.keeps_nodes:
                    # Most loads ask no EP.
                    from epctx_core.sessions.claims import ask_ep

                    ask_ep(self.assignment, ep, self.providers, compiles=compiles)

        complete_assignment(
            self.assignment, self.config.node_name_prefix, len(self.model.context_nodes)
        )

    def compile(self, check: Callable[[], object]) -> Assignment:
        """Have each EP compile its partitions; `Assignment.compiled` gets the results.

        An export compiles none of nodes that stay in the model.

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

        purpose = self.purpose or Purpose.RUN
        compile_all(self.assignment, self.providers, purpose, self.stages, ask_again)
        self.cancel.raise_if_requested()
        return self.assignment

    def describe_placement(self) -> Placement:
        """Return the nodes of each EP."""
        records = {ep: choice.record for ep, choice in self.providers.choices.items()}
        loaded = {ep: len(nodes) for ep, nodes in self.nodes.items()}
        # A compile does not look for the EPs of nodes that it keeps.
        loaded = loaded or Counter(node.source for node in self.model.context_nodes)
        return describe_placement(self.model, self.assignment, records, loaded)
