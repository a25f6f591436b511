"""The simulated QNN EP: QNN's rules for nodes and payloads over the simulated SDK.

One binary holds all graphs. The first partition's node carries it (main_context 1), the others refer
to it. Not for hardware.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from epctx_core.plugin import BuildInfo, Compatibility, ExecutionProvider, hookimpl
from epctx_sim_qnn import settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_sim_sdk.loading import ContextLoader
    from epctx_sim_sdk.session import SimSession

    from epctx_core.plugin import (
        CompiledPartition,
        ComputeCapability,
        ContextNode,
        ContextReader,
        ContextWriter,
        EPContextNode,
        Finding,
        GraphView,
        Partition,
        ProviderContext,
        ProviderOption,
        Refusal,
    )

NOTES = "Simulated QNN payload made by epctx-sim-qnn: not for hardware."


class QnnProvider(ExecutionProvider):
    """Simulated QNN Execution Provider (HTP backend)."""

    name: ClassVar[str] = settings.EP
    vendor: ClassVar[str] = "epctx project (SIMULATED QNN, not for hardware)"
    simulated: ClassVar[bool] = True
    binary_suffix: ClassVar[str] = "qnn"
    options: ClassVar[Sequence[ProviderOption]] = settings.OPTIONS
    dynamic_options: ClassVar[Sequence[ProviderOption]] = settings.DYNAMIC_OPTIONS
    loads_without_device: ClassVar[bool] = True

    def __init__(self, context: ProviderContext) -> None:
        # The SDK is loaded with the first instance of a process, not in the middle of a load.
        from epctx_sim_sdk.device import open_device
        from epctx_sim_sdk.loading import ContextLoader

        super().__init__(context)
        self._new_loader = ContextLoader
        self._made_by = settings.compiler_facts(context.options, context.target)
        self._device = open_device(context)
        self._loader: ContextLoader | None = None

    @cached_property
    def _session(self) -> SimSession:
        from epctx_sim_sdk.session import SimSession  # a load compiles nothing

        half = self.context.options["enable_htp_fp16_precision"]
        return SimSession(self.name, self.context, fp16=half, device=self._device)

    @classmethod
    def accepts_source(cls, source: str) -> bool:
        """QNN's sources without case: `QNN` and `QNNExecutionProvider`."""
        return source.lower() in ("qnn", "qnnexecutionprovider")

    @classmethod
    def get_build_info(cls, options: Mapping[str, Any]) -> BuildInfo:
        """Return the simulated SDK and driver, and the HTP architecture."""
        facts = settings.compiler_facts(options)
        target = f"{facts['backend']} v{facts['htp_arch']}"
        return BuildInfo(sdk=facts["sdk"], driver=facts.get("driver", ""), target=target)

    @classmethod
    def get_compatibility_info(cls, partitions: Sequence[Partition], options: Mapping[str, Any]) -> str:
        """Return the facts that the version rules judge; nothing without partitions."""
        from epctx_sim_sdk.versions import write_info

        return write_info(settings.compiler_facts(options)) if partitions else ""

    @classmethod
    def validate_compatibility(cls, info: str, options: Mapping[str, Any]) -> Compatibility:
        """Judge by the version rules.

        What a real QNN EP wrote is not judged here: its payload is refused by name when it is opened.
        """
        from epctx_sim_sdk.versions import judge, read_info

        from epctx_sim_qnn.rules import RULES

        made_by = read_info(info)
        if made_by is None:
            return Compatibility.EP_NOT_APPLICABLE
        return judge(RULES, made_by, settings.runtime_facts(options)).verdict

    @classmethod
    def verify_payloads(
        cls, context: ProviderContext, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[Finding]:
        """Look into containers: versions, graphs, their boundaries and weights."""
        from epctx_sim_sdk.device import GraphReader
        from epctx_sim_sdk.loading import ContextLoader
        from epctx_sim_sdk.verification import verify_nodes

        from epctx_sim_qnn.loading import load_policy

        loader = ContextLoader(
            context, GraphReader(engine=context.engine, prepares=True), load_policy(context)
        )
        return verify_nodes(cls.name, nodes, reader, loader)

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take what the table of operators allows, of the main graph: QNN has no control flow."""
        from epctx_core.plugin import Refusal, supported_partitions
        from epctx_sim_qnn.operators import Support

        if graph.parent_node is not None:
            reason = f"QNN compiles the main graph only, and this is in a body of {graph.parent_node.op_type}"
            return [Refusal(reason, graph.nodes)]

        offload = self.context.options["offload_graph_io_quantization"]
        return supported_partitions(graph, Support(graph, offload_io=offload))

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Convert partitions; under EXPORT nothing runs and no device is opened."""
        return self._session.compile(partitions)

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        """Write one container with all graphs, those of a share group too; the first node carries it."""
        from epctx_core.plugin import EPContextNode

        graphs = self._session.shared_graphs(writer)
        if not graphs:
            return []
        payload = writer.payload()
        if writer.final:
            self._session.write(payload, self._made_by, graphs)
        if not self._session.graphs:
            return []
        spill_fill = self.context.options["enable_htp_spill_fill_buffer"]
        attributes = {
            "ep_sdk_version": self._made_by["sdk"],
            "hardware_architecture": settings.hardware_architecture(int(self._made_by["htp_arch"])),
            "notes": NOTES,
        }
        main = attributes | {"max_size": self._session.activation_bytes() if spill_fill else 0}
        first, *others = (graph.partition for graph in self._session.graphs)
        return [
            EPContextNode(first, payload, main_context=1, attributes=main, doc_string=NOTES),
            *(EPContextNode(p, main_context=0, attributes=attributes, doc_string=NOTES) for p in others),
        ]

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Open the primaries' payloads and make each node's graph runnable."""
        from epctx_sim_qnn.loading import load_policy

        if self._loader is None:
            self._loader = self._new_loader(self.context, self._device, load_policy(self.context))
        return self._loader.load(nodes, reader)

    @hookimpl
    def set_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Say what a device would do: the simulated one has neither clocks nor power."""
        for key, value in options.items():
            self.context.logger.info("%s=%s: no effect on a simulated device", key, value)

    @hookimpl
    def shutdown(self) -> None:
        """Close what still runs and let go of weights and payloads."""
        self._loader = None
        self.__dict__.pop("_session", None)
        self._device.close()
