"""The simulated QNN EP: QNN's rules for nodes and payloads over the simulated SDK.

One binary holds all graphs. The first partition's node carries it (main_context 1), the
others refer to it. Not for hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from epctx_sim_sdk.provider import SimulatedProvider

from epctx_core.plugin import BuildInfo, hookimpl
from epctx_sim_qnn import settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_sim_sdk.versions import LoadPolicy

    from epctx_core.plugin import GraphView, ProviderOption
    from epctx_sim_qnn.operators import Support


class QnnProvider(SimulatedProvider):
    """Simulated QNN Execution Provider (HTP backend)."""

    name: ClassVar[str] = settings.EP
    vendor: ClassVar[str] = "epctx project (SIMULATED QNN, not for hardware)"
    binary_suffix: ClassVar[str] = "qnn"
    options: ClassVar[Sequence[ProviderOption]] = settings.OPTIONS
    dynamic_options: ClassVar[Sequence[ProviderOption]] = settings.DYNAMIC_OPTIONS
    notes: ClassVar[str] = (
        "Simulated QNN payload made by epctx-sim-qnn: not for hardware."
    )
    compiler_facts = staticmethod(settings.compiler_facts)

    @staticmethod
    def load_policy(
        options: Mapping[str, Any], target: str | None = None
    ) -> LoadPolicy:
        """Return QNN's version rules and the simulated device's facts."""
        from epctx_sim_qnn.rules import load_policy

        return load_policy(options, target)

    @classmethod
    def accepts_source(cls, source: str) -> bool:
        """QNN's sources without case: `QNN` and `QNNExecutionProvider`."""
        return source.lower() in ("qnn", "qnnexecutionprovider")

    @classmethod
    def get_build_info(cls, options: Mapping[str, Any]) -> BuildInfo:
        """Return the simulated SDK and driver, and the HTP architecture."""
        facts = settings.compiler_facts(options)
        target = f"{facts['backend']} v{facts['htp_arch']}"
        return BuildInfo(
            sdk=facts["sdk"], driver=facts.get("driver", ""), target=target
        )

    def stores_half(self) -> bool:
        """Return whether the option asks for it."""
        return bool(self.context.options["enable_htp_fp16_precision"])

    def support(self, graph: GraphView) -> Support:
        """Return the judgement by the table of operators."""
        from epctx_sim_qnn.operators import Support

        return Support(
            graph, offload_io=self.context.options["offload_graph_io_quantization"]
        )

    def node_attributes(self, *_: object) -> Sequence[Mapping[str, Any]]:
        """Return what each node states; the first also says how much memory activations
        need.
        """
        stated = {
            "ep_sdk_version": self._made_by["sdk"],
            "hardware_architecture": settings.hardware_architecture(
                int(self._made_by["htp_arch"])
            ),
            "notes": self.notes,
        }
        spill_fill = self.context.options["enable_htp_spill_fill_buffer"]
        main = {
            **stated,
            "max_size": self._session.activation_bytes() if spill_fill else 0,
        }
        return [
            stated if number else main for number in range(len(self._session.graphs))
        ]

    @hookimpl
    def set_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Say what a device would do: the simulated one has neither clocks nor
        power.
        """
        for key, value in options.items():
            self.context.logger.info(
                "%s=%s: no effect on a simulated device", key, value
            )
