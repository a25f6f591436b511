"""EPs that mix up what comes first: of inputs, outputs, partitions, nodes."""

from __future__ import annotations

import onnx
from conformance.lying_plugins.table import lie
from support.honest_ep import HonestProvider

from epctx_core.plugin import hookimpl


@lie("inputs_and_outputs_in_different_orders_are_not_confused")
class OutputsInReverse(HonestProvider):
    """The last output comes first."""

    def translated(self, partition):
        model = onnx.load_from_string(super().translated(partition))
        outputs = list(model.graph.output)[::-1]
        del model.graph.output[:]
        model.graph.output.extend(outputs)
        return model.SerializeToString(deterministic=True)


@lie("twelve_inputs_are_not_sorted_by_their_names")
class InputsByName(HonestProvider):
    """Takes inputs in the order of their names, not of the boundary."""

    def translated(self, partition):
        model = onnx.load_from_string(super().translated(partition))
        inputs = sorted(model.graph.input, key=lambda value: value.name)
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        return model.SerializeToString(deterministic=True)


@lie("four_partitions_of_one_model_give_the_right_results")
class CompilesInReverse(HonestProvider):
    """`compile` gives the last partition's runnable first."""

    @hookimpl
    def compile(self, partitions):
        return super().compile(partitions)[::-1]


@lie("a_context_model_in_a_file_loads_and_runs")
class LoadsInReverse(HonestProvider):
    """`load_context` gives the last node's runnable first."""

    @hookimpl
    def load_context(self, nodes, reader):
        return super().load_context(nodes, reader)[::-1]


@lie("nodes_may_come_in_any_order")
class LoadsInOrderOfNames(HonestProvider):
    """`load_context` sorts nodes by name and forgets that it did."""

    @hookimpl
    def load_context(self, nodes, reader):
        return super().load_context(
            sorted(nodes, key=lambda node: node.name[::-1]), reader
        )
