"""EPs whose payloads or nodes are wrong."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

from conformance.faulty_eps.bases import Describing, Running
from conformance.faulty_eps.table import fault
from conformance.small_ep import SmallProvider

from epctx_core.plugin import (
    Finding,
    Severity,
    hookimpl,
)


def _with_bytes(content):
    def around(_self, nodes, _writer):
        nodes[0].payload.write(content())
        return nodes

    return around


@fault(
    "a_second_compile_in_another_folder_gives_the_same_files",
    "a_second_compile_gives_the_same_embedded_payloads",
    "compiles_in_two_threads_at_once_give_the_same_files",
    "it_describes_the_same_nodes_each_time",
)
class WritesTheTime(Describing):
    around = _with_bytes(lambda: b" " * (time.perf_counter_ns() // 100 % 997))


@fault("another_process_with_another_hash_seed_gives_the_same_files")
class WritesASet(Describing):
    around = _with_bytes(lambda: b" " * (hash("spam") % 97))


@fault("earlier_compiles_make_no_difference")
class CountsItsCompiles(Describing):
    number = itertools.count()
    around = _with_bytes(lambda: b" " * next(CountsItsCompiles.number))


@fault("its_files_contain_no_trace_of_the_machine")
class TellsItsHome(Describing):
    def around(self, nodes, writer):
        with self.context.scratch() as folder:
            return [replace(node, attributes={"notes": str(folder)}) for node in nodes]


@fault("it_describes_the_same_nodes_each_time")
class NumbersItsAnswers(Describing):
    asked = 0

    def around(self, nodes, writer):
        self.asked += 1
        return [
            replace(node, attributes={"notes": f"answer {self.asked}"})
            for node in nodes
        ]


@fault("partitions_may_come_in_several_calls")
class ForgetsEarlierCalls(SmallProvider):
    @hookimpl
    def compile(self, partitions):
        self._compiled = []
        return super().compile(partitions)


@fault("a_session_may_run_after_its_context_model_is_written")
class EndsWithItsDescription(Running):
    described = False

    def around(self, run, inputs):
        if self.described:
            raise RuntimeError("the compiler is gone")
        return run(inputs)

    @hookimpl
    def get_ep_context_nodes(self, writer):
        self.described = True
        return super().get_ep_context_nodes(writer)


@fault("another_process_loads_what_this_one_compiled")
class RemembersInTheClass(SmallProvider):
    known = {}  # noqa: RUF012 - that is the fault

    @hookimpl
    def compile(self, partitions):
        self.known.update({partition.name: None for partition in partitions})
        return super().compile(partitions)

    def _model(self, node, payload):
        self.known[node.partition_name]
        return super()._model(node, payload)


@fault("its_nodes_and_the_values_around_them_may_be_renamed")
class GoesByNodeNames(SmallProvider):
    def _model(self, node, payload):
        if node.name != node.partition_name:
            raise KeyError(node.name)
        return super()._model(node, payload)


@fault("partition_names_may_have_a_prefix")
class ReadsNames(SmallProvider):
    def _model(self, node, payload):
        if not node.partition_name.startswith(self.name):
            raise KeyError(node.partition_name)
        return super()._model(node, payload)


@fault("each_attribute_of_its_nodes_comes_back_as_it_was_written")
class WritesLongFractions(Describing):
    def around(self, nodes, writer):
        return [replace(node, attributes={"scale": 0.1}) for node in nodes]


@fault("its_nodes_and_the_values_around_them_may_be_renamed")
class GoesByValueNames(SmallProvider):
    def _model(self, node, payload):
        if any(
            value.name.startswith("renamed") for value in (*node.inputs, *node.outputs)
        ):
            raise KeyError(node.inputs)
        return super()._model(node, payload)


@fault("verification_finds_no_error_in_its_context_model")
class VerifiesBadly(SmallProvider):
    @classmethod
    def verify_payloads(cls, context, nodes, reader):
        return [
            Finding(Severity.ERROR, "container-refused", "no good", node=node.name)
            for node in nodes
        ]


@fault("nodes_may_come_in_any_order")
class SortsItsNodes(SmallProvider):
    @hookimpl
    def load_context(self, nodes, reader):
        return super().load_context(
            sorted(nodes, key=lambda node: node.partition_name), reader
        )


@fault("it_loads_the_nodes_of_a_payload_in_several_calls")
class LoadsOnce(SmallProvider):
    loaded = False

    @hookimpl
    def load_context(self, nodes, reader):
        if self.loaded:
            raise RuntimeError("loaded already")
        self.loaded = True
        return super().load_context(nodes, reader)


@fault("a_context_model_in_a_file_loads_and_runs")
class WritesItsSource(Describing):
    def around(self, nodes, writer):
        return [replace(node, attributes={"source": "mine"}) for node in nodes]


@fault("a_model_with_embedded_payloads_loads_from_bytes")
class AsksForAFileOfItsOwn(SmallProvider):
    def _model(self, node, payload):
        if payload.name == node.name:
            raise FileNotFoundError("embedded payloads are not supported")
        return super()._model(node, payload)


@fault("it_needs_nothing_of_writer_and_reader_but_the_contract")
class KnowsTheCore(SmallProvider):
    def _model(self, node, payload):
        return (
            super()._model(node, payload)
            if hasattr(payload, "_scratch")
            else payload.no_such_thing
        )
