"""EPs that take what they should not, or say so wrongly."""

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
    """The small EP with another answer to get_capability."""

    def answer(self, graph):
        return super().get_capability(graph)

    @hookimpl
    def get_capability(self, graph):
        return self.answer(graph)


@fault("it_takes_something_of_a_model")
class TakesNothing(Claiming):
    def answer(self, graph):
        return []


@fault("its_answers_are_claims_and_refusals_of_nodes_of_the_graph")
class ClaimsNumbers(Claiming):
    def answer(self, graph):
        return [ComputeCapability([len(graph.nodes) + 7])]


@fault("it_gives_the_same_answer_when_it_is_asked_twice")
class ChangesItsMind(Claiming):
    asked = 0

    def answer(self, graph):
        self.asked += 1
        return super().answer(graph) if self.asked % 2 else []


@fault("two_instances_give_the_same_answer")
class LearnsInTheClass(Claiming):
    seen = itertools.count()

    def answer(self, graph):
        return super().answer(graph) if next(self.seen) % 3 else []


@fault("it_takes_no_node_that_it_was_not_shown")
class TakesWhatOthersHave(Claiming):
    def answer(self, graph):
        inner = [graph.producer(name) for value in graph.outputs for name in [value.name]]
        return [ComputeCapability([node]) for node in inner if node is not None]


@fault("its_sets_are_convex", "what_another_ep_has_between_its_nodes_keeps_them_apart")
class OneSetOfAll(Claiming):
    def answer(self, graph):
        nodes = [node for node in graph.nodes if node.op_type in OPERATORS]
        return [ComputeCapability(nodes)] if nodes else []


@fault("equal_nodes_one_after_another_or_side_by_side_are_one_partition")
class TakesEverySecond(Claiming):
    def answer(self, graph):
        return supported_partitions(graph, lambda node: node.op_type in OPERATORS and node.index % 2 == 0)


@fault("equal_nodes_one_after_another_or_side_by_side_are_one_partition")
class KeepsSomeInitializers(Claiming):
    def answer(self, graph):
        nodes = [node for node in graph.nodes if node.op_type in OPERATORS]
        return [ComputeCapability([node], keep_initializers=bool(node.index % 2)) for node in nodes]


@fault("each_refusal_has_a_reason_that_a_user_can_read_and_is_of_no_node_that_it_takes")
class RefusesInSilence(Claiming):
    def answer(self, graph):
        return [
            item if isinstance(item, ComputeCapability) else replace(item, reason=" ")
            for item in super().answer(graph)
        ]


@fault("each_refusal_has_a_reason_that_a_user_can_read_and_is_of_no_node_that_it_takes")
class ContradictsItself(Claiming):
    def answer(self, graph):
        return [*super().answer(graph), Refusal("not today", graph.nodes)]


@fault("names_of_nodes_and_values_do_not_matter")
class GoesByNames(Claiming):
    def answer(self, graph):
        return supported_partitions(
            graph, lambda node: node.name.startswith(node.op_type.lower()) and node.op_type in OPERATORS
        )


@fault("it_leaves_operators_of_an_unknown_domain_alone_whatever_they_are_called")
class ForgetsTheDomain(Claiming):
    def answer(self, graph):
        return supported_partitions(graph, lambda node: node.op_type in OPERATORS)


@fault("a_value_of_unknown_type_or_rank_is_no_accident")
class TrustsShapes(Claiming):
    def answer(self, graph):
        return supported_partitions(
            graph, lambda n: n.op_type in OPERATORS and len(graph.value(n.inputs[0]).shape) > 1
        )


@fault("omitted_optional_inputs_are_no_accident")
class TrustsInputs(Claiming):
    def answer(self, graph):
        for node in graph.nodes:
            for name in node.inputs:
                if not name:
                    raise KeyError(name)
        return super().answer(graph)


@fault("bodies_of_control_flow_are_taken_or_refused_like_any_graph")
class KnowsNoBodies(Claiming):
    def answer(self, graph):
        if graph.parent_node is not None:
            raise NotImplementedError("bodies")
        return super().answer(graph)


@fault("models_of_any_operator_set_version_are_looked_at_without_an_accident")
class KnowsOneVersion(Claiming):
    def answer(self, graph):
        tables = {17: OPERATORS}
        return supported_partitions(graph, lambda node: node.op_type in tables[node.opset_version])
