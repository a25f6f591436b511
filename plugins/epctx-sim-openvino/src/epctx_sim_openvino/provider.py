"""The simulated OpenVINO EP: OpenVINO's rules for nodes and payloads over the simulated SDK.

One binary holds the blobs of all partitions; every node names it and finds its own by partition_name.
Not for hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from epctx_core.plugin import (
    BuildInfo,
    Compatibility,
    EPContextNode,
    ExecutionProvider,
    WeightlessMode,
    hookimpl,
    supported_partitions,
)
from epctx_sim_openvino import settings
from epctx_sim_openvino.devices import EP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_core.plugin import (
        CompiledPartition,
        ComputeCapability,
        ContextNode,
        ContextReader,
        ContextWriter,
        Finding,
        GraphView,
        Partition,
        ProviderContext,
        ProviderOption,
        Refusal,
    )
    from epctx_sim_openvino.loading import NodeLoader

NOTES = "Simulated OpenVINO payload made by epctx-sim-openvino: not for hardware."


class OpenVinoProvider(ExecutionProvider):
    """Simulated OpenVINO Execution Provider for the devices CPU, GPU and NPU, and modes over them."""

    name: ClassVar[str] = EP
    vendor: ClassVar[str] = "epctx project (SIMULATED OpenVINO, not for hardware)"
    simulated: ClassVar[bool] = True
    binary_suffix: ClassVar[str] = EP
    options: ClassVar[Sequence[ProviderOption]] = settings.OPTIONS
    dynamic_options: ClassVar[Sequence[ProviderOption]] = settings.DYNAMIC_OPTIONS
    loads_without_device: ClassVar[bool] = True
    weightless_modes = (WeightlessMode.EXTERNAL_ONLY, WeightlessMode.ALL)

    def __init__(self, context: ProviderContext) -> None:
        # The SDK is loaded with the first instance of a process, not in the middle of a load.
        from epctx_sim_sdk.session import SimSession

        from epctx_sim_openvino.bodies import Bodies
        from epctx_sim_openvino.loading import NodeLoader

        super().__init__(context)
        self._device = settings.chosen_device(context.options, context.target)
        settings.check(context.options, self._device)
        self._made_by = settings.facts(context.options, context.target)
        half = settings.is_half_precision(context.options, self._device)
        self._session = SimSession(EP, context, fp16=half)
        self._bodies = Bodies()
        self._new_loader = NodeLoader
        self._loader: NodeLoader | None = None

    @classmethod
    def get_build_info(cls, options: Mapping[str, Any]) -> BuildInfo:
        """Return the simulated OpenVINO, its driver where the device has one, and the device."""
        facts = settings.facts(options)
        return BuildInfo(sdk=facts["sdk"], driver=facts.get("driver", ""), target=facts["device"])

    @classmethod
    def get_compatibility_info(cls, partitions: Sequence[Partition], options: Mapping[str, Any]) -> str:
        """Return the facts that the version rules judge; nothing without partitions."""
        from epctx_sim_sdk.versions import write_info

        return write_info(settings.facts(options)) if partitions else ""

    @classmethod
    def validate_compatibility(cls, info: str, options: Mapping[str, Any]) -> Compatibility:
        """Judge by the version rules.

        What a real OpenVINO EP wrote is not judged here: its payload is refused by name when it is opened.
        """
        from epctx_sim_sdk.versions import judge, read_info

        from epctx_sim_openvino.rules import rules_for

        made_by = read_info(info)
        if made_by is None:
            return Compatibility.EP_NOT_APPLICABLE
        runtime = settings.facts(options)
        return judge(rules_for(runtime["device"]), made_by, runtime).verdict

    @classmethod
    def verify_payloads(
        cls, context: ProviderContext, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[Finding]:
        """Look into containers: what nodes state, versions, graphs, their boundaries and weights."""
        from epctx_sim_sdk.device import GraphReader
        from epctx_sim_sdk.verification import verify_nodes

        from epctx_sim_openvino.loading import NodeLoader

        loader = NodeLoader(context, GraphReader(engine=context.engine, prepares=True))
        return verify_nodes(cls.name, nodes, reader, loader.loader, loader.check)

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take what the device's tables allow; bodies only with the node that holds them."""
        from epctx_sim_openvino.support import Support

        static_only = self.context.options["disable_dynamic_shapes"]
        support = Support(graph, self._device, self._bodies, static_only=static_only)
        if graph.parent_node is not None:
            return self._bodies.judge(graph, graph.parent_node, support)
        return supported_partitions(graph, support)

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Convert partitions; under EXPORT nothing runs and no device is opened."""
        return self._session.compile(partitions)

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        """Write one container with all graphs, which every node carries.

        Where payloads are embedded the core keeps it in the first node and makes the others refer to it.
        """
        graphs = self._session.shared_graphs(writer)
        if not graphs:
            return []
        payload = writer.payload()
        if writer.final:
            self._session.write(payload, self._made_by, graphs, reference=writer.reference)
        attributes = {"ep_sdk_version": self._made_by["sdk"]}
        return [
            EPContextNode(graph.partition, payload, attributes=attributes, doc_string=NOTES)
            for graph in self._session.graphs
        ]

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Open the binaries that nodes name and make each node's graph runnable."""
        if self._loader is None:
            self._loader = self._new_loader(self.context, self._session.device)
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
        self._session.close()
