"""EPs with wrong claims and refusals."""

from __future__ import annotations

import itertools
from dataclasses import replace

from conformance.faulty_eps.table import fault
from conformance.small_ep import OPERATORS, SmallProvider

from epctx_core.plugin import (
    ComputeCapability,
    Refusal,
    hookimpl,
    supported_partitions,
)


class Claiming(SmallProvider):
    """Small EP with another get_capability."""

    def claim(self, graph):
        return super().get_capability(graph)

    @hookimpl
    def get_capability(self, graph):
        return self.claim(graph)


@fault("it_takes_at_least_one_node_of_a_model")
class TakesNothing(Claiming):
    def claim(self, graph):
        return []


@fault("it_returns_claims_and_refusals_of_nodes_of_the_graph")
class ClaimsNumbers(Claiming):
    def claim(self, graph):
        return [ComputeCapability([len(graph.nodes) + 7])]


@fault("it_claims_the_same_nodes_each_time_and_does_not_change_the_graph")
class ChangesItsMind(Claiming):
    asked = 0

    def claim(self, graph):
        self.asked += 1
        return super().claim(graph) if self.asked % 2 else []


@fault("two_instances_claim_the_same_nodes")
class LearnsInTheClass(Claiming):
    seen = itertools.count()

    def claim(self, graph):
        return super().claim(graph) if next(self.seen) % 3 else []


@fault("it_claims_no_node_that_it_was_not_shown")
class TakesWhatOthersHave(Claiming):
    def claim(self, graph):
        inner = [
            graph.producer(name) for value in graph.outputs for name in [value.name]
        ]
        return [ComputeCapability([node]) for node in inner if node is not None]


@fault("its_claims_are_convex", "nodes_of_another_ep_between_its_own_separate_them")
class OneSetOfAll(Claiming):
    def claim(self, graph):
        nodes = [node for node in graph.nodes if node.op_type in OPERATORS]
        return [ComputeCapability(nodes)] if nodes else []


@fault("equal_nodes_one_after_another_or_side_by_side_are_one_partition")
class TakesEverySecond(Claiming):
    def claim(self, graph):
        return supported_partitions(
            graph, lambda node: node.op_type in OPERATORS and node.index % 2 == 0
        )


@fault("equal_nodes_one_after_another_or_side_by_side_are_one_partition")
class KeepsSomeInitializers(Claiming):
    def claim(self, graph):
        nodes = [node for node in graph.nodes if node.op_type in OPERATORS]
        return [
            ComputeCapability([node], keep_initializers=bool(node.index % 2))
            for node in nodes
        ]


@fault("each_refusal_has_a_reason_and_no_node_is_both_claimed_and_refused")
class RefusesInSilence(Claiming):
    def claim(self, graph):
        return [
            item if isinstance(item, ComputeCapability) else replace(item, reason=" ")
            for item in super().claim(graph)
        ]


@fault("each_refusal_has_a_reason_and_no_node_is_both_claimed_and_refused")
class ContradictsItself(Claiming):
    def claim(self, graph):
        return [*super().claim(graph), Refusal("not today", graph.nodes)]


@fault("its_claims_do_not_depend_on_names_of_nodes_or_values")
class GoesByNames(Claiming):
    def claim(self, graph):
        return supported_partitions(
            graph,
            lambda node: (
                node.name.startswith(node.op_type.lower()) and node.op_type in OPERATORS
            ),
        )


@fault("it_claims_no_operator_of_an_unknown_domain")
class ForgetsTheDomain(Claiming):
    def claim(self, graph):
        return supported_partitions(graph, lambda node: node.op_type in OPERATORS)


@fault("it_does_not_fail_on_values_of_unknown_type_or_rank")
class TrustsShapes(Claiming):
    def claim(self, graph):
        return supported_partitions(
            graph,
            lambda n: (
                n.op_type in OPERATORS and len(graph.value(n.inputs[0]).shape) > 1
            ),
        )


@fault("it_does_not_fail_on_omitted_optional_inputs")
class TrustsInputs(Claiming):
    def claim(self, graph):
        for node in graph.nodes:
            for name in node.inputs:
                if not name:
                    raise KeyError(name)
        return super().claim(graph)


@fault("it_claims_or_refuses_nodes_in_subgraphs_like_any_others")
class KnowsNoBodies(Claiming):
    def claim(self, graph):
        if graph.parent_node is not None:
            raise NotImplementedError("bodies")
        return super().claim(graph)


@fault("it_does_not_fail_on_any_version_of_the_operator_set")
class KnowsOneVersion(Claiming):
    def claim(self, graph):
        tables = {17: OPERATORS}
        return supported_partitions(
            graph, lambda node: node.op_type in tables[node.opset_version]
        )
