"""Small QDQ INT8 networks, and what the tests do with them over and over through the
host's own interface.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx

EP = "VitisAIExecutionProvider"
KEY = "89703f950ed9f738d956f6769d7e45a385d3c988ca753838b5afbc569ebf35b2"
SHAPE = (1, 4, 8, 8)
SCALE = 2.0**-4


class Net:
    """A network in the making; each method adds nodes and returns the name of the value
    they give.
    """

    def __init__(self, *, shape=SHAPE, seed=0, opset=17):
        self.nodes = []
        self.weights = {}
        self.opset = opset
        self._shape = shape
        self._random = np.random.default_rng(seed)

    def node(self, op_type, *inputs, outputs=1, **attributes):
        names = [f"{op_type}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(
            helper.make_node(op_type, list(inputs), names, name=names[0], **attributes)
        )
        return names[0]

    def weight(self, array, name=None):
        name = name or f"w{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def quantised(self, value, *, kind=np.int8, scale=SCALE, zero_point=0, domain=""):
        """QuantizeLinear and DequantizeLinear."""
        inputs = (
            self.weight(np.float32(scale)),
            self.weight(np.array(zero_point, kind)),
        )
        stored = self.node("QuantizeLinear", value, *inputs, domain=domain)
        return self.node("DequantizeLinear", stored, *inputs, domain=domain)

    def constant(self, array, *, scale=SCALE, zero_point=0, **attributes):
        """A DequantizeLinear of a weight."""
        array = np.asarray(array)
        given = [self.weight(array), self.weight(np.float32(scale))]
        return self.node(
            "DequantizeLinear",
            *given,
            self.weight(np.array(zero_point, array.dtype)),
            **attributes,
        )

    def random(self, *shape):
        return self._random.integers(-100, 100, shape, dtype=np.int8)

    def conv(self, value, *, channels=4, relu=False):
        """A quantised convolution with bias."""
        bias = self._random.integers(-100, 100, channels, dtype=np.int32)
        # At most 7 bits: onnxruntime's kernels for processors without VNNI add two
        # products of 8 bits in 16, where larger weights would overflow.
        weight = self.random(channels, channels, 3, 3) // 2
        weight = self.constant(weight, scale=2.0**-7)
        bias = self.constant(bias, scale=SCALE * 2.0**-7)
        result = self.node("Conv", value, weight, bias, pads=[1, 1, 1, 1])
        return self.quantised(self.node("Relu", result) if relu else result)

    def model(self, *values, shape=None, kind=TensorProto.FLOAT):
        """A model with the input x; the values become its outputs."""
        given = self._shape if shape is None else shape
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", kind, given)],
            [
                helper.make_tensor_value_info(value, TensorProto.FLOAT, None)
                for value in values
            ],
            [
                numpy_helper.from_array(array, name)
                for name, array in self.weights.items()
            ],
        )
        imports = [
            helper.make_opsetid("", self.opset),
            helper.make_opsetid("com.microsoft", 1),
        ]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def two_partitions(*, seed=0, channels=4):
    """Convolution, Erf (left to the CPU), convolution."""
    net = Net(seed=seed, shape=(1, channels, 8, 8))
    first = net.conv(net.quantised("x"), channels=channels, relu=True)
    middle = net.quantised(net.node("Erf", first))
    return net.model(net.conv(middle, channels=channels))


def x_for(model, seed=1):
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)}


class Bench:
    """One folder in which models are compiled, changed and run."""

    net = Net
    key = KEY
    two_partitions = staticmethod(two_partitions)
    x_for = staticmethod(x_for)

    def __init__(self, folder):
        self.folder = folder

    def options(self, prefix="", **options):
        chosen = epctx.SessionOptions()
        chosen.add_provider("VitisAI", options)
        # What the tables take is seen by partitions, also of one Flatten.
        chosen.add_session_config_entry("ep.partition_without_computation", "keep")
        chosen.add_session_config_entry("ep.context_node_name_prefix", prefix)
        return chosen

    def compile(self, model, *, name="net", embed=False, prefix="", **options):
        """Compile; gives the path of the context model and the report."""
        source, output = self.folder / f"{name}.onnx", self.folder / f"{name}_ctx.onnx"
        onnx.save(model, source)
        compiler = epctx.ModelCompiler(self.options(prefix, **options), source, embed)
        report = compiler.compile_to_file(output)
        source.unlink()
        return output, report

    def binary(self, name="net"):
        return self.folder / f"{name}_vitisai.bin"

    def nodes(self, path):
        """The EPContext nodes by their attributes."""
        found = [
            node for node in onnx.load(path).graph.node if node.op_type == "EPContext"
        ]
        return [
            {a.name: helper.get_attribute_value(a) for a in node.attribute}
            for node in found
        ]

    def change(self, path, **changes):
        """Set or (with None) remove attributes of the node at a place, such as
        n1={"index": 0}.
        """
        model = onnx.load(path)
        contexts = [node for node in model.graph.node if node.op_type == "EPContext"]
        for place, values in changes.items():
            node = contexts[int(place.removeprefix("n"))]
            kept = [
                attribute
                for attribute in node.attribute
                if attribute.name not in values
            ]
            kept += [
                helper.make_attribute(k, v) for k, v in values.items() if v is not None
            ]
            del node.attribute[:]
            node.attribute.extend(kept)
        save_without_manifest(model, path)

    def run(self, path, inputs, **options):
        with epctx.InferenceSession(path, self.options(**options)) as session:
            return session.run(None, inputs)


def save_without_manifest(model, path):
    """Save a model that does not say what its payloads must be, so that the EP has to
    find out.
    """
    kept = [entry for entry in model.metadata_props if entry.key != "epctx.manifest"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, path)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture
def compiled(bench):
    """A context model of two partitions, without a manifest."""
    path, _ = bench.compile(two_partitions())
    bench.change(path)
    return path
