"""A small EP that keeps the whole contract, on the core's engine, with a container of
its own; simulated.

Its payload is magic, version and digest, then an index of graphs by name, then the
graphs. The lying plugins are this one with one thing changed each, so its steps are
methods of their own.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto

from epctx_core.errors import InvalidGraph
from epctx_core.plugin import (
    Compatibility,
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    Purpose,
    hookimpl,
    supported_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epctx_core.plugin import (
        ContextNode,
        ContextReader,
        ContextWriter,
        GraphView,
        NodeView,
        Partition,
        PayloadView,
        PreparedModel,
    )

MAGIC = b"HONEST\r\n"
VERSION = 3
HEAD = struct.Struct("<8sI32sI")
"""Magic, version, SHA-256 of all that follows the head, length of the index."""

OPERATORS = frozenset(
    (
        "Abs", "Add", "AveragePool", "BatchNormalization", "Ceil", "Clip", "Concat",
        "Conv", "Div", "Exp", "Flatten", "Gather", "Gemm", "GlobalAveragePool",
        "HardSigmoid", "Identity", "LeakyRelu", "MatMul", "Max", "MaxPool", "Min",
        "Mul", "Neg", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Sigmoid", "Slice",
        "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze",
    )
)  # fmt: skip
TYPES = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
        TensorProto.DOUBLE,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT8,
        TensorProto.INT8,
    }
)


class HonestProvider(ExecutionProvider):
    """Takes operators of a list on types of a list, in the main graph."""

    name = "HonestExecutionProvider"
    vendor = "epctx tests (simulated)"
    simulated = True
    binary_suffix = "honest"
    loads_without_device = True

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.compiled: list[Partition] = []
        self.graphs: dict[str, bytes] = {}

    @classmethod
    def get_compatibility_info(
        cls, partitions: Sequence[Partition], options: Mapping[str, Any]
    ) -> str:
        return f"honest;version={VERSION}" if partitions else ""

    @classmethod
    def validate_compatibility(
        cls, info: str, options: Mapping[str, Any]
    ) -> Compatibility:
        if not info.startswith("honest;"):
            return Compatibility.EP_NOT_APPLICABLE
        same = info == f"honest;version={VERSION}"
        return (
            Compatibility.EP_SUPPORTED_OPTIMAL if same else Compatibility.EP_UNSUPPORTED
        )

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[Any]:
        return supported_partitions(graph, lambda node: self.verdict(node, graph))

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        made = []
        for done, partition in enumerate(partitions):
            self.context.cancel.raise_if_requested()
            self.context.progress("compile", done, len(partitions))
            self.compiled.append(partition)
            self.graphs[partition.name] = self.translated(partition)
            made.append(self.runnable(self.graphs[partition.name]))
        return made

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        payload = writer.payload()
        group: dict[str, bytes] = self.context.workspace.get_or_create("graphs", dict)
        group.update(self.graphs)
        if writer.final:
            payload.write(self.packed(group))
        first, others = self.compiled[:1], self.compiled[1:]
        return [
            *(EPContextNode(partition, payload) for partition in first),
            *(EPContextNode(partition, main_context=0) for partition in others),
        ]

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        made = []
        for node in nodes:
            self.context.cancel.raise_if_requested()
            made.append(self.runnable(self.graph_of(node, reader.payload(node))))
        return made

    @hookimpl
    def shutdown(self) -> None:
        self.compiled.clear()
        self.graphs = {}

    # --- the steps that lies change ---------------------------------------------------

    def verdict(self, node: NodeView, graph: GraphView) -> bool | str:
        """Return True for a node that it takes, or the reason why not."""
        if graph.parent_node is not None:
            return "the honest EP takes no bodies of control flow"
        if node.domain or node.op_type not in OPERATORS:
            return f"{node.op_type} is not in its list"
        names = filter(None, (*node.inputs, *node.outputs))
        wrong = {
            str(graph.value(name).type)
            for name in names
            if not self.is_taken(graph, name)
        }
        return f"it takes no {min(wrong)}" if wrong else True

    def is_taken(self, graph: GraphView, name: str) -> bool:
        """Whether a value's or a weight's type is in the list."""
        weight = graph.initializer(name)
        return (weight or graph.value(name)).elem_type in TYPES

    def translated(self, partition: Partition) -> bytes:
        """Return the bytes stored for a partition."""
        return partition.model(inline_weights=True).SerializeToString(
            deterministic=True
        )

    def runnable(self, graph: bytes) -> CompiledPartition:
        """Return a stored graph, ready to run; under EXPORT nothing is opened."""
        if self.context.purpose is Purpose.EXPORT:
            return CompiledPartition(None)
        prepared = self.context.engine.prepare(onnx.load_from_string(graph))
        return CompiledPartition(self.run_of(prepared, graph), close=prepared.close)

    def run_of(self, prepared: PreparedModel, graph: bytes) -> Callable[..., list[Any]]:
        """Return the function that runs a stored graph."""
        return prepared.run

    def packed(self, graphs: Mapping[str, bytes]) -> bytes:
        """Return a payload with these graphs."""
        index = json.dumps(
            {name: len(graph) for name, graph in graphs.items()}
        ).encode()
        body = index + b"".join(graphs.values())
        return (
            HEAD.pack(MAGIC, VERSION, hashlib.sha256(body).digest(), len(index)) + body
        )

    def graph_of(self, node: ContextNode, payload: PayloadView) -> bytes:
        """Return a node's graph out of a payload."""
        length = self.checked(node, payload)
        index, rest = (
            payload.view[HEAD.size :][:length],
            payload.view[HEAD.size + length :],
        )
        start = 0
        for name, size in json.loads(bytes(index)).items():
            if name == node.partition_name:
                return bytes(rest[start : start + size])
            start += size
        raise self.refusal(node, payload, f"has no graph {node.partition_name!r}")

    def checked(self, node: ContextNode, payload: PayloadView) -> int:
        """Check a payload's head and digest; return its index's length."""
        if len(payload.view) < HEAD.size:
            raise self.refusal(node, payload, "is shorter than a head")
        magic, version, digest, length = HEAD.unpack_from(payload.view)
        if magic != MAGIC:
            raise self.refusal(node, payload, "is none of this EP's")
        if version != VERSION:
            raise self.refusal(
                node, payload, f"has version {version}, and this EP reads {VERSION}"
            )
        if hashlib.sha256(payload.view[HEAD.size :]).digest() != digest or length > len(
            payload.view
        ):
            raise self.refusal(node, payload, "is damaged")
        return int(length)

    def refusal(
        self, node: ContextNode, payload: PayloadView, why: str
    ) -> InvalidGraph:
        """Return the error for a payload that is not taken."""
        return InvalidGraph(
            f"the payload {payload.name!r} of EPContext node {node.name!r} {why}.",
            node=node.name,
            ep=self.name,
            hint="Compile the model again.",
        )
