"""Placement of a model's nodes: the EP that runs them, and why others left them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_core.frozen import dataclass
from epctx_core.graph.walks import shorten_domain, walk_nodes
from epctx_core.options.choices import CPU_EP

if TYPE_CHECKING:
    from epctx_core.graph.index import GraphIndex
    from epctx_core.registry.records import PluginRecord
    from epctx_core.sessions.assignment import Assignment, GraphAssignment
    from epctx_core.sessions.source import OpenModel

    _Pieces: TypeAlias = "dict[GraphIndex, list[int]]"

_FEW = 20
"""Part of the computing nodes below which an EP's share is worth a warning."""
_SHOWN = 4
"""Operators in a row of a table."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Placement of the nodes of a model as a session runs it.

    In a row, `nodes` is the number of nodes with those inside subgraphs and functions,
    where an EPContext node is one; `operators` has the number by operator, a call of a
    function being one; `weight_bytes` is the size of the weights that they read, each
    once, without those in payloads.

    Attributes:
        nodes: number of all nodes, those inside subgraphs and functions included.
        folded_nodes: number of nodes of the source that are in no row: initializers
            took their place before EPs were asked.
        inside_nodes: number of those inside subgraphs and functions, of all nodes and
            of the folded ones.
        eps: a row for each EP in order of priority, the CPU EP last, with its name
            `ep`, the distribution that it is `provided_by` (`engine` for the CPU EP,
            empty for the source of EPContext nodes of which no EP was asked), and
            whether it is `simulated`.
        left: a row for each `ep` and `reason` for which it left nodes to the CPU EP,
            those of the most nodes first; a reason that begins with the operator is
            without it. Nodes that several EPs refused are in a row of each; those that
            only serve others which the EP refused, in none.
    """

    nodes: int
    folded_nodes: int
    inside_nodes: int
    eps: Sequence[Mapping[str, Any]]
    left: Sequence[Mapping[str, Any]]

    @property
    def total_nodes(self) -> int:
        """Number of nodes of the source, the folded ones included."""
        return self.nodes + self.folded_nodes

    def find_small_shares(self) -> dict[str, str]:
        """Return, for each EP that gets less than a twentieth of the nodes that
        compute, and less than the CPU EP, a sentence that says so.
        """
        # No load asks, and the module is large.
        from epctx_core.graph.partition import MOVING

        shares = {
            row["ep"]: sum(
                count for name, count in row["operators"].items() if name not in MOVING
            )
            for row in self.eps
        }
        total = sum(shares.values())
        left = shares.pop(CPU_EP)
        return {
            ep: (
                f"{ep} gets {share:,} of {total:,} computing nodes "
                f"({share / total:.1%})."
            )
            for ep, share in shares.items()
            if share < min(left, total / _FEW)
        }

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """Return it as tables, with the most frequent operators of each row."""
        from epctx_core.rendering import render

        facts = self.as_dict()
        for row in (*facts["eps"], *facts["left"]):
            names = [f"{count} {name}" for name, count in row["operators"].items()]
            row["operators"] = ", ".join(names[:_SHOWN] + ["…"] * (len(names) > _SHOWN))
        counts = {
            "inside subgraphs and functions": self.inside_nodes,
            "folded": self.folded_nodes,
        }
        some = [f"{name}: {count}" for name, count in counts.items() if count]
        left = f"on the CPU EP: {self.eps[-1]['nodes']}"
        return render(
            ", ".join([f"nodes: {self.total_nodes}", *some, left]),
            facts,
            eps="ep provided_by simulated nodes weight_bytes operators",
            left="ep nodes operators reason",
        )


