"""Checks of OpenVINO's EPContext nodes before a payload is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_sim_sdk.loading import ContextLoader, refused

from epctx_sim_openvino.devices import EP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.plugin import CompiledPartition, ContextNode, ContextReader


class NodeLoader(ContextLoader):
    """Loader of one session's nodes that checks what blobs are found by."""

    _first: ContextNode | None = None

    def load(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> list[CompiledPartition]:
        """Return one runnable for each node, in order.

        Raises:
            InvalidGraph: a node that OpenVINO does not take, or a payload that does not
                fit it.
        """
        for node in nodes:
            self._check(node)
        return super().load(nodes, reader)

    def _check(self, node: ContextNode) -> None:
        if not node.attributes.get("partition_name"):
            raise refused(
                EP,
                node,
                (
                    "it has no partition_name, by which OpenVINO finds the blob in "
                    "the binary."
                ),
                "Compile the source model again.",
            )
        self._first = self._first or node
        if node.attributes.get("embed_mode") != self._first.attributes.get(
            "embed_mode"
        ):
            raise refused(
                EP,
                node,
                f"its embed_mode is {node.attributes.get('embed_mode')}, that of "
                f"{self._first.name!r} is {self._first.attributes.get('embed_mode')}, "
                "and OpenVINO takes no mixture in one model.",
                "Compile all parts with the same ep.context_embed_mode.",
            )
