"""What an EP says about its EPContext nodes, checked against the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx

from epctx_core.context.node import check_attribute
from epctx_core.errors import InvalidGraph
from epctx_core.graph.subgraph import GraphPartition
from epctx_core.plugin import CORE_ATTRIBUTES, EPContextNode
from epctx_core.registry.guard import blame, contract_broken, plain

if TYPE_CHECKING:
    from epctx_core.context.payloads.writer import PayloadSet
    from epctx_core.errors import PluginError
    from epctx_core.sessions.providers import ProviderChoice


class Descriptions:
    """The nodes that one EP described for its partitions.

    Args:
        choice: the EP.
        partitions: those it compiled.
        payloads: what it wrote.
    """

    def __init__(
        self, choice: ProviderChoice, partitions: Sequence[GraphPartition], payloads: PayloadSet
    ) -> None:
        self._choice = choice
        self._partitions = partitions
        self._payloads = payloads
        # EPs give many nodes one mapping: each is looked at once.
        self._checked: set[int] = set()

    def check(self, described: Sequence[EPContextNode]) -> list[EPContextNode]:
        """Return one description for each partition, in the partitions' order."""
        by_partition: dict[int, EPContextNode] = {}
        for node in described:
            by_partition[id(node.partition)] = node
            self._check_node(node)
        missing = [p for p in self._partitions if id(p) not in by_partition]
        if missing or len(described) != len(self._partitions):
            raise self._broken(
                f"described {len(described)} nodes for its {len(self._partitions)} partitions"
                + (f"; {missing[0].name} is missing" if missing else "")
            )
        ordered = [by_partition[id(p)] for p in self._partitions]
        # A load finds payloads through their primaries alone.
        found = {id(node.payload) for node in ordered if node.payload is not None and node.main_context}
        for key, writer in self._payloads.writers.items():
            if key not in found:
                raise self._broken(
                    f"wrote the payload {writer.name!r}, which no node carries with main_context=1"
                )
            if self._payloads.final and not writer.size:
                # A load takes an empty file for one that was lost.
                raise self._broken(f"wrote nothing into the payload {writer.name!r}")
        if not found:
            raise self._broken("gave no node a payload, so that nothing could be loaded again")
        return ordered

    def _check_node(self, node: EPContextNode) -> None:
        if type(node.attributes) is not dict:
            with blame(self._choice.record, "get_ep_context_nodes"):
                # What was checked is what is written, whatever a mapping says when it is asked again.
                object.__setattr__(node, "attributes", dict(plain(node.attributes)))
        if id(node.attributes) not in self._checked:
            self._checked.add(id(node.attributes))
            self._check_attributes(node)
        self._name_graph(node)
        if node.main_context and node.payload is None:
            raise self._broken("gave a node main_context=1 without a payload")
        if node.payload is not None and id(node.payload) not in self._payloads.writers:
            raise self._broken("gave a payload that did not come from this call's writer")

    def _name_graph(self, node: EPContextNode) -> None:
        name: Any = plain(node.graph_name)
        if name is not None and not (type(name) is str and name and name.isprintable()):
            raise self._broken(f"gave the graph_name {name!r:.100}, which is not printable text")
        if isinstance(node.partition, GraphPartition):
            node.partition.said_name = name or ""

    def _check_attributes(self, node: EPContextNode) -> None:
        owned = CORE_ATTRIBUTES & node.attributes.keys()
        if owned:
            hint = "; EPContextNode.graph_name says another name" * ("partition_name" in owned)
            raise self._broken(f"set {', '.join(sorted(owned))}, which only the core writes{hint}")
        for key, value in node.attributes.items():
            try:
                check_attribute(str(node.partition), onnx.helper.make_attribute(key, value))
            except (TypeError, ValueError, InvalidGraph) as error:
                raise self._broken(
                    f"set {key!r} to a value that the attribute cannot hold ({error})"
                ) from error

    def _broken(self, what: str) -> PluginError:
        return contract_broken(self._choice.record, "get_ep_context_nodes", what)