def describe_placement(
    model: OpenModel,
    assignment: Assignment,
    records: Mapping[str, PluginRecord],
    loaded: Mapping[str, int],
) -> Placement:
    """Return the placement of the nodes of a model; linear in nodes, and no weight is
    read.

    Args:
        model: the model.
        assignment: of the whole model.
        records: the session's EPs, in order of priority.
        loaded: EP name, or a source that no EP was looked up for, to the number of its
            EPContext nodes.
    """
    eps_of_nodes = {**records, **loaded, CPU_EP: ()}
    placed: dict[str, _Pieces] = {
        ep: {} for ep in sorted(eps_of_nodes, key=CPU_EP.__eq__)
    }
    _place(assignment.main, CPU_EP, placed)
    eps = [
        {
            "ep": ep,
            "provided_by": (
                records[ep].origin if ep in records else "engine" * (ep == CPU_EP)
            ),
            "simulated": ep in records and bool(records[ep].simulated),
            **count_nodes(pieces, compiled=loaded.get(ep, 0)),
        }
        for ep, pieces in placed.items()
    ]

    on_cpu = {graph: {*nodes} for graph, nodes in placed[CPU_EP].items()}
    refused: dict[tuple[str, str], dict[GraphIndex, set[int]]] = {}
    for each in assignment.refusals:
        nodes = on_cpu.get(each.graph, set()).intersection(each.nodes)
        if own := nodes - each.follows.keys():
            operator = each.graph.op_types[each.nodes[0]]
            reason = each.reason.removeprefix(f"{operator}: ")
            nodes_by_graph = refused.setdefault((each.ep, reason), {})
            nodes_by_graph.setdefault(each.graph, set()).update(own)
    left = [
        {"ep": ep, "reason": reason, **count_nodes(nodes_by_graph)}
        for (ep, reason), nodes_by_graph in refused.items()
    ]
    number = itemgetter("nodes")
    nodes = sum(map(number, eps))
    outside = len(assignment.main.graph.nodes) + model.folded_outside
    return Placement(
        nodes=nodes,
        folded_nodes=model.folded,
        inside_nodes=nodes + model.folded - outside,
        eps=eps,
        left=sorted(left, key=number, reverse=True),
    )


def _place(part: GraphAssignment, around: str, placed: dict[str, _Pieces]) -> None:
    """Add the nodes of a graph and its subgraphs by EP; those that no EP took are
    those of the EP that runs the node around the graph.
    """
    shares: list[tuple[str, Sequence[int]]] = [
        (around, [*part.left_over(), *part.executed]),
        *((p.ep, p.node_indices) for p in part.claimed),
    ]
    for ep, nodes in shares:
        placed[ep].setdefault(part.graph, []).extend(nodes)
    if part.subgraphs:
        takers = {node: ep for ep, nodes in shares for node in nodes}
        for node, subgraphs in part.subgraphs.items():
            for subgraph in subgraphs.values():
                _place(subgraph, takers[node], placed)


def count_nodes(
    pieces: Mapping[GraphIndex, Collection[int]], *, compiled: int = 0
) -> dict[str, Any]:
    """Return the part of a row that counts: of nodes by graph, and of EPContext nodes.

    Of nodes with subgraphs that have an index those inside are nodes of their own.
    """
    counts = Counter({("com.microsoft", "EPContext"): compiled})
    weights: dict[int, int] = {}
    inside = 0
    for graph, nodes in pieces.items():
        whole = {*graph.holders}.intersection(nodes) - graph.subgraphs.keys()
        holders = [graph.nodes[i] for i in whole]
        # Calls are inlined unless an EP keeps them.
        inside += graph.count_called(holders)
        domains = map(graph.domains.__getitem__, nodes)
        counts.update(zip(domains, map(graph.op_types.__getitem__, nodes), strict=True))
        counts.update((n.domain, n.op_type) for n in walk_nodes(holders))
        counts.subtract((n.domain, n.op_type) for n in holders)
        read = map(graph.explicit_inputs.__getitem__, nodes if graph.weights else ())
        for name in graph.weights.keys() & {*chain.from_iterable(read)}:
            weights[id(graph.weights[name])] = graph.weights[name].nbytes
    return describe_counts(+counts, sum(weights.values()), inside)


def describe_counts(
    found: Mapping[tuple[str, str], int], weight_bytes: int, inside: int = 0
) -> dict[str, Any]:
    """Return the part of a row that counts.

    Args:
        found: the number of nodes by domain and operator.
        weight_bytes: the size of the weights that they read.
        inside: the number of further nodes, inside them.
    """
    operators = Counter[str]()
    for (domain, operator), count in found.items():
        prefix = shorten_domain(domain)
        operators[f"{prefix}::{operator}" if prefix else operator] += count
    return {
        "nodes": inside + operators.total(),
        "operators": dict(operators.most_common()),
        "weight_bytes": weight_bytes,
    }
