"""Loading of EPContext nodes: finding their payloads, having EPs load them, and making
a step of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from epctx_core.context.paths import ModelFolder
from epctx_core.context.payload_reader import (
    PayloadReader,
    Reading,
    make_plugin_nodes,
)
from epctx_core.errors import InvalidArgument
from epctx_core.file_names import is_folder_name
from epctx_core.plugin import Purpose
from epctx_core.sessions.plan import RunStep, StepSpec, add_checks

if TYPE_CHECKING:
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.weightless import SourceWeights
    from epctx_core.options import DataReader, SessionConfig
    from epctx_core.plugin import (
        CompiledPartition,
        ContextNode,
        ContextReader,
        TensorView,
    )
    from epctx_core.sessions.plan import StepsByGraph
    from epctx_core.sessions.providers import ProviderSession
    from epctx_core.sessions.source import OpenModel
    from epctx_core.sessions.work import Work

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
        named = Path(option)
        return ModelFolder(named if is_folder_name(option) else named.parent)
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


def load_context_nodes(work: Work, folder: ModelFolder | None) -> StepsByGraph:
    """Have each EP load its nodes.

    Args:
        work: the context model, with the checks of its payloads, which the caller waits
            for, and the live EPs.
        folder: the folder of their binaries.

    Returns:
        For each graph, the main one or a body, a node's index in it to its step.

    Raises:
        InvalidGraph: a payload is missing or wrong.
        NotImplementedByProvider: a node is in a body that a session cannot run.
        PluginError: an EP failed or broke the contract.
    """
    steps: StepsByGraph = {}
    model = work.model
    providers = work.providers
    nodes = work.nodes
    manifest = work.manifest
    named = {
        ep: {record.name: record for record in records} for ep, records in nodes.items()
    }
    reading = make_reading(model, work.config, work.config.data_reader)
    source_tensor = make_tensor_source(
        model.context_nodes, folder, work.config, manifest
    )
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
