"""Program for an installed core: compiles, loads and runs a small model with an EP of
its own and those named in `argv`.

It imports nothing of this repository's but `epctx_core`. The own EP needs no package
beside the core's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

import epctx_core as epctx
from epctx_core.plugin import (
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    hookimpl,
    supported_partitions,
)

EP = "SmokeExecutionProvider"
X = np.array([[-1.0, 2.0], [3.0, -4.0]], np.float32)


def relu(inputs, _outputs=None):
    return [np.maximum(inputs[0], 0)]


class SmokeProvider(ExecutionProvider):
    name = EP

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(
            graph, lambda node: node.op_type == "Relu" or "not Relu"
        )

    @hookimpl
    def compile(self, partitions):
        self.partitions = partitions
        return [CompiledPartition(relu) for _ in partitions]

    @hookimpl
    def get_ep_context_nodes(self, writer):
        payload = writer.payload()
        payload.write(b"relu")
        return [EPContextNode(partition, payload) for partition in self.partitions]

    @hookimpl
    def load_context(self, nodes, reader):
        assert {bytes(reader.payload(node).view) for node in nodes} == {b"relu"}
        return [CompiledPartition(relu) for _ in nodes]


def main(folder: Path, eps: list[str]) -> None:
    value = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy"
    ]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Add", ["r", "r"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "smoke", value[:1], value[1:])
    onnx.save(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
        ),
        folder / "m.onnx",
    )
    registry = epctx.Registry()
    registry.register(SmokeProvider)
    for ep in [EP, *eps]:
        options = epctx.SessionOptions()
        options.add_provider(ep)
        report = epctx.ModelCompiler(
            options, folder / "m.onnx", registry=registry
        ).compile_to_file(folder / f"{ep}_ctx.onnx")
        with epctx.InferenceSession(report.output, registry=registry) as session:
            (found,) = session.run(None, {"x": X})
        assert report.assignments[ep], f"{ep} took nothing"
        assert np.array_equal(found, 2 * np.maximum(X, 0)), f"{ep}: {found}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary), sys.argv[1:])
    sys.stdout.write("smoke passed\n")
