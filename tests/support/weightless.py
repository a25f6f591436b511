"""A source model with a large and a small weight, compiled in weightless mode, moved,
loaded and compared.
"""

from __future__ import annotations

import shutil

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx

SIZE = 48
FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
PATH_OPTION = "ep.context_source_model_path"
ALL, EXTERNAL_ONLY = 2, 1


class Harness:
    """A source `relu(x @ w + b)` in a folder, and what is done with it over and
    over.
    """

    def __init__(self, folder):
        self.folder = folder
        self.source = folder / "net.onnx"
        generator = np.random.default_rng(3)
        self.w = generator.standard_normal((SIZE, SIZE), dtype=np.float32)
        self.b = generator.standard_normal(SIZE, dtype=np.float32)
        self.x = generator.standard_normal((2, SIZE), dtype=np.float32)
        self.write(self.w, self.b)

    def write(self, w, b, *, names=("w", "b")):
        nodes = [
            helper.make_node("MatMul", ["x", names[0]], ["m"], name="multiply"),
            helper.make_node("Add", ["m", names[1]], ["s"], name="add"),
            helper.make_node("Relu", ["s"], ["y"], name="clip"),
        ]
        graph = helper.make_graph(
            nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, SIZE])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, SIZE])],
            [
                numpy_helper.from_array(w, names[0]),
                numpy_helper.from_array(b, names[1]),
            ],
        )
        onnx.save(
            helper.make_model(
                graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8
            ),
            self.source,
        )

    def externalise(self):
        """Move `w` into net.weights; `b`, which is small, stays inline."""
        model = onnx.load(self.source)
        onnx.save(
            model,
            self.source,
            save_as_external_data=True,
            location="net.weights",
            size_threshold=1024,
        )
        return self.folder / "net.weights"

    def compile(self, mode=ALL, *, options=None, source=None, **arguments):
        session = with_openvino(options, **{"ep.enable_weightless_mode": mode})
        output = self.folder / "net_ctx.onnx"
        compiler = epctx.ModelCompiler(session, source or self.source, **arguments)
        self.report = compiler.compile_to_file(output)
        return output

    def moved(self, *names):
        """Move files to another folder; return the context model's path there."""
        target = self.folder / "elsewhere"
        target.mkdir()
        for path in [
            *self.folder.glob("net_ctx.onnx"),
            *self.folder.glob("*.bin"),
            *map(self.folder.joinpath, names),
        ]:
            shutil.move(path, target / path.name)
        return target / "net_ctx.onnx"

    @property
    def binary(self):
        (path,) = self.folder.glob("*.bin")
        return path.read_bytes()

    @property
    def expected(self):
        return np.maximum(self.x @ self.w + self.b, 0)

    def check(self, model, options=None, **entries):
        with epctx.InferenceSession(
            model, with_openvino(options, **entries)
        ) as session:
            (found,) = session.run(None, {"x": self.x})
        np.testing.assert_allclose(found, self.expected, rtol=1e-4, atol=1e-4)


def with_openvino(options=None, **entries):
    session = epctx.SessionOptions()
    session.add_provider("OpenVINO", options)
    for key, value in entries.items():
        session.add_session_config_entry(key, str(value))
    return session


def attributes(model):
    return [
        {a.name: helper.get_attribute_value(a) for a in node.attribute}
        for node in onnx.load(model, load_external_data=False).graph.node
        if node.op_type == "EPContext"
    ]


def metadata(model):
    return {
        p.key: p.value
        for p in onnx.load(model, load_external_data=False).metadata_props
    }
