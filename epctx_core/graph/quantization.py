"""Groups of DequantizeLinear, an operator, QuantizeLinear: what a device with integer arithmetic fuses.

Outside of its group such an operator would compute in float what its model means to be computed in
integers, so a group is claimed whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctx_core.graph.index import GraphIndex

_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
_INTO, _OUT_OF = "QuantizeLinear", "DequantizeLinear"


@dataclass(frozen=True)
class QuantizedGroup:
    """One operator with what quantizes around it.

    Attributes:
        target: the operator.
        sources: its DequantizeLinear nodes; several operators may share one.
        owned: those of them that the target is the first to read. Only these make a unit with it: a
            path from a shared one to an earlier reader could lead back to the target.
        sinks: the QuantizeLinear nodes, the only readers of the target's results.
    """

    target: int
    sources: tuple[int, ...]
    owned: tuple[int, ...]
    sinks: tuple[int, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """All nodes of the group."""
        return (*self.sources, self.target, *self.sinks)


class QuantizedGroups:
    """The groups of one graph.

    Holds what it found and no graph: the graph holds it.

    Attributes:
        groups: in the order of their targets.
    """

    def __init__(self, graph: GraphIndex) -> None:
        finder = _Finder(graph)
        self.groups = finder.groups()
        self._targets_by_source = finder.targets_by_source(self.groups)
        self._nodes = graph.nodes

    def incomplete(self, nodes: Iterable[int], taken: Sequence[bool]) -> dict[int, str]:
        """Return those of some nodes whose groups are not whole among them, with the reason.

        Args:
            nodes: what an EP would take.
            taken: for each node whether it is somebody's already; such a node breaks no group.
        """
        if not self.groups:
            return {}
        wanted = set(nodes)
        left_out: dict[int, str] = {}
        for group in self.groups:
            missing = next((m for m in group.members if m not in wanted and not taken[m]), None)
            if missing is not None:
                reason = self._reason(group.target, missing)
                left_out.update((i, reason) for i in (group.target, *group.sinks) if i in wanted)
        for source, targets in self._targets_by_source.items():
            if source in wanted and not any(t in wanted and t not in left_out for t in targets):
                first = min(targets)
                left_out[source] = left_out.get(first) or self._reason(first, first)
        return left_out

    def units(self, nodes: Iterable[int]) -> list[list[int]]:
        """Return nodes as units: a group that is whole among them is one, every other node is one."""
        if not self.groups:
            return [[i] for i in nodes]
        wanted = dict.fromkeys(nodes)
        units: list[list[int]] = []
        for group in self.groups:
            if group.target in wanted:
                unit = [i for i in (*group.owned, group.target, *group.sinks) if i in wanted]
                units.append(sorted(unit))
                for i in unit:
                    del wanted[i]
        units.extend([i] for i in wanted)
        return units

    def _reason(self, target: int, missing: int) -> str:
        return (
            f"{self._called(target)} and what quantizes around it are taken whole or not at all, "
            f"and {self._called(missing)} is not taken"
        )

    def _called(self, index: int) -> str:
        node = self._nodes[index]
        return f"{node.op_type} {node.name!r}" if node.name else f"{node.op_type} (node {index})"


class _Finder:
    """Looks for the groups of a graph."""

    def __init__(self, graph: GraphIndex) -> None:
        self._graph = graph

    def groups(self) -> list[QuantizedGroup]:
        """Return the groups in the order of their targets."""
        if not any(op_type == _OUT_OF for _, op_type in self._graph.operators):
            return []
        sources = [i for i, op_type in enumerate(self._graph.op_types) if op_type == _OUT_OF]
        targets = {reader for i in sources if self._quantizes(i, _OUT_OF) for reader in self._readers(i)}
        found = (self._group(target) for target in sorted(targets))
        return [group for group in found if group is not None]

    def targets_by_source(self, groups: Iterable[QuantizedGroup]) -> dict[int, set[int]]:
        """Return the targets that read each DequantizeLinear which nothing else reads."""
        targets: dict[int, set[int]] = {}
        for group in groups:
            for source in group.sources:
                targets.setdefault(source, set()).add(group.target)
        return {i: t for i, t in targets.items() if not self._is_output(i) and t.issuperset(self._readers(i))}

    def _group(self, target: int) -> QuantizedGroup | None:
        graph = self._graph
        if graph.nodes[target].op_type in {_INTO, _OUT_OF}:
            return None
        made_by = dict.fromkeys(graph.producer[n] for n in graph.inputs[target] if n in graph.producer)
        sources = tuple(i for i in made_by if self._quantizes(i, _OUT_OF))
        sinks = tuple(dict.fromkeys(self._readers(target)))
        if not sources or not sinks or self._is_output(target):
            return None
        if not all(self._quantizes(i, _INTO) for i in sinks):
            return None
        owned = tuple(i for i in sources if min(self._readers(i)) == target)
        return QuantizedGroup(target, sources, owned, sinks)

    def _is_output(self, index: int) -> bool:
        return not self._graph.results.isdisjoint(self._graph.outputs[index])

    def _quantizes(self, index: int, op_type: str) -> bool:
        """Whether a node is a QuantizeLinear or DequantizeLinear whose scale and zero point no node computes."""
        node, graph = self._graph.nodes[index], self._graph
        return (
            node.op_type == op_type
            and node.domain in _DOMAINS
            and not any(name in graph.producer for name in graph.inputs[index][1:])
        )

    def _readers(self, index: int) -> list[int]:
        consumers = self._graph.consumers
        return [reader for name in self._graph.outputs[index] for reader in consumers.get(name, ())]
