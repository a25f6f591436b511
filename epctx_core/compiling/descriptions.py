"""Answers of EPs to `get_ep_context_nodes`, checked against the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import onnx

from epctx_core.context.node import check_attribute
from epctx_core.errors import InvalidGraph, PluginError
from epctx_core.graph.extraction import GraphPartition
from epctx_core.graph.type_table import may_have_shape
from epctx_core.plugin import CORE_ATTRIBUTES, EPContextNode, ValueInfo
from epctx_core.registry.guard import contract_error, to_plain
from epctx_core.sessions.plan import make_shape_error

if TYPE_CHECKING:
    from epctx_core.context.payload_writer import PayloadSet
    from epctx_core.sessions.providers import ProviderChoice

HOOK: Final = "get_ep_context_nodes"


class Descriptions:
    """Descriptions that one EP gives of its nodes.

    Args:
        choice: the EP.
        partitions: those that it compiled.
        payloads: those that it wrote.

    Attributes:
        compatibility_info: the text that its nodes have in common, or None.
        shapes: by name, those for which it compiled.
        graph_names: those that the EP gave the graphs in its payloads.
    """

    def __init__(
        self,
        choice: ProviderChoice,
        partitions: Sequence[GraphPartition],
        payloads: PayloadSet,
    ) -> None:
        self._choice = choice
        self._partitions = partitions
        self.payloads = payloads
        self.compatibility_info: str | None = None
        self.shapes: dict[str, Sequence[int]] = {}
        self.graph_names: dict[GraphPartition, str] = {}
        # EPs give many nodes one mapping: each is looked at once.
        self._checked: set[int] = set()

    def check(self, described: Sequence[EPContextNode]) -> list[EPContextNode]:
        """Return one description for each partition, in the partitions' order,
        checked.
        """
        by_partition = {
            id(node.partition): self._check_node(node) for node in described
        }
        missing = [p for p in self._partitions if id(p) not in by_partition]
        if missing or len(described) != len(self._partitions):
            raise self._error(
                f"described {len(described)} nodes for its {len(self._partitions)} "
                "partitions" + (f"; {missing[0].name} is missing" if missing else "")
            )

        ordered = [by_partition[id(p)] for p in self._partitions]

        # A load finds payloads through their primaries alone.
        found = {
            id(node.payload)
            for node in ordered
            if node.payload is not None and node.main_context
        }
        for key, writer in self.payloads.writers.items():
            if key not in found:
                raise self._error(
                    f"wrote the payload {writer.name!r}, which no node carries with "
                    "main_context=1"
                )
            if self.payloads.final and not writer.size:
                # A load takes an empty file for one that was lost.
                raise self._error(f"wrote nothing into the payload {writer.name!r}")

        if not found:
            raise self._error(
                "gave no node a payload, so that nothing could be loaded again"
            )
        texts = {
            self._check_text(node.compatibility_info, "compatibility_info")
            for node in ordered
        }
        if len(texts) > 1:
            shown = " and ".join(sorted(f"{text!r:.80}" for text in texts)[:2])
            raise self._error(
                "gave nodes of one model different texts as compatibility_info: "
                f"{shown}"
            )

        (self.compatibility_info,) = texts
        return ordered

    def _check_node(self, node: EPContextNode) -> EPContextNode:
        if type(node.attributes) is not dict:
            # A copy: another kind of mapping could return other values when it is
            # written.
            node = replace(node, attributes=dict(to_plain(node.attributes)))
        if id(node.attributes) not in self._checked:
            self._checked.add(id(node.attributes))
            owned = CORE_ATTRIBUTES & node.attributes.keys()
            if owned:
                hint = "; EPContextNode.graph_name says another name" * (
                    "partition_name" in owned
                )
                raise self._error(
                    f"set {', '.join(sorted(owned))}, which only the core writes{hint}"
                )
            for key, value in node.attributes.items():
                try:
                    check_attribute(
                        str(node.partition), onnx.helper.make_attribute(key, value)
                    )
                except (TypeError, ValueError, InvalidGraph) as error:
                    raise self._error(
                        f"set {key!r} to a value that the attribute cannot hold "
                        f"({error})"
                    ) from error

        name = self._check_text(node.graph_name, "graph_name")
        if name is not None and not (name and name.isprintable()):
            raise self._error(
                f"gave the graph_name {name!r:.100}, which is not printable text"
            )
        if name and isinstance(node.partition, GraphPartition):
            self.graph_names[node.partition] = name
        self._check_text(node.doc_string, "doc_string")
        if node.main_context and node.payload is None:
            raise self._error("gave a node main_context=1 without a payload")
        self._check_shapes(node)
        if node.payload is not None and id(node.payload) not in self.payloads.writers:
            raise self._error(
                "gave a payload that did not come from this call's writer"
            )
        return node

    def _check_shapes(self, node: EPContextNode) -> None:
        partition: Any = node.partition
        shapes = to_plain(node.shapes)
        if type(shapes) is not dict:
            raise self._error(
                f"gave a {type(shapes).__name__} instead of a mapping as shapes"
            )
        for name, value in shapes.items():
            shape = to_plain(value)
            if name not in {*partition.input_names, *partition.output_names}:
                fault = f"which is not at the boundary of {partition.name}"
            elif type(shape) is not list or not all(
                type(n) is int and n >= 0 for n in shape
            ):
                fault = "which is not a list of static lengths"
            else:
                proven = ValueInfo(name, partition.graph.types.get_proven(name))
                if not may_have_shape(proven.type, shape):
                    raise make_shape_error(self._choice.record, proven, shape, HOOK)
                self.shapes[name] = shape
                continue
            raise self._error(f"gave the shape {shape!r:.80} for {name!r:.80}, {fault}")

    def _check_text(self, value: Any, field_name: str) -> str | None:
        text = to_plain(value)
        if text is not None and type(text) is not str:
            raise self._error(
                f"gave a {type(text).__name__} instead of a text as {field_name}"
            )
        if text is not None and text.encode(errors="ignore").decode() != text:
            raise self._error(
                f"gave {text!r:.80} as {field_name}, which UTF-8 cannot represent"
            )
        return text

    def _error(self, problem: str) -> PluginError:
        return contract_error(self._choice.record, HOOK, problem)
