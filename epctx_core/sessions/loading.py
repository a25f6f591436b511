"""Loading: routing EPContext nodes to EPs by their sources, finding their payloads,
making a step of each.

The text under `ep_compatibility_info.<EP name>` in the model's metadata is the EP's
own; only that EP validates it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from epctx_core.context.manifest import Manifest, read_compatibility_info
from epctx_core.context.paths import ModelFolder, is_folder_name
from epctx_core.context.payload_reader import (
    PayloadReader,
    Reading,
    find_entry,
    make_plugin_nodes,
)
from epctx_core.errors import (
    EpctxError,
    Fail,
    InvalidArgument,
    InvalidGraph,
    NotImplementedByProvider,
)
from epctx_core.options import DataReader, Isolation, SessionConfig, SessionOptions
from epctx_core.plugin import Compatibility, Purpose
from epctx_core.registry.records import is_same_distribution
from epctx_core.sessions.plan import RunStep, StepSpec, add_checks
from epctx_core.sessions.providers import (
    check_availability,
    choose_provider,
    choose_providers,
    stem,
)

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.weightless import SourceWeights
    from epctx_core.graph.index import GraphIndex
    from epctx_core.plugin import (
        CompiledPartition,
        ContextNode,
        ContextReader,
        TensorView,
    )
    from epctx_core.registry import PluginRecord, Registry
    from epctx_core.sessions.providers import (
        ProviderChoice,
        ProviderSession,
        SkippedProvider,
    )
    from epctx_core.sessions.source import OpenModel

_log = logging.getLogger("epctx.session")

_UNSUPPORTED_HINT = (
    "Compile the source model again with the EP that is installed here, or give the "
    "options that describe the device it was compiled for."
)
_WEIGHTS_ONLY = (
    " 'session.model_external_initializers_file_folder_path' says where weights are, "
    "not context binaries."
)


def find_context_folder(
    model: OpenModel, config: SessionConfig, *, compiles: bool = False
) -> ModelFolder | None:
    """Return the folder of context binaries: that of `ep.context_file_path`, else the
    model's.

    For a compile that option says where the new model goes, so that a model out of a
    file has them beside it, and the host's callback is for loads. None for a model from
    bytes that needs none, or whose payloads the callback reads.

    Raises:
        InvalidArgument: a model from bytes that names files, without the option.
    """
    path = model.source.path
    if compiles and path is not None:
        return ModelFolder(path.parent, path)
    folder = find_folder(path, config)
    for node in model.context_nodes if folder is None else ():
        check_has_folder(
            node, replace(config, data_reader=None) if compiles else config
        )
    return folder


def find_folder(path: Path | None, config: SessionConfig) -> ModelFolder | None:
    """Return the folder of a model's context binaries; None for one from bytes, without
    the option.
    """
    option = config.context_file_path
    if option is not None:
        return ModelFolder(
            Path(option) if is_folder_name(option) else Path(option).parent
        )
    return None if path is None else ModelFolder(path.parent, path)


def check_has_folder(node: ContextNodeRecord, config: SessionConfig) -> None:
    """Raise InvalidArgument if a node of a model without a folder names a file that no
    callback reads.
    """
    if node.file_name is not None and config.data_reader is None:
        raise InvalidArgument(
            f"the model was given as bytes, and its EPContext node {node.name!r} "
            f"keeps its payload in the file {node.file_name!r}.",
            node=node.name,
            hint=(
                "Set the session option 'ep.context_file_path' to the path the model "
                "would have."
            )
            + (_WEIGHTS_ONLY if config.external_initializers_folder else ""),
        )


def make_tensor_source(
    records: Iterable[ContextNodeRecord],
    folder: ModelFolder | None,
    config: SessionConfig,
    manifest: Manifest | None,
) -> Callable[[str], TensorView]:
    """Return a function that finds a weight that payloads left in the source model; it
    opens files when it is called.
    """

    @cache
    def weights() -> SourceWeights:
        # Most payloads hold their weights themselves.
        from epctx_core.context.weightless import SourceWeights

        return SourceWeights(
            records,
            manifest=manifest,
            folder=folder,
            path=config.source_model_path,
            buffer=config.source_model_buffer,
            weights_folder=config.external_initializers_folder,
        )

    return lambda name: weights().tensor(name)


def make_reading(
    model: OpenModel, config: SessionConfig, data_reader: DataReader | None = None
) -> Reading:
    """Return the options for reading a model's payloads; without a callback of the
    host, from files.
    """
    return Reading(
        map_binaries=config.map_binaries,
        verification=config.verification,
        data_reader=data_reader,
        checks=model.checks,
        opened=model.opened,
        model_digest=model.source.digest,
    )


class Routing:
    """The EPs of a session and the EPContext nodes that each of them loads.

    Where sources decide, the EPs whose kernels ran other nodes when the model was
    compiled are among them, as far as they are there: `kernel_providers`.

    Args:
        nodes: the model's EPContext nodes.
        requested: the host's list, or None to let the nodes' sources decide.
        session: the session's options.
        registry: the registry of EPs.
        purpose: that of the EPs; None if no device is needed.
        manifest: names the distribution that made the context, where several have the
            EP.

    Raises:
        NotImplementedByProvider: no EP takes a node.
        InvalidArgument, PluginError: see `choose_providers`.
    """

    def __init__(
        self,
        nodes: Sequence[ContextNodeRecord],
        requested: Sequence[tuple[str, Mapping[str, object]]] | None,
        session: SessionOptions,
        registry: Registry,
        purpose: Purpose | None,
        manifest: Manifest | None = None,
    ) -> None:
        self.manifest = manifest
        self.kernel_providers: list[str] = []
        self._session, self._registry = session, registry
        self._exhaustive = requested is not None
        self._makers = manifest.providers if manifest is not None else {}
        self.choices, self._skipped = choose_providers(
            requested or (), session, registry, purpose
        )
        self.nodes: dict[str, list[ContextNodeRecord]] = {}
        self._by_source: dict[str, str] = {}
        for node in nodes:
            self.add(node)
        known = (
            manifest.kernel_providers
            if manifest is not None and requested is None
            else ()
        )
        for ep in known if purpose is not None else ():
            is_isolated = (
                session.config().isolation is Isolation.ALL and ep not in self.nodes
            )
            found = find_kernel_provider(ep, registry, purpose, is_isolated=is_isolated)
            if found is not None:
                self.kernel_providers.append(found.name)
                self._choose(found)

    def add(self, node: ContextNodeRecord) -> None:
        """Give a node to the EP that takes its source.

        Raises:
            NotImplementedByProvider: no EP does.
            PluginError: the EP is broken, or several could take it and the host has not
                chosen.
        """
        if node.source not in self._by_source:
            exhaustive, registry = self._exhaustive, self._registry
            listed = [choice.record for choice in self.choices]
            maker = (
                None if exhaustive else find_maker(node.source, self._makers, registry)
            )
            among = listed if exhaustive else [maker] if maker is not None else None
            # Only EPs that the host allows are imported.
            record = registry.route(node.source, among=among)
            if record is None:
                raise no_provider_error(
                    node,
                    [choice.name for choice in self.choices],
                    self._skipped,
                    registry,
                )
            self._choose(record)
            self._by_source[node.source] = record.name
        self.nodes.setdefault(self._by_source[node.source], []).append(node)

    @contextmanager
    def hint_at_others(self) -> Iterator[None]:
        """Add the other distributions of an EP to the hint of an error by which it
        refuses a payload as not its own.
        """
        try:
            yield
        except InvalidGraph as error:
            # What has a path is wrong with a file, for whichever distribution.
            found = next(
                (
                    c.record
                    for c in self.choices
                    if c.name == error.ep and error.path is None
                ),
                None,
            )
            if found is not None:
                error.hint = (
                    f"{error.hint or ''}{self.others_of(found)}".strip() or None
                )
            raise

    def others_of(self, record: PluginRecord) -> str:
        """Return a hint that names the other distributions of an EP, unless the model
        names this one as its maker.
        """
        from epctx_core.registry.explaining import describe_others

        maker = self._makers.get(record.name, {}).get("distribution")
        return describe_others(record, self._registry.records(), maker)

    def check_compatibility(
        self, model: ModelProto, *, fail_on_suboptimal: bool
    ) -> None:
        """Have each EP validate its text about the model; log a warning where it
        recommends to compile again.

        Called before any EP instance exists.

        Raises:
            InvalidGraph: an EP says that it cannot run the model any more.
            Fail: an EP recommends to compile again, and the host made that an error.
            PluginError: an EP raised, or did not return a verdict.
        """
        infos = read_compatibility_info(model)
        said = (
            (choice, info)
            for choice in self.choices
            for info in infos.get(choice.name, ())
        )
        with self.hint_at_others():
            for choice, info in said:
                if (
                    accept(choice, info)
                    == Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION
                ):
                    if fail_on_suboptimal:
                        raise suboptimal_error(choice, info)
                    _log.warning("%s", suboptimal_error(choice, info).message)

    def find_contained(self) -> set[str]:
        """Return the EPs that get a process of their own because a payload without
        digests could end this one.
        """
        trusts = self._session.config().trust_unverified
        return {
            choice.name
            for choice in self.choices
            for record in self.nodes.get(choice.name, ())
            if choice.cls.needs_verified_payloads and record.main_context and not trusts
            if find_entry(record, self.manifest) is None
        }

    @property
    def settled(self) -> Collection[str]:
        """EPs whose share was decided when the model was compiled."""
        return {*self.nodes, *self.kernel_providers}

    def _choose(self, record: PluginRecord) -> None:
        """Add an EP that the host did not name, unless it is there."""
        if all(choice.name != record.name for choice in self.choices):
            self.choices.append(
                choose_provider(record, {}, self._session, self._registry)
            )


def find_maker(
    source: str, providers: Mapping[str, Mapping[str, Any]], registry: Registry
) -> PluginRecord | None:
    """Return the distribution that made a source's contexts, where several have the EP
    and the host did not choose.

    Args:
        source: of an EPContext node.
        providers: the manifest's record of the compilers.
        registry: the registry of EPs; nothing is imported.
    """
    maker = providers.get(source, {}).get("distribution")
    for record in registry.records() if isinstance(maker, str) else ():
        if (
            record.name == source
            and record.undecided
            and is_same_distribution(record.distribution, maker)
        ):
            return registry.resolve(f"{maker}:{record.name}")
    return None


def find_kernel_provider(
    ep: str, registry: Registry, purpose: Purpose | None, *, is_isolated: bool
) -> PluginRecord | None:
    """Return an EP whose kernels ran nodes when a model was compiled; None, with a
    warning, for one that cannot be had.

    Args:
        is_isolated: whether it would be in a process of its own, for its kernels alone:
            functions cannot leave that.
    """
    reason = "ep.isolate=all leaves kernels out"
    try:
        record = None if is_isolated else registry.route(ep)
        if record is not None:
            registry.load(record)
            if purpose is not None:
                check_availability(record, purpose, registry)
            return record
        if not is_isolated:
            reason = registry.explain_missing(ep)[0]
    except InvalidArgument:  # of the host
        raise
    except EpctxError as error:
        reason = error.message
    text = (
        "kernels of %s ran nodes of this model when it was compiled; the session runs "
        "without it: %s"
    )
    _log.warning(text, ep, reason)
    return None


def no_provider_error(
    node: ContextNodeRecord,
    listed: Sequence[str],
    skipped: Sequence[SkippedProvider],
    registry: Registry,
) -> NotImplementedByProvider:
    """Return the error for an EPContext node that no EP takes of those listed;
    `skipped` could not be had.
    """
    skip = next(
        (skip for skip in skipped if stem(skip.name) == stem(node.source)), None
    )
    if skip is not None:
        why, hint = f"The optional EP {skip.name} was skipped: {skip.reason}", skip.hint
    else:
        why, hint = registry.explain_missing(node.source, listed)
    source = repr(node.source) if node.source else "no source"
    return NotImplementedByProvider(
        f"EPContext node {node.name!r} (source {source}) has no EP to load it. "
        f"{why.rstrip('.')}.",
        node=node.name,
        hint=hint,
    )


def accept(choice: ProviderChoice, info: str) -> Compatibility:
    """Return an EP's verdict on its text about a model that it supports.

    Raises:
        InvalidGraph: it does not support the model any more.
        PluginError: see `ProviderChoice.validate`.
    """
    verdict = choice.validate(info)
    if verdict == Compatibility.EP_UNSUPPORTED:
        raise InvalidGraph(
            f"{choice.name} does not support this compiled model: the model was "
            f"compiled for {info!r}.",
            ep=choice.name,
            hint=_UNSUPPORTED_HINT,
        )
    return verdict


def suboptimal_error(choice: ProviderChoice, info: str) -> Fail:
    """Return the error for a model of which an EP recommends to compile it again."""
    return Fail(
        f"{choice.name} runs this compiled model less well than a new one: the model "
        f"was compiled for {info!r}.",
        ep=choice.name,
        hint="Compile the source model again.",
    )


def load_context_nodes(
    model: OpenModel,
    nodes: Mapping[str, Sequence[ContextNodeRecord]],
    folder: ModelFolder | None,
    providers: ProviderSession,
    manifest: Manifest | None,
) -> dict[GraphIndex, dict[int, StepSpec]]:
    """Have each EP load its nodes.

    Args:
        model: the context model, with the checks of its payloads, which the caller
            waits for.
        nodes: EP name to its nodes.
        folder: the folder of their binaries.
        providers: the live EPs.
        manifest: the model's record of its payloads, or None.

    Returns:
        For each graph, the main one or a body, a node's index in it to its step.

    Raises:
        InvalidGraph: a payload is missing or wrong.
        NotImplementedByProvider: a node is in a body that a session cannot run.
        PluginError: an EP failed or broke the contract.
    """
    steps: dict[GraphIndex, dict[int, StepSpec]] = {}
    named = {
        ep: {record.name: record for record in records} for ep, records in nodes.items()
    }
    config, every = (
        providers.session.config(),
        [record for records in nodes.values() for record in records],
    )
    reading = make_reading(model, config, config.data_reader)
    source_tensor = make_tensor_source(every, folder, config, manifest)
    readers = {
        ep: PayloadReader(
            records,
            folder=folder,
            manifest=manifest,
            scratch=providers.scratch,
            source_tensor=source_tensor,
            reading=replace(
                reading, early=not providers.choices[ep].cls.needs_verified_payloads
            ),
        )
        for ep, records in named.items()
    }
    # All are checked now, or begin to be, if the host wants that.
    for ep, reader in readers.items():
        reader.check_all(ep)
    for ep, records in nodes.items():
        providers.cancel.raise_if_requested()
        owner = providers.instances.record(ep)
        graphs = {
            path: model.graph_of(record)
            for path, record in {r.path: r for r in records}.items()
        }
        views = make_plugin_nodes(records, model.types, ep, manifest)
        loaded = load_nodes(ep, views, readers[ep], providers, Purpose.LOAD)
        readers[ep].check_unchanged()
        for view, runnable in zip(views, loaded, strict=True):
            record = named[ep][view.name]
            graph = graphs[record.path]
            spec = StepSpec(
                record.name,
                ep,
                cast("RunStep", runnable.run),
                record.inputs,
                record.outputs,
            )
            step = add_checks(
                spec, owner, f"the run of {record.name!r}", graph.types, is_loaded=True
            )
            steps.setdefault(graph, {})[record.index] = step
    return steps


def load_nodes(
    ep: str,
    nodes: Sequence[ContextNode],
    reader: ContextReader,
    providers: ProviderSession,
    purpose: Purpose,
) -> Sequence[CompiledPartition]:
    """Have an EP load its nodes; the results are closed with the session.

    Raises:
        InvalidGraph: a payload is missing or wrong.
        PluginError: the EP failed or broke the contract.
    """
    names = [node.name for node in nodes]
    return providers.call_for_runnables(
        ep, "load_context", names, purpose, nodes=nodes, reader=reader
    )
