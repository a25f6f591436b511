"""The simulated VitisAI EP: VitisAI's rules for nodes and payloads over the simulated
SDK.

One archive holds all graphs. The first partition's node carries it (main_context 1),
every node says its place in it. Not for hardware.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from epctx_sim_sdk.provider import SimulatedProvider

from epctx_core.plugin import BuildInfo, Purpose, hookimpl
from epctx_sim_vitisai import settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from epctx_sim_sdk.compiler import SimGraph
    from epctx_sim_sdk.versions import LoadPolicy

    from epctx_core.plugin import (
        CompiledPartition,
        ContextNode,
        ContextReader,
        ContextWriter,
        Finding,
        GraphView,
        Partition,
        Payload,
        ProviderContext,
        ProviderOption,
    )
    from epctx_sim_vitisai.cache import CompileCache
    from epctx_sim_vitisai.units import Support


class VitisAIProvider(SimulatedProvider):
    """Simulated VitisAI Execution Provider (integer back ends)."""

    name: ClassVar[str] = settings.EP
    vendor: ClassVar[str] = "epctx project (SIMULATED VitisAI, not for hardware)"
    binary_suffix: ClassVar[str] = "vitisai"
    options: ClassVar[Sequence[ProviderOption]] = settings.OPTIONS
    notes: ClassVar[str] = (
        "Simulated VitisAI payload made by epctx-sim-vitisai: not for hardware."
    )
    compiler_facts = staticmethod(settings.compiler_facts)

    def __init__(self, context: ProviderContext) -> None:
        from epctx_sim_vitisai.loading import NodeLoader
        from epctx_sim_vitisai.sealing import sealer_for

        super().__init__(context)
        self._cache_key = settings.check_cache_key(context.options)
        settings.check_config_file(context.options)
        self._sealer = sealer_for(settings.encryption_key(context.options))
        self._loader = NodeLoader(
            context, self.new_loader(context, self._device), self._sealer
        )

    @staticmethod
    def load_policy(
        options: Mapping[str, Any], target: str | None = None
    ) -> LoadPolicy:
        """Return VitisAI's version rules and the simulated device's facts."""
        from epctx_sim_vitisai.rules import load_policy

        return load_policy(options, target)

    @classmethod
    def get_build_info(cls, options: Mapping[str, Any]) -> BuildInfo:
        """Return the simulated EP core and runtime, and the back end."""
        facts = settings.compiler_facts(options)
        return BuildInfo(sdk=facts["vaip"], driver=facts["xrt"], target=facts["target"])

    @classmethod
    def verify_payloads(
        cls,
        context: ProviderContext,
        nodes: Sequence[ContextNode],
        reader: ContextReader,
    ) -> Sequence[Finding]:
        """Look into archives and their containers; an encrypted one needs its key."""
        from epctx_sim_sdk.device import GraphReader

        from epctx_sim_vitisai.loading import NodeLoader
        from epctx_sim_vitisai.sealing import sealer_for
        from epctx_sim_vitisai.verification import verify_archives

        containers = cls.new_loader(
            context, GraphReader(engine=context.engine, prepares=True)
        )
        sealer = sealer_for(settings.encryption_key(context.options))
        loader = NodeLoader(context, containers, sealer)
        return verify_archives(loader, nodes, reader, locked=sealer is None)

    def support(self, graph: GraphView) -> Support:
        """Return the judgement by the table of operators, in integers."""
        from epctx_sim_vitisai.units import Support

        return Support(graph)

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Convert partitions, or take them out of `cache_dir`; under EXPORT no device
        is opened.
        """
        cache = self._cache
        if cache is None:
            return self._session.compile(partitions)
        return [self._compile_one(partition, cache) for partition in partitions]

    def _compile_one(
        self, partition: Partition, cache: CompileCache
    ) -> CompiledPartition:
        from epctx_core.plugin import CompiledPartition

        self.context.cancel.raise_if_requested()
        graph = cache.get(partition)
        if graph is None:
            (compiled,) = self._session.compile([partition])
            cache.put(self._session.graphs[-1])
            return compiled
        self._session.graphs.append(graph)
        if self.context.purpose is Purpose.EXPORT:
            return CompiledPartition(None)
        return self._session.device.compile(graph)

    @cached_property
    def _cache(self) -> CompileCache | None:
        folder = self.context.options["cache_dir"]
        if not folder:
            return None
        from epctx_sim_vitisai.cache import CompileCache

        return CompileCache(
            Path(folder)
            / settings.cache_folder_name(self.context.options, self.context.model.name),
            facts=self._made_by,
            sealer=self._sealer,
            logger=self.context.logger,
        )

    def node_attributes(
        self, graphs: Sequence[SimGraph], writer: ContextWriter, /
    ) -> Iterator[Mapping[str, Any]]:
        """Yield what each node states, such as its graph's index, counted over all
        models of a share group.
        """
        prefix = self._make_prefix(graphs, writer)
        # The real EP's notes hold the folder's full path; nobody else could use it.
        notes = {"backend_cache_dir": "", "backend_cache_key": prefix}
        common = {
            "cache_file_prefix": prefix,
            "enable_encryption": int(self._sealer is not None),
            "notes": json.dumps(notes, sort_keys=True),
            "onnx_model_filename": settings.model_file_name(self.context.model.name),
            **{
                f"version_of_{component}": self._made_by[component]
                for component in settings.COMPONENTS
            },
        }
        index = {graph.name: number for number, graph in enumerate(graphs)}
        for graph in self._session.graphs:
            yield common | {"index": index[graph.name]}

    def _make_prefix(self, graphs: Sequence[SimGraph], writer: ContextWriter) -> str:
        """Return the archive's key; in a share group the first model decides it."""
        partitions = {graph.name: graph.partition for graph in graphs}
        first = [(name, partitions[name].digest) for name in writer.graphs_by_model[0]]
        identity = json.dumps([sorted(self._made_by.items()), first])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
        return f"{self._cache_key}-{digest}" if self._cache_key else digest

    def write(
        self, payload: Payload, graphs: Sequence[SimGraph], writer: ContextWriter
    ) -> None:
        """Write an archive, encrypted if there is a key."""
        from epctx_sim_vitisai.archive import CONTEXT_FACT, describe, write_archive
        from epctx_sim_vitisai.recording import Recording

        description = describe(
            self._make_prefix(graphs, writer), self._cache_key, writer.graphs_by_model
        )
        container = Recording()
        self._session.write(
            container, self._made_by | {CONTEXT_FACT: description.digest}, graphs
        )
        check = self.context.cancel.raise_if_requested
        if self._sealer is None:
            write_archive(payload, description, container, check)
            return
        plain = Recording()
        write_archive(plain, description, container, check)
        payload.write(self._sealer.seal(plain.content(check), description.prefix))
