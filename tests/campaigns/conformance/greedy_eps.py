"""EPs that spare the core nothing: one takes every node, two make every value cross a
border.

They compute with the engine that they are lent: what they get wrong is the core's
fault.
"""

from __future__ import annotations

from support.engine_eps import EngineProvider

from epctx_core.plugin import ComputeCapability, hookimpl


class Greedy(EngineProvider):
    """Takes every node of every graph; all graphs are in one payload."""

    name = "GreedyExecutionProvider"
    binary_suffix = "greedy"

    @hookimpl
    def get_capability(self, graph):
        return [ComputeCapability([node]) for node in graph.nodes]


class FirstTurn(EngineProvider):
    """Takes a node unless it reads from one that it takes: no value stays within a
    partition.

    Two of them, one after the other, take the nodes of a chain by turns. A node that
    reads from both is nobody's.
    """

    name = "FirstTurnExecutionProvider"
    binary_suffix = "first_turn"

    @hookimpl
    def get_capability(self, graph):
        made, taken = set(), []
        for node in graph.nodes:
            if made.isdisjoint((*node.inputs, *node.implicit_inputs)):
                taken.append(node)
                made |= set(node.outputs) - {""}
        return [ComputeCapability([node]) for node in taken]


class SecondTurn(FirstTurn):
    """The same with a payload for each graph."""

    name = "SecondTurnExecutionProvider"
    binary_suffix = "second_turn"
    one_payload = False
