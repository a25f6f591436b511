"""The simulated VitisAI EP: VitisAI's rules for nodes and payloads over the simulated SDK.

One archive holds all graphs. The first partition's node carries it (main_context 1), every node says its place
in it. Not for hardware.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from epctx_core.plugin import (
    BuildInfo,
    Compatibility,
    EPContextNode,
    ExecutionProvider,
    Purpose,
    hookimpl,
    supported_partitions,
)
from epctx_sim_vitisai import settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_sim_sdk.compiler import SimGraph

    from epctx_core.plugin import (
        CompiledPartition,
        ComputeCapability,
        ContextNode,
        ContextReader,
        ContextWriter,
        Finding,
        GraphView,
        Partition,
        Payload,
        ProviderContext,
        ProviderOption,
        Refusal,
    )
    from epctx_sim_vitisai.archive import Description
    from epctx_sim_vitisai.cache import CompileCache

NOTE = "Simulated VitisAI payload made by epctx-sim-vitisai: not for hardware."


class VitisAIProvider(ExecutionProvider):
    """Simulated VitisAI Execution Provider (INT8 back ends)."""

    name: ClassVar[str] = settings.EP
    vendor: ClassVar[str] = "epctx project (SIMULATED VitisAI, not for hardware)"
    simulated: ClassVar[bool] = True
    binary_suffix: ClassVar[str] = "vitisai"
    options: ClassVar[Sequence[ProviderOption]] = settings.OPTIONS
    loads_without_device: ClassVar[bool] = True

    def __init__(self, context: ProviderContext) -> None:
        # The SDK is loaded with the first instance of a process, not in the middle of a load.
        from epctx_sim_sdk.session import SimSession

        from epctx_sim_vitisai.loading import NodeLoader
        from epctx_sim_vitisai.rules import by_minor
        from epctx_sim_vitisai.sealing import sealer_for

        super().__init__(context)
        self._new_loader = NodeLoader
        self._facts = settings.compiler_facts(context.options, context.target)
        self._made_by = by_minor(self._facts)
        self._cache_key = settings.check_cache_key(context.options)
        settings.check_config_file(context.options)
        self._sealer = sealer_for(settings.encryption_key(context.options))
        self._session = SimSession(self.name, context)
        self._loader: NodeLoader | None = None

    @classmethod
    def get_build_info(cls, options: Mapping[str, Any]) -> BuildInfo:
        """Return the simulated EP core and runtime, and the back end."""
        facts = settings.compiler_facts(options)
        return BuildInfo(sdk=facts["vaip"], driver=facts["xrt"], target=facts["target"])

    @classmethod
    def get_compatibility_info(cls, partitions: Sequence[Partition], options: Mapping[str, Any]) -> str:
        """Return the facts that the version rules judge; nothing without partitions."""
        from epctx_sim_sdk.versions import write_info

        return write_info(settings.compiler_facts(options)) if partitions else ""

    @classmethod
    def validate_compatibility(cls, info: str, options: Mapping[str, Any]) -> Compatibility:
        """Judge by the version rules.

        What a real VitisAI EP wrote is not judged here: its payload is refused by name when it is opened.
        """
        from epctx_sim_sdk.versions import read_info

        from epctx_sim_vitisai.rules import judge_versions

        made_by = read_info(info)
        if made_by is None:
            return Compatibility.EP_NOT_APPLICABLE
        return judge_versions(made_by, settings.runtime_facts(options)).verdict

    @classmethod
    def verify_payloads(
        cls, context: ProviderContext, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[Finding]:
        """Look into archives and their containers; an encrypted one needs its key."""
        from epctx_sim_vitisai.sealing import sealer_for
        from epctx_sim_vitisai.verification import verify_archives

        sealer = sealer_for(settings.encryption_key(context.options))
        return verify_archives(context, nodes, reader, sealer)

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take what the table of operators allows in INT8, of the main graph: VitisAI has no control flow."""
        from epctx_sim_vitisai.units import Support

        if graph.parent_node is not None:
            from epctx_core.plugin import Refusal

            reason = (
                f"VitisAI compiles the main graph only, and this is in a body of {graph.parent_node.op_type}"
            )
            return [Refusal(reason, graph.nodes)]
        return supported_partitions(graph, Support(graph))

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Convert partitions, or take them out of `cache_dir`; under EXPORT no device is opened."""
        cache = self._cache
        if cache is None:
            return self._session.compile(partitions)
        return [self._compile_one(partition, cache) for partition in partitions]

    def _compile_one(self, partition: Partition, cache: CompileCache) -> CompiledPartition:
        from epctx_core.plugin import CompiledPartition

        self.context.cancel.raise_if_requested()
        known = cache.get(partition)
        if known is None:
            (compiled,) = self._session.compile([partition])
            cache.put(self._session.graphs[-1])
            return compiled
        self._session.graphs.append(known)
        if self.context.purpose is Purpose.EXPORT:
            return CompiledPartition(None)
        return self._session.device.compile(known)

    @cached_property
    def _cache(self) -> CompileCache | None:
        folder = self.context.options["cache_dir"]
        if not folder:
            return None
        from epctx_sim_vitisai.cache import CompileCache

        return CompileCache(
            Path(folder) / settings.cache_folder_name(self.context.options, self.context.model.name),
            facts=self._facts,
            engine=self.context.engine.name,
            sealer=self._sealer,
            logger=self.context.logger,
        )

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        """Write one archive with all graphs; the first node carries it, all say their place in it.

        In a share group the first model decides the archive's key, and places are counted over all models.
        """
        graphs = self._session.shared_graphs(writer)
        if not graphs:
            return []
        from epctx_sim_vitisai.archive import describe

        own = [graph.partition for graph in self._session.graphs]
        place = {graph.name: number for number, graph in enumerate(graphs)}
        index = [place[partition.name] for partition in own]
        first = writer.graphs_by_model[0]
        prefix = self._prefix([graphs[place[name]].partition for name in first])
        payload = writer.payload()
        if writer.final:
            description = describe(prefix, self._cache_key, writer.graphs_by_model)
            self._write(payload, description, graphs)
        return [
            EPContextNode(
                partition,
                None if number else payload,
                main_context=0 if number else 1,
                attributes=self._attributes(index[number], prefix),
                doc_string=NOTE,
            )
            for number, partition in enumerate(own)
        ]

    def _prefix(self, partitions: Sequence[Partition]) -> str:
        identity = [sorted(self._facts.items()), [(p.name, p.digest) for p in partitions]]
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        return f"{self._cache_key}-{digest}" if self._cache_key else digest

    def _attributes(self, index: int, prefix: str) -> dict[str, int | str]:
        # The real EP's notes hold the folder's full path; nobody else could use it.
        notes = {"backend_cache_dir": "", "backend_cache_key": prefix}
        return {
            "cache_file_prefix": prefix,
            "enable_encryption": int(self._sealer is not None),
            "index": index,
            "notes": json.dumps(notes, sort_keys=True),
            "onnx_model_filename": settings.model_file_name(self.context.model.name),
            **{f"version_of_{component}": self._facts[component] for component in settings.COMPONENTS},
        }

    def _write(self, payload: Payload, description: Description, graphs: Sequence[SimGraph]) -> None:
        from epctx_sim_vitisai.archive import CONTEXT_FACT, write_archive
        from epctx_sim_vitisai.recording import Recording, StreamPayload

        container = Recording()
        self._session.write(container, self._made_by | {CONTEXT_FACT: description.digest}, graphs)
        check = self.context.cancel.raise_if_requested
        if self._sealer is None:
            write_archive(payload, description, container, check)
            return
        import io

        plain = io.BytesIO()
        write_archive(StreamPayload(plain), description, container, check)
        payload.write(self._sealer.seal(plain.getbuffer(), description.prefix))

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Open the archives and make each node's graph runnable."""
        if self._loader is None:
            self._loader = self._new_loader(self.context, self._session.device, self._sealer)
        return self._loader.load(nodes, reader)

    @hookimpl
    def shutdown(self) -> None:
        """Close what still runs and let go of weights and payloads."""
        self._loader = None
        self._session.close()
