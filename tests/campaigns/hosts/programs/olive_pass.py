# /// script
# dependencies = ["olive-ai>=0.13", "onnxruntime-qnn>=2.7", "onnx", "requests"]
#
# [tool.hosts]
# package = "olive-ai"
# does = "its pass EPContextBinaryGenerator, over QNN's compiler, on a network that the script makes"
# plugins = ["epctx-isolation"]
# writes = "QNN on its simulator"
# ///
"""The context model that Olive's pass writes for QNN, and the scores that it computes."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from olive.hardware.accelerator import AcceleratorSpec, Device
from olive.model import ONNXModelHandler
from olive.passes.olive_pass import create_pass_from_dict
from olive.passes.onnx.context_binary import EPContextBinaryGenerator
from onnx import TensorProto, helper, numpy_helper

EP = "QNNExecutionProvider"
OPTIONS = {"soc_model": "60"}


def make_network(path: Path) -> None:
    """Write two layers of drawn weights, behind a convolution."""
    drawn = np.random.default_rng(7)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = drawn.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["edges"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["edges"], ["kept"]),
        helper.make_node("GlobalAveragePool", ["kept"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("Gemm", ["flat", "last"], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "drawn",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 10])],
        [weight("kernel", 8, 3, 3, 3), weight("last", 10, 8)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    onnx.save(model, path)


def compile_network(source: Path, folder: Path) -> Path:
    """Return the context model that Olive has QNN write."""
    npu = AcceleratorSpec(accelerator_type=Device.NPU, execution_provider=EP)
    generator = create_pass_from_dict(
        EPContextBinaryGenerator, {"provider_options": dict(OPTIONS)}, True, npu
    )
    model = ONNXModelHandler(model_path=str(source))
    return Path(generator.run(model, str(folder / "written")).model_path)


def compute(model: Path, image: np.ndarray) -> np.ndarray:
    """Return what the context model computes on QNN's simulator."""
    import onnxruntime_qnn

    onnxruntime.register_execution_provider_library(
        EP, onnxruntime_qnn.get_library_path()
    )
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == EP]
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices(
        devices[:1], OPTIONS | {"backend_path": onnxruntime_qnn.get_qnn_htp_path()}
    )
    session = onnxruntime.InferenceSession(model, options)
    (scores,) = session.run(None, {"image": image})
    return scores


def main() -> None:
    """Write the nodes of the context model and the scores of a drawn image."""
    with tempfile.TemporaryDirectory() as made:
        source = Path(made) / "drawn.onnx"
        make_network(source)
        written = compile_network(source, Path(made))
        nodes = onnx.load(written).graph.node
        attributes = [
            {a.name: helper.get_attribute_value(a) for a in node.attribute}
            for node in nodes
        ]
        image = np.random.default_rng(8).random((1, 3, 16, 16), np.float32)
        answers = {
            "nodes": [node.op_type for node in nodes],
            "sources": [str(of.get("source", b""), "utf-8") for of in attributes],
            "embedded": [of.get("embed_mode") for of in attributes],
            "scores": compute(written, image).tolist(),
        }
    Path(sys.argv[1]).write_text(json.dumps(answers, indent=1), "utf-8")


if __name__ == "__main__":
    main()
