"""What OpenVINO demands of EPContext nodes before a payload is opened, and how they load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_sim_sdk.loading import Claim, ContextLoader, LoadPolicy

from epctx_core.errors import InvalidGraph
from epctx_sim_openvino import settings
from epctx_sim_openvino.devices import EP
from epctx_sim_openvino.rules import rules_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_sim_sdk.device import Device

    from epctx_core.plugin import CompiledPartition, ContextNode, ContextReader, ProviderContext


class NodeLoader:
    """Loads the nodes of one session.

    Args:
        context: the EP instance's context.
        device: where graphs become runnable.

    Attributes:
        loader: the SDK's.
    """

    def __init__(self, context: ProviderContext, device: Device) -> None:
        runtime = settings.facts(context.options, context.target)
        policy = LoadPolicy(
            ep=EP,
            rules=rules_for(runtime["device"]),
            runtime=runtime,
            # The NPU's driver judges the blob. Elsewhere nobody knows whether it fits without the version.
            claims={"ep_sdk_version": Claim("sdk", needed=runtime["device"] != "NPU")},
        )
        self.loader = ContextLoader(context, device, policy)
        self._first: ContextNode | None = None

    def load(self, nodes: Sequence[ContextNode], reader: ContextReader) -> list[CompiledPartition]:
        """Return one runnable for each node, in order.

        Raises:
            InvalidGraph: a node that OpenVINO does not take, or a payload that does not fit it.
        """
        for node in nodes:
            self.check(node)
        return self.loader.load(nodes, reader)

    def check(self, node: ContextNode) -> None:
        """Check what blobs are found by, and that all nodes of a model keep them in one way.

        Raises:
            InvalidGraph: the node is not so.
        """
        if not node.attributes.get("partition_name"):
            raise _refused(
                node,
                "it has no partition_name, by which OpenVINO finds the blob in the binary.",
                "Compile the source model again.",
            )
        self._first = self._first or node
        if node.attributes.get("embed_mode") != self._first.attributes.get("embed_mode"):
            raise _refused(
                node,
                f"its embed_mode is {node.attributes.get('embed_mode')}, that of {self._first.name!r} is"
                f" {self._first.attributes.get('embed_mode')}, and OpenVINO takes no mixture in one model.",
                "Compile all parts with the same ep.context_embed_mode.",
            )


def _refused(node: ContextNode, why: str, hint: str) -> InvalidGraph:
    return InvalidGraph(f"{EP} cannot load node {node.name!r}: {why}", node=node.name, ep=EP, hint=hint)
