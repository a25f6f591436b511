"""Small but complete EPs on the core's own engine, written against the contract alone.

Alpha puts all its graphs into one payload and refers to it; Beta gives each graph a
payload of its own. A scripted EP is Alpha with some hooks replaced, and remembers which
were called.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

import onnx

from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    EPContextNode,
    ExecutionProvider,
    Purpose,
    hookimpl,
    supported_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epctx_core.plugin import Partition


class EngineProvider(ExecutionProvider):
    """Takes nodes by operator and runs them on `context.engine`."""

    operators: ClassVar[frozenset[str]] = frozenset()
    one_payload: ClassVar[bool] = True

    def __init__(self, context):
        super().__init__(context)
        self._compiled: list[tuple[Partition, bytes]] = []

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(
            graph, lambda node: not node.domain and node.op_type in self.operators
        )

    @hookimpl
    def compile(self, partitions):
        self._compiled += [
            (partition, self_contained(partition)) for partition in partitions
        ]
        newest = self._compiled[-len(partitions) :]
        return [CompiledPartition(self._runnable(model)) for _, model in newest]

    def _runnable(self, model):
        if self.context.purpose is Purpose.EXPORT:
            return None
        return self.context.engine.prepare(onnx.load_from_string(bytes(model))).run

    @hookimpl
    def get_ep_context_nodes(self, writer):
        if self.one_payload:
            payload = writer.payload()
            payload.write(
                packed({partition.name: model for partition, model in self._compiled})
            )
            first, *others = (partition for partition, _ in self._compiled)
            return [
                EPContextNode(first, payload),
                *(EPContextNode(p, main_context=0) for p in others),
            ]
        nodes = []
        for number, (partition, model) in enumerate(self._compiled):
            payload = writer.payload(f"{number}")
            payload.write(packed({partition.name: model}))
            nodes.append(EPContextNode(partition, payload))
        return nodes

    @hookimpl
    def load_context(self, nodes, reader):
        return [
            CompiledPartition(
                self._runnable(unpacked(reader.payload(node).view)[node.partition_name])
            )
            for node in nodes
        ]


def self_contained(partition: Partition) -> bytes:
    """Return a partition's model with all its weights inside."""
    model = partition.model()
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(
                    partition.weights[tensor.name].array(), tensor.name
                )
            )
    return model.SerializeToString(deterministic=True)


def packed(graphs: Mapping[str, bytes]) -> bytes:
    """Return a payload: one line of JSON that says how long each graph is, then the
    graphs.
    """
    index = json.dumps({name: len(model) for name, model in graphs.items()})
    return b"\n".join([index.encode(), b"".join(graphs.values())])


def unpacked(view: memoryview) -> dict[str, memoryview]:
    """Return the graphs of a payload by name."""
    start = bytes(view).index(b"\n") + 1
    graphs = {}
    for name, length in json.loads(bytes(view[:start])).items():
        graphs[name] = view[start : start + length]
        start += length
    return graphs


class Alpha(EngineProvider):
    """One payload for all graphs."""

    name = "AlphaExecutionProvider"
    binary_suffix = "alpha"
    operators = frozenset({"Relu", "Add", "Dropout"})


class Beta(EngineProvider):
    """One payload for each graph."""

    name = "BetaExecutionProvider"
    binary_suffix = "beta"
    operators = frozenset({"Neg", "Mul", "Relu"})
    one_payload = False


class Scripted(Alpha):
    """Alpha whose hooks a test replaces; make one with `scripted`."""

    name = "ScriptedExecutionProvider"
    binary_suffix = "scripted"
    script: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    calls: ClassVar[list[str]] = []

    def __init__(self, context):
        super().__init__(context)
        self._play("__init__", lambda: None)

    @hookimpl
    def get_capability(self, graph):
        return self._play(
            "get_capability", lambda: super(Scripted, self).get_capability(graph), graph
        )

    @hookimpl
    def compile(self, partitions):
        return self._play("compile", lambda: super(Scripted, self).compile(partitions))

    @hookimpl
    def get_ep_context_nodes(self, writer):
        honest = super().get_ep_context_nodes
        return self._play("get_ep_context_nodes", lambda: honest(writer), writer)

    @hookimpl
    def load_context(self, nodes, reader):
        return self._play(
            "load_context", lambda: super(Scripted, self).load_context(nodes, reader)
        )

    @hookimpl
    def shutdown(self):
        self._play("shutdown", lambda: None)

    def _play(self, hook, honest, *given):
        self.calls.append(hook)
        act = self.script.get(hook)
        return honest() if act is None else act(honest, *given)


def scripted(**script: Callable[..., Any]) -> type[Scripted]:
    """Return an EP class whose hook `h` is `script[h](honest, graph or writer)`;
    `honest()` is what Alpha does.
    """
    return type("OneScripted", (Scripted,), {"script": script, "calls": []})


class Fragile(Alpha):
    """Alpha whose compiler fails for the partitions that hold certain nodes, and which
    remembers those that it was given.
    """

    name = "FragileExecutionProvider"
    binary_suffix = "fragile"
    bad: ClassVar[frozenset[str]] = frozenset({"n3"})
    given: ClassVar[list[list[str]]] = []

    @hookimpl
    def compile(self, partitions):
        for partition in partitions:
            names = [node.name for node in partition.nodes]
            self.given.append(names)
            if self.bad.intersection(names):
                raise RuntimeError("QNN graph finalize failed:\nerror 1002")
        return super().compile(partitions)


def fragile(*bad: str, **attributes: Any) -> type[Fragile]:
    """Return a Fragile that fails for these nodes."""
    return type(
        "OneFragile", (Fragile,), {"bad": frozenset(bad), "given": [], **attributes}
    )


class Eager(EngineProvider):
    """Takes every node, custom operators too."""

    name = "EagerExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return [ComputeCapability(graph.nodes)]
