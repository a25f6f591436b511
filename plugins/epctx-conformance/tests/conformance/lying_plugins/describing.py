"""EPs that describe their nodes, or write their payloads, otherwise than the contract
says.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import ClassVar

from conformance.lying_plugins.table import lie
from conformance.thorough_ep import ThoroughProvider
from support.honest_ep import VERSION, HonestProvider

from epctx_core.plugin import EPContextNode, hookimpl

_NUMBERS = itertools.count()


@lie("a_second_compile_in_another_folder_gives_the_same_files")
class NumbersItsPayloads(HonestProvider):
    """Writes a number into its payloads, so that no two are equal."""

    def packed(self, graphs):
        return super().packed({**graphs, "": str(next(_NUMBERS)).encode()})


@lie("another_process_with_another_hash_seed_gives_the_same_files")
class WritesInHashOrder(HonestProvider):
    """The order of what it stores follows from the hashes of texts."""

    def packed(self, graphs):
        words = {f"word {number}" for number in range(20)}
        return super().packed({**graphs, "": json.dumps(list(words)).encode()})


@lie("it_describes_the_same_nodes_each_time")
class AnswersOnce(HonestProvider):
    """Asked again for its nodes, it has only the first."""

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = super().get_ep_context_nodes(writer)
        self.compiled = self.compiled[:1]
        return nodes


@lie("it_describes_the_same_nodes_each_time")
class AnswersOtherwise(HonestProvider):
    """Asked again for its nodes, it gives them another attribute."""

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = super().get_ep_context_nodes(writer)
        return [
            replace(node, attributes={"notes": str(next(_NUMBERS))}) for node in nodes
        ]


class Describing(HonestProvider):
    """Changes each node that it describes."""

    changes: ClassVar[dict] = {}

    @hookimpl
    def get_ep_context_nodes(self, writer):
        return [
            replace(node, **self.changes)
            for node in super().get_ep_context_nodes(writer)
        ]


@lie("a_context_model_in_a_file_loads_and_runs")
class SetsCoreAttributes(Describing):
    """Writes `source` and `partition_name` itself."""

    changes: ClassVar[dict] = {
        "attributes": {"source": "Mine", "partition_name": "mine"}
    }


@lie("a_context_model_in_a_file_loads_and_runs")
class HasNoPrimary(Describing):
    """Says of each node that another one carries the payload."""

    changes: ClassVar[dict] = {"main_context": 0, "payload": None}


@lie("a_context_model_in_a_file_loads_and_runs")
class DescribesOneOnly(HonestProvider):
    """Describes the first partition and forgets the others."""

    @hookimpl
    def get_ep_context_nodes(self, writer):
        return super().get_ep_context_nodes(writer)[:1]


@lie("a_context_model_in_a_file_loads_and_runs")
class DescribesInReverse(HonestProvider):
    """Gives each partition the node of another."""

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = super().get_ep_context_nodes(writer)
        names = [node.partition.name for node in nodes]
        self.graphs = dict(
            zip(names, [self.graphs[name] for name in reversed(names)], strict=True)
        )
        payload = writer.payload("again")
        payload.write(self.packed(self.graphs))
        first, *others = (node.partition for node in nodes)
        return [
            EPContextNode(first, payload),
            *(EPContextNode(p, main_context=0) for p in others),
        ]


@lie("a_group_of_two_is_three_files_and_both_models_load")
class KeepsItsGroupToItself(HonestProvider):
    """In a share group it writes only what the last member compiled."""

    @hookimpl
    def get_ep_context_nodes(self, writer):
        payload = writer.payload()
        if writer.final:
            payload.write(self.packed(self.graphs))
        first, *others = self.compiled
        return [
            EPContextNode(first, payload),
            *(EPContextNode(p, main_context=0) for p in others),
        ]


@lie("its_names_of_graphs_are_unique_and_stable")
class NamesItsGraphsAlike(ThoroughProvider):
    """Has one name for all its graphs."""

    def graph_name(self, number, partition):
        return "main"


@lie("its_names_of_graphs_are_unique_and_stable")
class NamesItsGraphsByNumbers(ThoroughProvider):
    """The names of its graphs are no texts."""

    def graph_name(self, number, partition):
        return number


@lie("its_names_of_graphs_are_unique_and_stable")
class WritesItsGraphsUnderOtherNames(ThoroughProvider):
    """In its payload the graphs have other names than it says."""

    def packed(self, graphs):
        return super().packed({name.upper(): graph for name, graph in graphs.items()})


@lie("it_describes_the_same_nodes_each_time")
class RenamesItsGraphs(ThoroughProvider):
    """Asked again for its nodes, it has other names for its graphs."""

    def graph_name(self, number, partition):
        return f"graph {next(_NUMBERS)}"


@lie("it_supports_what_it_compiled_itself")
class DeniesTheTextOfItsCompiler(ThoroughProvider):
    """The compatibility text of its nodes is one that it does not support."""

    def compatibility_info(self, number):
        return "honest;version=of the compiler"


@lie("it_describes_the_same_nodes_each_time")
class StampsItsNodes(ThoroughProvider):
    """Asked again for its nodes, it has another compatibility text."""

    def compatibility_info(self, number):
        if not number:
            self.stamp = next(_NUMBERS)
        return f"honest;version={VERSION};{self.stamp}"


@lie("its_names_of_graphs_are_unique_in_a_group")
class NumbersItsGraphs(ThoroughProvider):
    """Numbers the graphs of each model from 0 on, in a share group, too."""

    def graph_name(self, number, partition):
        return f"graph {number}"


@lie("no_two_of_its_binaries_have_the_same_bytes")
class WritesABinaryForEachNode(HonestProvider):
    """Writes all its graphs once more for each node."""

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = []
        for number, partition in enumerate(self.compiled):
            payload = writer.payload(str(number))
            payload.write(self.packed(self.graphs))
            nodes.append(EPContextNode(partition, payload))
        return nodes
