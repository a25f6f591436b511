"""Quantized groups: operators with the DequantizeLinear and QuantizeLinear nodes around
them, which an EP takes whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.partition import NodeGroups

_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
_INTO = "QuantizeLinear"
_OUT_OF = "DequantizeLinear"


class QuantizedGroup(NamedTuple):
    """One operator with the quantization around it.

    Attributes:
        target: the operator.
        sources: its DequantizeLinear nodes; several operators may share one.
        owned: those of them that the target is the first to read. Only these make a
            unit with it: a path from a shared one to an earlier reader could lead back
            to the target.
        sinks: the QuantizeLinear nodes, the only readers of the target's results.
    """

    target: int
    sources: tuple[int, ...]
    owned: tuple[int, ...]
    sinks: tuple[int, ...]


def find_quantized_groups(graph: GraphIndex) -> QuantizedGroups:
    """Return the quantized groups of a graph, which keeps them."""
    if graph.quantized is None:
        graph.quantized = QuantizedGroups(graph)
    groups: QuantizedGroups = graph.quantized
    return groups


class QuantizedGroups:
    """Quantized groups of one graph.

    It has no reference to the graph, which refers to it.

    Attributes:
        groups: in the order of their targets.
    """

    def __init__(self, graph: GraphIndex) -> None:
        self._nodes = graph.nodes
        sources = [i for i, op_type in enumerate(graph.op_types) if op_type == _OUT_OF]
        outer = (i for i in sources if _is_quantizer(graph, i, _OUT_OF))
        targets = {reader for i in outer for reader in _find_readers(graph, i)}
        found = (_find_group(graph, target) for target in sorted(targets))
        self.groups = [group for group in found if group is not None]
        readers: dict[int, set[int]] = {}
        for group in self.groups:
            for source in group.sources:
                readers.setdefault(source, set()).add(group.target)
        # The targets that read each DequantizeLinear which nothing else reads.
        self._targets_by_source = {
            i: targets
            for i, targets in readers.items()
            if not _is_output(graph, i) and targets.issuperset(_find_readers(graph, i))
        }

    def find_incomplete(
        self, nodes: Iterable[int], taken: Sequence[bool]
    ) -> dict[int, str]:
        """Return those of some nodes whose groups are not whole among them, with the
        reason.

        Args:
            nodes: the claim of an EP.
            taken: for each node whether an EP has taken it; such a node breaks no
                group.
        """
        if not self.groups:
            return {}
        chosen = set(nodes)
        left_out: dict[int, str] = {}
        for group in self.groups:
            members = (*group.sources, group.target, *group.sinks)
            missing = next(
                (m for m in members if m not in chosen and not taken[m]), None
            )
            if missing is not None:
                reason = self._explain(group.target, missing)
                left_out.update(
                    (i, reason) for i in (group.target, *group.sinks) if i in chosen
                )

        for source, targets in self._targets_by_source.items():
            if source in chosen and not any(
                t in chosen and t not in left_out for t in targets
            ):
                first = min(targets)
                left_out[source] = left_out.get(first) or self._explain(first, first)

        return left_out

    def make_units(self, nodes: Iterable[int]) -> NodeGroups:
        """Return nodes as units: a group that is whole among them is one, every other
        node is one.
        """
        if not self.groups:
            return [[i] for i in nodes]
        chosen = dict.fromkeys(nodes)
        units: list[list[int]] = []
        for group in self.groups:
            if group.target in chosen:
                unit = [
                    i for i in (*group.owned, group.target, *group.sinks) if i in chosen
                ]
                units.append(sorted(unit))
                for i in unit:
                    del chosen[i]
        units.extend([i] for i in chosen)
        return units

    def _explain(self, target: int, missing: int) -> str:
        return (
            f"{self._describe_node(target)} and the quantization around it are taken "
            f"whole or not at all, and {self._describe_node(missing)} is not taken"
        )

    def _describe_node(self, index: int) -> str:
        node = self._nodes[index]
        return (
            f"{node.op_type} {node.name!r}"
            if node.name
            else f"{node.op_type} (node {index})"
        )


def _find_group(graph: GraphIndex, target: int) -> QuantizedGroup | None:
    if graph.nodes[target].op_type in {_INTO, _OUT_OF}:
        return None
    made_by = dict.fromkeys(
        graph.producer[n] for n in graph.inputs[target] if n in graph.producer
    )
    sources = tuple(i for i in made_by if _is_quantizer(graph, i, _OUT_OF))
    sinks = tuple(dict.fromkeys(_find_readers(graph, target)))
    is_whole = sources and sinks and all(_is_quantizer(graph, i, _INTO) for i in sinks)
    if not is_whole or _is_output(graph, target):
        return None
    owned = tuple(i for i in sources if min(_find_readers(graph, i)) == target)
    return QuantizedGroup(target, sources, owned, sinks)


def _is_output(graph: GraphIndex, index: int) -> bool:
    return not graph.results.isdisjoint(graph.outputs[index])


def _is_quantizer(graph: GraphIndex, index: int, op_type: str) -> bool:
    """Return whether a node is a QuantizeLinear or DequantizeLinear whose scale and
    zero point no node computes.
    """
    node = graph.nodes[index]
    return (
        node.op_type == op_type
        and node.domain in _DOMAINS
        and not any(name in graph.producer for name in graph.inputs[index][1:])
    )


def _find_readers(graph: GraphIndex, index: int) -> list[int]:
    return [
        reader
        for name in graph.outputs[index]
        for reader in graph.consumers.get(name, ())
    ]
