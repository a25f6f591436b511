"""What the tests do over and over: make models, compile and load them through epctx,
change context models.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from epctx_sim_openvino import OpenVinoProvider
from onnx import TensorProto, helper, numpy_helper
from support.networks.catalog import Catalog
from support.typed_options import typed_options

import epctx_core as epctx

EP = "OpenVINOExecutionProvider"
FLOAT = TensorProto.FLOAT


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A context model beside its binary.

    Attributes:
        path: the model.
        report: what the compiler said.
    """

    path: Path
    report: epctx.CompileReport

    @property
    def binary(self):
        return self.path.with_name(self.path.stem.removesuffix("_ctx") + f"_{EP}.bin")

    @property
    def nodes(self):
        """The EPContext nodes, each with its attributes by name."""
        graph = onnx.load(self.path).graph
        return [
            {a.name: helper.get_attribute_value(a) for a in node.attribute}
            | {"name": node.name}
            for node in graph.node
            if node.op_type == "EPContext"
        ]

    @property
    def reasons(self):
        """Refused nodes by reason."""
        found = {}
        for refusal in self.report.refusals:
            found.setdefault(refusal.reason, []).extend(refusal.nodes)
        return found

    @property
    def taken(self):
        """The operators of each partition."""
        return [list(partition.operators) for partition in self.report.partitions]

    def change(self, place, **attributes):
        """Set attributes of one EPContext node; None removes one.

        The manifest's digests stay true.
        """
        model = onnx.load(self.path)
        node = [n for n in model.graph.node if n.op_type == "EPContext"][place]
        for name, value in attributes.items():
            for attribute in [a for a in node.attribute if a.name == name]:
                node.attribute.remove(attribute)
            if value is not None:
                node.attribute.append(helper.make_attribute(name, value))
        onnx.save(model, self.path)
        return node.name


class Bench:
    """Makes models and runs epctx on them.

    Args:
        folder: where files go.
    """

    def __init__(self, folder):
        self.folder = folder
        self.made = 0

    def settings(self, options, **entries):
        given = epctx.SessionOptions()
        given.add_provider(EP, options)
        # What the tables take is seen by partitions, also of one Cast.
        given.add_session_config_entry("ep.partition_without_computation", "keep")
        for key, value in entries.items():
            given.add_session_config_entry(key.replace("__", "."), value)
        return given

    def options(self, **given):
        """Options as the core gives them to the EP."""
        return typed_options(OpenVinoProvider, given)

    def compile(self, model, *, embedded=False, entries=None, **options):
        """Compile a model or the model at a path, each time in a folder of its own."""
        self.made += 1
        folder = self.folder / str(self.made)
        folder.mkdir()
        source = model if isinstance(model, Path) else model.SerializeToString()
        compiler = epctx.ModelCompiler(
            self.settings(options, **entries or {}), source, embedded
        )
        report = compiler.compile_to_file(folder / "net_ctx.onnx")
        return Compiled(path=folder / "net_ctx.onnx", report=report)

    def run(self, path, inputs, **options):
        with epctx.InferenceSession(path, self.settings(options)) as session:
            return session.run(None, inputs)

    def load(self, path, **options):
        with epctx.InferenceSession(path, self.settings(options)):
            pass

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

    def two_partitions(self, *, seed=0, batch=2, channels=40):
        """MatMul, Relu, IsNaN (left to the CPU), Where, MatMul: two partitions with one
        shared weight.
        """
        weight = (
            np.random.default_rng(seed)
            .standard_normal((channels, channels))
            .astype(np.float32)
        )
        return self.model(
            [
                helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
                helper.make_node("Relu", ["a"], ["b"], name="second"),
                helper.make_node("IsNaN", ["b"], ["c"], name="left"),
                helper.make_node("Where", ["c", "zero", "b"], ["d"], name="third"),
                helper.make_node("MatMul", ["d", "same"], ["y"], name="fourth"),
            ],
            {"x": (FLOAT, [batch, channels])},
            {"y": (FLOAT, [batch, channels])},
            {"w": weight, "same": weight, "zero": np.float32(0)},
        )


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture(scope="session")
def network(tmp_path_factory):
    """`network("bert")` gives a fresh copy of a real network, with inputs and
    onnxruntime's result.
    """
    return Catalog(tmp_path_factory.mktemp("networks")).get
