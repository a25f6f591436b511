"""Partitions, payloads and containers for the SDK's tests, made with the core's own graph code."""

from __future__ import annotations

import io

import numpy as np
import onnx
import pytest
from epctx_sim_sdk.compiler import compile_partition
from epctx_sim_sdk.container import open_container
from epctx_sim_sdk.writing import write_container
from onnx import TensorProto, helper, numpy_helper

from epctx_core.context.payload_writer import PayloadWriter
from epctx_core.graph.index import GraphIndex
from epctx_core.graph.inference import infer_types
from epctx_core.graph.model_io import detach_model
from epctx_core.graph.subgraph import GraphPartition
from epctx_core.kernels import CpuEngine, EnginePolicy

EP = "SimExecutionProvider"
FACTS = {"vendor": "Sim", "sdk": "sim-2.51.0"}


def no_files(location, tensor):
    raise AssertionError(f"{tensor} asks for the file {location}")


class Scene:
    """What the tests do over and over."""

    ep = EP
    facts = FACTS

    def partition(self, model, *, number=0):
        """The whole graph of a model as one partition."""
        source = detach_model(
            onnx.ModelProto.FromString(data := model.SerializeToString()), data, None, no_files
        )
        graph = GraphIndex(
            source.proto.graph,
            types=infer_types(source.proto),
            weights=source.weights,
            owner=source.proto,
        )
        partition = GraphPartition(graph, range(len(graph.nodes)), ep=EP)
        partition.number = number
        return partition

    def graph(self, model, *, fp16=False, number=0):
        return compile_partition(self.partition(model, number=number), ep=EP, fp16=fp16)

    def payload(self):
        return PayloadWriter("sim.bin", io.BytesIO(), embedded=True)

    def write(self, *graphs, facts=FACTS):
        """The bytes of a container."""
        payload = self.payload()
        write_container(payload, graphs, facts)
        return payload._sink.getvalue()

    def open(self, content, **said):
        return open_container(memoryview(content), ep=EP, node="n", name="sim.bin", **said)

    def engine(self):
        return CpuEngine(EnginePolicy())

    def dense(self, *, names="abc", weight=None, scale=1.0, elements=400):
        """y = relu(x @ w + b): one weight above and one below the limit for inline weights."""
        x, w, y = names
        values = (
            np.arange(elements * 4, dtype=np.float32).reshape(elements, 4) / 7 if weight is None else weight
        )
        bias = numpy_helper.from_array(np.full(4, scale, np.float32), f"{w}_bias")
        nodes = [
            helper.make_node("MatMul", [x, w], ["m"], name="first", doc_string="secret"),
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
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model

    def same(self, found, wanted, tolerance=1e-6):
        assert np.max(np.abs(found - wanted)) / (np.max(np.abs(wanted)) + 1e-6) <= tolerance


@pytest.fixture
def scene():
    return Scene()
