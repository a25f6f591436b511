"""EPs that claim what they may not, or look at graphs with their hands."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from conformance.lying_plugins.table import lie
from conformance.thorough_ep import ThoroughProvider
from support.honest_ep import OPERATORS, HonestProvider

from epctx_core.plugin import ComputeCapability, hookimpl


class Claiming(HonestProvider):
    """Claims what `sets` says."""

    @hookimpl
    def get_capability(self, graph):
        if graph.parent_node is not None:
            return []
        taken = [node for node in graph.nodes if self.verdict(node, graph) is True]
        return [ComputeCapability(nodes) for nodes in self.sets(graph, taken) if nodes]


@lie("it_returns_claims_and_refusals_of_nodes_of_the_graph")
class ClaimsAroundOthers(Claiming):
    """Takes the first and the last node as one set, whoever lies between them."""

    def sets(self, graph, taken):
        return [[taken[0], taken[-1]]] if len(taken) > 1 else [taken]


@lie("it_returns_claims_and_refusals_of_nodes_of_the_graph")
class ClaimsACycle(Claiming):
    """Takes two sets of which each needs the other's results."""

    def sets(self, graph, taken):
        return [[taken[0], taken[-1]], taken[1:-1]] if len(taken) > 2 else [taken]


@lie("it_returns_claims_and_refusals_of_nodes_of_the_graph")
class ClaimsTwice(Claiming):
    """Takes its last node in two sets."""

    def sets(self, graph, taken):
        return [[node] for node in (*taken, *taken[-1:])]


@lie("nodes_of_another_ep_between_its_own_separate_them")
class ClaimsWhatOthersTook(Claiming):
    """Walks on to producers and consumers, and takes those too."""

    def sets(self, graph, taken):
        found = {node.index: node for node in taken}
        for node in taken:
            near = [graph.producer(name) for name in node.inputs]
            near += [other for name in node.outputs for other in graph.consumers(name)]
            found |= {
                n.index: n for n in near if n is not None and n.op_type in OPERATORS
            }
        return graph.convex_groups([found[i] for i in sorted(found)]) if found else []


@lie("it_returns_claims_and_refusals_of_nodes_of_the_graph")
class ClaimsNodesOfAnotherGraph(Claiming):
    """Gives the nodes of the first graph that it ever saw."""

    first: ClassVar[dict[str, list]] = {}

    def sets(self, graph, taken):
        return [self.first.setdefault("nodes", taken)]


@lie("it_claims_no_operator_of_an_unknown_domain")
class ClaimsEverythingUnseen(HonestProvider):
    """Takes whatever there is, and fails on what it cannot compile."""

    def verdict(self, node, graph):
        return True

    def runnable(self, graph):
        import onnx

        unknown = {
            node.op_type for node in onnx.load_from_string(graph).graph.node
        } - OPERATORS
        if unknown:
            raise LookupError(f"no translation for {sorted(unknown)}")
        return super().runnable(graph)


@lie("it_claims_the_same_nodes_each_time_and_does_not_change_the_graph")
class ChangesItsMind(HonestProvider):
    """Takes less each time that it is asked."""

    asked: ClassVar[list[str]] = []

    def verdict(self, node, graph):
        self.asked.append(node.op_type)
        return super().verdict(node, graph) if len(self.asked) % 2 else "not this time"


@lie("it_claims_the_same_nodes_each_time_and_does_not_change_the_graph")
class EditsTheGraph(HonestProvider):
    """Leaves marks in the nodes that it looks at."""

    def verdict(self, node, graph):
        node._graph.nodes[node.index].doc_string = "seen"
        return super().verdict(node, graph)


class ClaimingExactly(ThoroughProvider):
    """Claims what `sets` says, exactly."""

    @hookimpl
    def get_capability(self, graph):
        taken = [node for node in graph.nodes if self.verdict(node, graph) is True]
        sets = [nodes for nodes in self.sets(taken) if nodes]
        return [
            ComputeCapability(nodes, exact=True, token=self.program(nodes))
            for nodes in sets
        ]


@lie("it_returns_claims_and_refusals_of_nodes_of_the_graph")
class ClaimsExactlyAroundOthers(ClaimingExactly):
    """Takes the first and the last node as one exact set, whoever lies between them."""

    def sets(self, taken):
        return [[taken[0], taken[-1]]] if len(taken) > 1 else [taken]


@lie("it_returns_claims_and_refusals_of_nodes_of_the_graph")
class ClaimsExactSetsThatOverlap(ClaimingExactly):
    """Takes its last node in two exact sets."""

    def sets(self, taken):
        return [taken, taken[-1:]]


@lie("it_returns_claims_and_refusals_of_nodes_of_the_graph")
class GivesATokenForNothing(ThoroughProvider):
    """Wants a token back with a set that it lets the core merge."""

    @hookimpl
    def get_capability(self, graph):
        return [
            replace(item, exact=False) if isinstance(item, ComputeCapability) else item
            for item in super().get_capability(graph)
        ]


@lie("partitions_may_come_in_any_order")
class CountsItsClaims(ThoroughProvider):
    """Takes it that partitions come in the order in which it claimed them."""

    def program(self, nodes):
        self.programs = [*getattr(self, "programs", ()), super().program(nodes)]
        return self.programs[-1]

    def program_of(self, partition):
        return self.programs[len(self.compiled) - 1]


@lie("it_compiles_a_part_of_its_claims")
class ExpectsAllItsClaims(CountsItsClaims):
    """Takes it that each of its claims becomes a partition."""

    @hookimpl
    def compile(self, partitions):
        for program, partition in zip(self.programs, partitions, strict=True):
            partition.token.nodes = program.nodes
        return super().compile(partitions)

    def program_of(self, partition):
        return partition.token
