"""Live providers, partitions and context nodes for the tests, as sessions make them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from epctx_sim_qnn import QnnProvider
from onnx import TensorProto, helper, numpy_helper
from support.written_payload import WrittenPayload

from epctx_core import (
    GraphOptimizationLevel,
    InferenceSession,
    Registry,
    SessionOptions,
)
from epctx_core.errors import EpctxError
from epctx_core.plugin import ContextNode, ExecutionProvider, Purpose, hookimpl


class EnoughError(Exception):
    """Ends a session that has shown what was looked for."""


class Writer:
    """What an EP writes to, outside of a share group."""

    final = True

    def __init__(self, graphs):
        self.graphs_by_model = (tuple(graphs),)
        self.payloads = []

    def payload(self, name=None):
        assert name is None
        self.payloads.append(WrittenPayload())
        return self.payloads[-1]

    def reference(self, view):
        return None


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
        self.cancel = SessionOptions().cancellation
        self.progress = []
        self.sessions = []

    def options(self, **given):
        return self._context(**given).options

    def provider(self, purpose=Purpose.EXPORT, *, target=None, **options):
        """A live instance, as a session would make it."""
        context = replace(
            self._context(**options),
            purpose=purpose,
            target=target,
            cancel=self.cancel,
            progress=lambda *step: self.progress.append(step),
        )
        return QnnProvider(context)

    def _context(self, **options):
        """What a session gives the EP; the session lives as long as the test."""
        given = []

        class Asking(ExecutionProvider):
            name, options = QnnProvider.name, QnnProvider.options

            def __init__(self, context):
                super().__init__(context)
                given.append(context)

            @hookimpl
            def get_capability(self, graph):
                return []

            @hookimpl
            def compile(self, partitions):
                return []

        made = self.model(
            [helper.make_node("Neg", ["x"], ["y"])],
            {"x": (TensorProto.FLOAT, [1])},
            {"y": (TensorProto.FLOAT, [1])},
        )
        self.sessions.append(self._session(made, Asking, options))
        return given[0]

    def _session(self, model, cls, options):
        registry = Registry(entry_points=False)
        registry.register(cls)
        as_it_is = SessionOptions()
        as_it_is.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
        return InferenceSession(
            model.SerializeToString(),
            as_it_is,
            providers=[(cls.name, options)],
            registry=registry,
        )

    def _stopped(self, model, stop, options):
        """Run a session up to where an EP like QNN's has shown something."""

        class Showing(QnnProvider):
            @hookimpl
            def get_capability(self, graph):
                return stop("get_capability", graph, super().get_capability(graph))

            @hookimpl
            def compile(self, partitions):
                return stop("compile", partitions, None)

        try:
            self._session(model, Showing, options).close()
        except EpctxError as error:
            if not isinstance(error.__cause__, EnoughError):
                raise

    def view(self, model):
        return self.asked(model)[0]

    def asked(self, model, **options):
        """The view of the main graph, and what the EP answers about it."""
        found = []

        def stop(hook, given, answer):
            if given.parent_node is None:
                found.append((given, list(answer)))
                raise EnoughError
            return answer

        self._stopped(model, stop, options)
        return found[0]

    def partitions(self, model, **options):
        """The partitions of what the EP claims, as the core makes them."""
        found = []

        def stop(hook, given, answer):
            if hook == "compile":
                found.extend(given)
                raise EnoughError
            return answer

        self._stopped(model, stop, options)
        return found

    def export(self, model, **options):
        """Compile and write; gives the nodes as the EP described them and the payload's
        bytes.
        """
        provider = self.provider(**options)
        provider.compile(self.partitions(model, **options))
        return self.written(provider)

    def written(self, provider):
        writer = Writer(graph.name for graph in provider._session.graphs)
        nodes = provider.get_ep_context_nodes(writer)
        assert len(writer.payloads) == min(1, len(nodes))
        return nodes, writer.payloads[0].content if writer.payloads else b""

    def context_nodes(self, described, *, primary=None, prefix=""):
        """The nodes as a loader gets them: primaries first, each reference with its
        primary.
        """
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
            [
                helper.make_tensor_value_info(name, *kind)
                for name, kind in inputs.items()
            ],
            [
                helper.make_tensor_value_info(name, *kind)
                for name, kind in outputs.items()
            ],
            [
                numpy_helper.from_array(np.asarray(array), name)
                for name, array in (weights or {}).items()
            ],
        )
        imports = [
            helper.make_opsetid("", opset),
            helper.make_opsetid("com.microsoft", 1),
        ]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)

    def two_partitions(self, *, seed=0, channels=40):
        """MatMul, Relu, Erf (left to the CPU), MatMul: two partitions with one shared
        weight.
        """
        weight = (
            np.random.default_rng(seed)
            .standard_normal((channels, channels))
            .astype(np.float32)
        )
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
    made = Scene()
    yield made
    for session in made.sessions:
        session.close()
