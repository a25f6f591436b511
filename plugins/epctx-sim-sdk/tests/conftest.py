"""Partitions, payloads and containers for the SDK's tests: what a session gives an EP,
and the bytes that it takes.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from epctx_sim_sdk.compiler import compile_partition
from epctx_sim_sdk.container import open_container
from epctx_sim_sdk.writing import write_container
from onnx import TensorProto, helper, numpy_helper
from support.written_payload import WrittenPayload

from epctx_core import InferenceSession, Registry, SessionOptions
from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    ExecutionProvider,
    hookimpl,
)

EP = "SimExecutionProvider"
FACTS = {"vendor": "Sim", "sdk": "sim-2.51.0"}


def never_run(_inputs, _outputs=None):
    raise AssertionError("these sessions run nothing")


class Scene:
    """What the tests do over and over."""

    ep = EP
    facts = FACTS

    def __init__(self):
        self.sessions = []

    def given(self, model, *, prefix=""):
        """Return what a session gives an EP that takes a model whole: its context and
        the partition.
        """
        contexts, given = [], []

        class Asking(ExecutionProvider):
            name = EP

            def __init__(self, context):
                super().__init__(context)
                contexts.append(context)

            @hookimpl
            def get_capability(self, graph):
                return (
                    []
                    if graph.parent_node
                    else [ComputeCapability(graph.nodes, exact=True)]
                )

            @hookimpl
            def compile(self, partitions):
                given.extend(partitions)
                return [CompiledPartition(never_run) for _ in partitions]

        registry = Registry(entry_points=False)
        registry.register(Asking)
        options = SessionOptions()
        options.add_session_config_entry("ep.context_node_name_prefix", prefix)
        options.add_session_config_entry("ep.partition_without_computation", "keep")
        data = model.SerializeToString()
        self.sessions.append(
            InferenceSession(data, options, providers=[EP], registry=registry)
        )
        return contexts[0], given[0]

    def partition(self, model, *, number=0):
        """The whole graph of a model as one partition; another number makes another
        name.
        """
        return self.given(model, prefix=f"n{number}_" if number else "")[1]

    def graph(self, model, *, fp16=False, number=0):
        return compile_partition(self.partition(model, number=number), ep=EP, fp16=fp16)

    def payload(self):
        return WrittenPayload()

    def write(self, *graphs, facts=FACTS):
        """The bytes of a container."""
        payload = self.payload()
        write_container(payload, graphs, facts)
        return payload.content

    def open(self, content, **said):
        return open_container(
            memoryview(content), ep=EP, node="n", name="sim.bin", **said
        )

    def engine(self):
        return self.given(self.dense())[0].engine

    def workspace(self):
        return self.given(self.dense())[0].workspace

    def cancel(self):
        return SessionOptions().cancellation

    def dense(self, *, names="abc", weight=None, scale=1.0, elements=400):
        """y = relu(x @ w + b): one weight above and one below the limit for inline
        weights.
        """
        x, w, y = names
        values = (
            np.arange(elements * 4, dtype=np.float32).reshape(elements, 4) / 7
            if weight is None
            else weight
        )
        bias = numpy_helper.from_array(np.full(4, scale, np.float32), f"{w}_bias")
        nodes = [
            helper.make_node(
                "MatMul", [x, w], ["m"], name="first", doc_string="secret"
            ),
            helper.make_node("Add", ["m", f"{w}_bias"], ["s"]),
            helper.make_node("Relu", ["s"], [y]),
        ]
        graph = helper.make_graph(
            nodes,
            f"graph of {x}",
            [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, len(values)])],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, 4])],
            [numpy_helper.from_array(values, w), bias],
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        onnx.checker.check_model(model)
        return model

    def same(self, found, wanted, tolerance=1e-6):
        assert (
            np.max(np.abs(found - wanted)) / (np.max(np.abs(wanted)) + 1e-6)
            <= tolerance
        )


@pytest.fixture
def scene():
    made = Scene()
    yield made
    for session in made.sessions:
        session.close()
