"""One EP's answer to `get_capability`, checked against the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from epctx_core.errors import concealed
from epctx_core.graph.view import Node
from epctx_core.plugin import ComputeCapability, Refusal
from epctx_core.registry.guard import blame, contract_broken, plain

if TYPE_CHECKING:
    from epctx_core.errors import PluginError
    from epctx_core.graph.index import GraphIndex
    from epctx_core.registry.instances import ProviderInstances


@dataclass(frozen=True, kw_only=True)
class RefusalRecord:
    """Nodes of a graph that an EP did not take, and why."""

    ep: str
    reason: str
    graph: GraphIndex
    nodes: tuple[int, ...]


class Claims:
    """One EP's answer, checked."""

    def __init__(
        self, graph: GraphIndex, instances: ProviderInstances, ep: str, taken: Sequence[bool]
    ) -> None:
        self.ep = ep
        self.fused: dict[bool, list[list[int]]] = {False: [], True: []}
        self.exact: list[tuple[list[int], ComputeCapability]] = []
        self.single: list[int] = []
        self.refusals: list[RefusalRecord] = []
        self._graph = graph
        self._record = instances.record(ep)
        self._claimed = list(taken)

    def add(self, item: ComputeCapability | Refusal) -> None:
        """Check one item of the answer and file it."""
        if isinstance(item, Refusal):
            self.refuse(_reason(item), self._indices(item.nodes))
        else:
            nodes = self._claim(item.nodes)
            if item.token is not None and not item.exact:
                raise self.broken(
                    f"claims a set at {self.describe(nodes[0])} with a token, but without exact=True"
                )
            if item.exact and not item.fuse:
                raise self.broken(f"claims {self.describe(nodes[0])} with fuse=False and exact=True")
            if item.exact:
                self.exact.append((nodes, item))
            elif item.fuse:
                self.fused[item.keep_initializers].append(nodes)
            else:
                self.single.extend(nodes)

    def refuse(self, reason: str, nodes: Iterable[int]) -> None:
        """Record nodes that are left to the next EP."""
        self.refusals.append(RefusalRecord(ep=self.ep, reason=reason, graph=self._graph, nodes=tuple(nodes)))

    def leave_out(self, reasons: Mapping[int, str]) -> None:
        """Record what the core left out of the groups that it made for the EP."""
        nodes: dict[str, list[int]] = {}
        for index, reason in reasons.items():
            if not self._claimed[index]:
                nodes.setdefault(reason, []).append(index)
        for reason, indices in nodes.items():
            self.refuse(reason, sorted(indices))

    def check_nothing_fused(self) -> None:
        """Raise PluginError if an EP without a compiler claims nodes to compile."""
        exact = (nodes for nodes, _ in self.exact)
        for nodes in (*self.fused[False], *self.fused[True], *exact):
            raise self.broken(f"claims {self.describe(nodes[0])} with fuse=True, but has no compile hook")

    def describe(self, index: int) -> str:
        """Return how messages call a node."""
        node = self._graph.nodes[index]
        return f"node {node.name!r} ({node.op_type})"

    def broken(self, what: str) -> PluginError:
        """Return the error for an answer that breaks the contract."""
        return contract_broken(self._record, "get_capability", what)

    def _claim(self, nodes: Any) -> list[int]:
        indices = self._indices(nodes)
        if not indices:
            raise self.broken("claims a set of no nodes")
        for index in indices:
            if self._claimed[index]:
                raise self.broken(f"claims {self.describe(index)} twice or takes it from another EP")
            self._claimed[index] = True
        return sorted(indices)

    def _indices(self, nodes: Any) -> list[int]:
        most = len(self._claimed)
        with blame(self._record, "get_capability"):  # whose iterator and items run
            try:
                nodes = list(islice(nodes, most + 1))
                own = [n.index for n in nodes if isinstance(n, Node) and n.is_in(self._graph)]
                numbers = (n if isinstance(n, int) else n.index for n in nodes)
                indices = own if len(own) == len(nodes) else [*map(int.__index__, numbers)]
            except (TypeError, AttributeError):
                raise self.broken("names something else than nodes of the graph") from None
        if len(nodes) > most:
            raise self.broken(f"names more nodes than the graph has, which are {most}")
        for node in nodes if indices is not own else ():
            if isinstance(node, Node) and not node.is_in(self._graph):
                raise self.broken(f"names node {node.name!r} ({node.op_type}), which is in another graph")
        for index in indices:
            if not isinstance(index, int) or not 0 <= index < len(self._claimed):
                raise self.broken(f"names node {index!r}, which the graph does not have")
        return indices


def _reason(refusal: Refusal) -> str:
    reason = plain(refusal.reason)
    return concealed(reason) if type(reason) is str else reason
