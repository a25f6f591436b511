"""Context models that an EP of the tests writes: what it says, and what is in its
payload.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from epctx_core import ModelCompiler, Registry, SessionOptions
from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    EPContextNode,
    ExecutionProvider,
    hookimpl,
)

EP = "TestExecutionProvider"


def model_of(nodes, elem_type=TensorProto.FLOAT):
    """Return a model of a chain of nodes that nobody but the EP of these tests
    knows.
    """
    names = ["x", *(f"v{i}" for i in range(1, nodes)), "y"]
    chain = [
        helper.make_node("Own", [names[i]], [names[i + 1]], f"n{i}", domain="own")
        for i in range(nodes)
    ]
    values = [helper.make_tensor_value_info(name, elem_type, [2]) for name in names]
    graph = helper.make_graph(
        chain, "g", values[:1], values[-1:], value_info=values[1:-1]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def one_payload(partitions, writer):
    """Describe one partition with a payload of a byte."""
    payload = writer.payload()
    payload.write(b"p")
    return [EPContextNode(partition, payload) for partition in partitions]


class Writing:
    """A compile whose EP takes each node for itself and describes them by a function of
    partitions and writer.

    Payloads are embedded, unless the path is given that the model would have.
    """

    def __init__(self, describe, *, path=None, ep=EP, prefix="", suffix="test"):
        self.options = SessionOptions()
        self.options.add_session_config_entry(
            "ep.context_embed_mode", str(int(path is None))
        )
        if path is not None:
            self.options.add_session_config_entry("ep.context_file_path", str(path))
        if prefix:
            self.options.add_session_config_entry("ep.context_node_name_prefix", prefix)

        class Provider(ExecutionProvider):
            name, binary_suffix = ep, suffix

            @hookimpl
            def get_capability(self, graph):
                return [ComputeCapability([each], exact=True) for each in graph.nodes]

            @hookimpl
            def compile(self, partitions):
                self.partitions = [*getattr(self, "partitions", ()), *partitions]
                return [CompiledPartition(None) for _ in partitions]

            @hookimpl
            def get_ep_context_nodes(self, writer):
                return describe(self.partitions, writer)

            @hookimpl
            def load_context(self, nodes):
                return [CompiledPartition(None) for _ in nodes]

        self.registry = Registry(entry_points=False)
        self.registry.register(Provider)
        self.options.add_provider(ep, {})

    def compiled(self, model):
        """Compile a model, or the one at a path; return the context model."""
        source = model if isinstance(model, Path) else model.SerializeToString()
        compiler = ModelCompiler(self.options, source, registry=self.registry)
        return onnx.load_from_string(compiler.compile_to_bytes())
