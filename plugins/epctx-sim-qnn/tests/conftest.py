"""Live providers, partitions and context nodes for the tests, made with the core's own code."""

from __future__ import annotations

import io
import logging
import tempfile
from types import MappingProxyType

import numpy as np
import onnx
import pytest
from epctx_sim_qnn import QnnProvider
from onnx import TensorProto, helper, numpy_helper

from epctx_core.context.payload_writer import PayloadSet
from epctx_core.context.workspace import PrivateWorkspace
from epctx_core.graph.index import GraphIndex
from epctx_core.graph.inference import infer_types
from epctx_core.graph.model_io import detach_model
from epctx_core.graph.partition import Partitioner
from epctx_core.graph.subgraph import GraphPartition, GraphSlice
from epctx_core.kernels import CpuEngine, EnginePolicy
from epctx_core.options import CancellationFlag
from epctx_core.plugin import ComputeCapability, ContextNode, ModelIdentity, ProviderContext, Purpose
from epctx_core.plugin.provider import parse_provider_options


def no_files(location, tensor):
    raise AssertionError(f"{tensor} asks for the file {location}")


class Reader:
    """Payload bytes by the name of the primary that carries them."""

    def __init__(self, **payloads):
        self.payloads = payloads
        self.asked = []

    def payload(self, node):
        owner = node if node.main_context else node.primary
        self.asked.append(owner.name)
        return Payload(owner.name, self.payloads[owner.name])

    def source_tensor(self, name):
        raise AssertionError(f"{name}: nothing was left in a source model")


class Payload:
    digest = None
    verified = False

    def __init__(self, name, content):
        self.name = f"{name}_qnn.bin"
        self.view = memoryview(content)


class Scene:
    """What the tests do over and over."""

    reader = Reader

    def __init__(self):
        self.cancel = CancellationFlag()
        self.progress = []

    def options(self, **given):
        return parse_provider_options(QnnProvider.name, QnnProvider.options, given)

    def provider(self, purpose=Purpose.EXPORT, *, target=None, **options):
        """A live instance, as a session would make it."""
        return QnnProvider(
            ProviderContext(
                options=self.options(**options),
                session_config=MappingProxyType({}),
                purpose=purpose,
                target=target,
                model=ModelIdentity(name="net", digest=None, opset_imports={"": 17}),
                logger=logging.getLogger("epctx.ep.test"),
                cancel=self.cancel,
                progress=lambda *step: self.progress.append(step),
                scratch=tempfile.TemporaryDirectory,
                engine=CpuEngine(EnginePolicy()),
                workspace=PrivateWorkspace(),
            )
        )

    def index(self, model):
        source = detach_model(
            onnx.ModelProto.FromString(data := model.SerializeToString()), data, None, no_files
        )
        return GraphIndex(
            source.proto.graph,
            types=infer_types(source.proto),
            weights=source.weights,
            owner=source.proto,
        )

    def view(self, model):
        index = self.index(model)
        return GraphSlice(index, Partitioner(index.predecessors), [False] * len(index.nodes))

    def partitions(self, model, **options):
        """The partitions that a provider claims, numbered as the core does."""
        index = self.index(model)
        view = GraphSlice(index, Partitioner(index.predecessors), [False] * len(index.nodes))
        claims = self.provider(**options).get_capability(view)
        made = []
        for claim in claims:
            if isinstance(claim, ComputeCapability):
                nodes = sorted(node.index for node in claim.nodes)
                made.append(GraphPartition(index, nodes, ep=QnnProvider.name))
                made[-1].number = len(made) - 1
        return made

    def export(self, model, **options):
        """Compile and write; gives the nodes as the EP described them and the payload's bytes."""
        provider = self.provider(**options)
        provider.compile(self.partitions(model, **options))
        return self.written(provider)

    def written(self, provider):
        sinks = []

        def sink(name):
            sinks.append(io.BytesIO())
            return sinks[-1]

        writer = PayloadSet(
            provider.name,
            file_name=lambda name: name or "net_qnn.bin",
            open_sink=sink,
            embedded=True,
            graphs_by_model=(tuple(graph.name for graph in provider._session.graphs),),
        )
        nodes = provider.get_ep_context_nodes(writer)
        assert len(sinks) == min(1, len(nodes))
        return nodes, sinks[0].getvalue() if sinks else b""

    def context_nodes(self, described, *, primary=None, prefix=""):
        """The nodes as a loader gets them: primaries first, each reference with its primary."""
        nodes = []
        for node in described:
            name = prefix + node.partition.name
            made = ContextNode(
                name=name,
                partition_name=node.partition.name,
                source="QNNExecutionProvider",
                main_context=bool(node.main_context),
                primary=None if node.main_context else (primary or nodes[0]),
                inputs=node.partition.inputs,
                outputs=node.partition.outputs,
                attributes=node.attributes,
            )
            if node.main_context:
                object.__setattr__(made, "primary", made)
            nodes.append(made)
        return nodes

    def load(self, described, content, **options):
        provider = self.provider(Purpose.LOAD, **options)
        nodes = self.context_nodes(described)
        return provider.load_context(nodes, Reader(**{nodes[0].name: content}))

    def model(self, nodes, inputs, outputs, weights=None, opset=17):
        """A model from nodes; inputs and outputs by name: (element type, shape)."""
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
            [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
            [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
        )
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)

    def two_partitions(self, *, seed=0, channels=40):
        """MatMul, Relu, Erf (left to the CPU), MatMul: two partitions with one shared weight."""
        weight = np.random.default_rng(seed).standard_normal((channels, channels)).astype(np.float32)
        return self.model(
            [
                helper.make_node("MatMul", ["x", "w"], ["a"]),
                helper.make_node("Relu", ["a"], ["b"]),
                helper.make_node("Erf", ["b"], ["c"]),
                helper.make_node("MatMul", ["c", "same"], ["y"]),
            ],
            {"x": (TensorProto.FLOAT, [2, channels])},
            {"y": (TensorProto.FLOAT, [2, channels])},
            {"w": weight, "same": weight},
        )


@pytest.fixture
def scene():
    return Scene()
