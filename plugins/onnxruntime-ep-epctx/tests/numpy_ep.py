"""EP that computes with numpy, also If, Loop and Scan, which it takes whole; onnx's
reference evaluator runs what a partition holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from epctx_core import default_registry
from epctx_core.plugin import (
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    Refusal,
    hookimpl,
    supported_partitions,
)

NAME = "NumpyExecutionProvider"
INNER = "InnerExecutionProvider"
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
TAKEN = frozenset(
    [
        "Abs",
        "Add",
        "Cast",
        "Clip",
        "Concat",
        "Div",
        "Gather",
        "Gemm",
        "Identity",
        "If",
        "Loop",
        "MatMul",
        "Max",
        "Mul",
        "Neg",
        "NonZero",
        "Relu",
        "Reshape",
        "Scan",
        "Sub",
        "Sum",
        "Transpose",
    ]
)


def is_taken(node: Any) -> bool:
    """Return whether the EP takes a node: none whose name begins with `cpu`."""
    return node.op_type in TAKEN and not node.name.startswith("cpu")


class NumpyProvider(ExecutionProvider):
    """See the module."""

    name = NAME
    vendor = "epctx"

    @hookimpl
    def get_capability(self, graph: Any) -> Any:
        if graph.parent_node is not None:
            return [Refusal("taken with the node around it", graph.nodes)]
        return supported_partitions(graph, is_taken)

    @hookimpl
    def compile(self, partitions: Any) -> Any:
        self._partitions = partitions
        return [CompiledPartition(make_run(_encode(each))) for each in partitions]

    @hookimpl
    def get_ep_context_nodes(self, writer: Any) -> Any:
        nodes = []
        for partition in self._partitions:
            payload = writer.payload(partition.name)
            payload.write(_encode(partition))
            nodes.append(EPContextNode(partition, payload))
        return nodes

    @hookimpl
    def load_context(self, nodes: Any, reader: Any) -> Any:
        return [
            CompiledPartition(make_run(bytes(reader.payload(node).view)))
            for node in nodes
        ]


class InnerProvider(NumpyProvider):
    """The same without control flow: it takes nodes in subgraphs."""

    name = INNER

    @hookimpl
    def get_capability(self, graph: Any) -> Any:
        return supported_partitions(
            graph, lambda node: is_taken(node) and node.op_type not in CONTROL_FLOW
        )


def register() -> None:
    """Register both."""
    default_registry.register(NumpyProvider)
    default_registry.register(InnerProvider)


def _encode(partition: Any) -> bytes:
    return bytes(partition.model(inline_weights=True).SerializeToString())


def make_run(data: bytes) -> Callable[..., Any]:
    """Return a serialised model as a function of its inputs, in their order."""
    model = onnx.load_from_string(data)
    evaluator = ReferenceEvaluator(model)
    names = [value.name for value in model.graph.input]

    def run(inputs: Any, outputs: Any = None) -> Any:
        feeds = {k: v for k, v in zip(names, inputs, strict=True) if v is not None}
        results = [
            np.require(each, requirements="C") for each in evaluator.run(None, feeds)
        ]
        if outputs is None:
            return results
        for target, result in zip(outputs, results, strict=True):
            target[...] = result
        return outputs

    return run
