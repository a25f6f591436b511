"""An EP whose partitions take a given part longer than their work: a regression that
tests inject.

Its payload is the partition as an ONNX model, which the core's engine computes.
"""

from __future__ import annotations

import os
import time

import onnx

from epctx_core.plugin import (
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    Purpose,
    hookimpl,
    supported_partitions,
)

SLOWDOWN = "SLOWED_EP_SLOWDOWN"
"""Environment variable with the added part of each run."""


def slow_down(run, part):
    """Return a run that computes on for a part of the time that it took."""

    def slowed(inputs, outputs=None):
        begin = time.perf_counter()
        results = run(inputs, outputs)
        end = begin + (time.perf_counter() - begin) * (1 + part)
        while time.perf_counter() < end:
            pass
        return results

    return slowed


class SlowedProvider(ExecutionProvider):
    """Takes every node."""

    name = "SlowedExecutionProvider"
    vendor = "tests"
    binary_suffix = "slowed"

    def __init__(self, context):
        super().__init__(context)
        self._partitions = []

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: True)

    @hookimpl
    def compile(self, partitions):
        self._partitions += partitions
        return [
            CompiledPartition(None)
            if self.context.purpose is Purpose.EXPORT
            else self._open(partition.model())
            for partition in partitions
        ]

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = []
        for partition in self._partitions:
            payload = writer.payload(partition.name)
            payload.write(partition.model().SerializeToString(deterministic=True))
            nodes.append(EPContextNode(partition, payload))
        return nodes

    @hookimpl
    def load_context(self, nodes, reader):
        return [
            self._open(onnx.load_from_string(bytes(reader.payload(node).view)))
            for node in nodes
        ]

    def _open(self, model):
        prepared = self.context.engine.prepare(model, {})
        # Not an option: reports of unlike options are not judged.
        run = slow_down(prepared.run, float(os.environ[SLOWDOWN]))
        return CompiledPartition(run, close=prepared.close)
