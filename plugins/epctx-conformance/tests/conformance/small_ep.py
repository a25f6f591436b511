"""An EP of sixty lines on the core's engine: the least that keeps the whole
contract.
"""

from __future__ import annotations

import hashlib

import onnx

from epctx_core.errors import InvalidGraph
from epctx_core.plugin import (
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    Purpose,
    hookimpl,
    supported_partitions,
)

OPERATORS = frozenset(
    {"Add", "Mul", "Sub", "MatMul", "Conv", "Relu", "Sigmoid", "Tanh"}
)


class SmallProvider(ExecutionProvider):
    name = "SmallExecutionProvider"
    vendor = "epctx tests"

    def __init__(self, context):
        super().__init__(context)
        self._compiled = []

    @hookimpl
    def get_capability(self, graph):
        def is_supported(node):
            known = not node.domain and node.op_type in OPERATORS
            return (
                known
                and graph.value(node.inputs[0]).elem_type == onnx.TensorProto.FLOAT
            )

        return supported_partitions(graph, is_supported)

    @hookimpl
    def compile(self, partitions):
        models = [
            partition.model(inline_weights=True).SerializeToString()
            for partition in partitions
        ]
        self._compiled += zip(partitions, models, strict=True)
        return [self._runnable(model) for model in models]

    def _runnable(self, model):
        if self.context.purpose is Purpose.EXPORT:
            return CompiledPartition(None)
        prepared = self.context.engine.prepare(onnx.load_from_string(model))
        return CompiledPartition(prepared.run, close=prepared.close)

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = []
        for number, (partition, model) in enumerate(self._compiled):
            payload = writer.payload(str(number))
            payload.write(
                hashlib.sha256(partition.name.encode() + model).digest() + model
            )
            nodes.append(EPContextNode(partition, payload))
        return nodes

    @hookimpl
    def load_context(self, nodes, reader):
        return [
            self._runnable(self._model(node, reader.payload(node))) for node in nodes
        ]

    def _model(self, node, payload):
        digest, model = bytes(payload.view[:32]), bytes(payload.view[32:])
        if hashlib.sha256(node.partition_name.encode() + model).digest() != digest:
            raise InvalidGraph(
                f"{payload.name} is damaged, or another node's.", node=node.name
            )
        return model

    @hookimpl
    def shutdown(self):
        self._compiled = []
