"""The simulated OpenVINO EP: OpenVINO's rules for nodes and payloads over the simulated
SDK.

One binary holds the blobs of all partitions; every node names it and finds its own by
partition_name. Not for hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from epctx_sim_sdk.provider import SimulatedProvider

from epctx_core.plugin import BuildInfo, HardwareDevice, WeightlessMode, hookimpl
from epctx_sim_openvino import settings
from epctx_sim_openvino.devices import EP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_sim_sdk.device import Device
    from epctx_sim_sdk.versions import LoadPolicy

    from epctx_core.plugin import (
        ComputeCapability,
        GraphView,
        ProviderContext,
        ProviderOption,
        Refusal,
    )
    from epctx_sim_openvino.loading import NodeLoader
    from epctx_sim_openvino.support import Support


class OpenVinoProvider(SimulatedProvider):
    """Simulated OpenVINO Execution Provider for the devices CPU, GPU and NPU, and modes
    over them.
    """

    name: ClassVar[str] = EP
    vendor: ClassVar[str] = "epctx project (SIMULATED OpenVINO, not for hardware)"
    binary_suffix: ClassVar[str] = EP
    options: ClassVar[Sequence[ProviderOption]] = settings.OPTIONS
    dynamic_options: ClassVar[Sequence[ProviderOption]] = settings.DYNAMIC_OPTIONS
    weightless_modes = (WeightlessMode.EXTERNAL_ONLY, WeightlessMode.ALL)
    notes: ClassVar[str] = (
        "Simulated OpenVINO payload made by epctx-sim-openvino: not for hardware."
    )
    # Where payloads are embedded the core keeps it in the first node and makes the
    # others refer to it.
    one_primary: ClassVar[bool] = False
    compiler_facts = staticmethod(settings.facts)

    def __init__(self, context: ProviderContext) -> None:
        from epctx_sim_openvino.subgraphs import Subgraphs

        super().__init__(context)
        self._choice = settings.chosen_device(context.options, context.target)
        settings.check(context.options, self._choice)
        self._subgraphs = Subgraphs()

    @staticmethod
    def load_policy(
        options: Mapping[str, Any], target: str | None = None
    ) -> LoadPolicy:
        """Return the version rules of the device and its facts."""
        from epctx_sim_openvino.rules import load_policy

        return load_policy(settings.facts(options, target))

    @classmethod
    def new_loader(cls, context: ProviderContext, device: Device) -> NodeLoader:
        """Return a loader that checks nodes before it opens a payload."""
        from epctx_sim_openvino.loading import NodeLoader

        return NodeLoader(
            context, device, cls.load_policy(context.options, context.target)
        )

    @classmethod
    def devices(cls) -> Sequence[HardwareDevice]:
        """Return one simulated device of each type."""
        return [
            HardwareDevice(
                type=kind, metadata={"virtual": "1"}, options={"device_type": kind}
            )
            for kind in ("NPU", "GPU", "CPU")
        ]

    @classmethod
    def get_build_info(cls, options: Mapping[str, Any]) -> BuildInfo:
        """Return the simulated OpenVINO, its driver where the device has one, and the
        device.
        """
        facts = settings.facts(options)
        return BuildInfo(
            sdk=facts["sdk"], driver=facts.get("driver", ""), target=facts["device"]
        )

    def stores_half(self) -> bool:
        """Return whether options and device ask for it."""
        return settings.is_half_precision(self.context.options, self._choice)

    def support(self, graph: GraphView) -> Support:
        """Return the judgement by the device's tables."""
        from epctx_sim_openvino.support import Support

        static_only = self.context.options["disable_dynamic_shapes"]
        return Support(
            graph, self._choice, self._subgraphs.refusal, static_only=static_only
        )

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take what the device's tables allow; subgraphs only with the node that holds
        them.
        """
        if graph.parent_node is not None:
            return self._subgraphs.judge(graph, graph.parent_node, self.support(graph))
        return super().get_capability(graph)

    def node_attributes(self, *_: object) -> Sequence[Mapping[str, Any]]:
        """Return OpenVINO's version for each node."""
        return [{"ep_sdk_version": self._made_by["sdk"]}] * len(self._session.graphs)

    @hookimpl
    def set_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Say what a device would do: the simulated one has neither clocks nor
        power.
        """
        for key, value in options.items():
            self.context.logger.info(
                "%s=%s: no effect on a simulated device", key, value
            )
