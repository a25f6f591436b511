"""What onnxruntime is given to compile, and the names that a context model keeps for
it.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.onnxruntime_cpu_ep import OrtCpuExecutionProvider as CpuProvider

import epctx_core as epctx
from epctx_core.plugin import Purpose

pytestmark = pytest.mark.internal


class Recorder(onnxruntime.ModelCompiler):
    """onnxruntime's compiler, which keeps models and the names that binaries get."""

    models: list[onnx.ModelProto]
    names: list[str]

    def __init__(self, options, content, *args, **kwargs):
        self.models.append(onnx.ModelProto.FromString(content))
        self.names.append(
            Path(options.get_session_config_entry("ep.context_file_path")).name
        )
        super().__init__(options, content, *args, **kwargs)


@pytest.fixture
def recorder(monkeypatch):
    class Fresh(Recorder):
        models, names = [], []

    monkeypatch.setattr(onnxruntime, "ModelCompiler", Fresh)
    return Fresh


def scaled(weight=1.0, shape=(4, 8)):
    """Return MatMul, Scaler and Relu; ONNX infers nothing of what a Scaler gives, its
    model says it.
    """
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["summed"]),
        helper.make_node(
            "Scaler",
            ["summed"],
            ["scaled"],
            domain="ai.onnx.ml",
            offset=[0.5],
            scale=[0.1],
        ),
        helper.make_node("Relu", ["scaled"], ["y"]),
    ]
    x, inner, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in ("x", "scaled", "y")
    )
    tensors = [
        numpy_helper.from_array(np.full((shape[1], shape[1]), weight, np.float32), "w")
    ]
    graph = helper.make_graph(nodes, "scaled", [x], [y], tensors, value_info=[inner])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=10
    ).SerializeToString()


def compiled(model):
    registry = epctx.Registry(entry_points=False)
    registry.register(CpuProvider)
    options = epctx.SessionOptions()
    options.add_provider(CpuProvider.name, {})
    return epctx.ModelCompiler(
        options, model, True, registry=registry
    ).compile_to_bytes()


def test_the_compiler_gets_the_types_of_inner_values_that_it_cannot_infer(recorder):
    compiled(scaled())

    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in recorder.models[0].graph.value_info
    }
    assert shapes == {"summed": [4, 8], "scaled": [4, 8]}


def test_binaries_are_named_by_what_is_compiled(recorder):
    for model in (scaled(), scaled(), scaled(weight=2.0), scaled(shape=(4, 16))):
        compiled(model)

    first, again, other_weights, other_shape = recorder.names[
        :: len(recorder.names) // 4
    ]
    assert first == again
    assert len({first, other_weights, other_shape}) == 3


@pytest.fixture
def opened(monkeypatch):
    """Models and options of sessions that onnxruntime is asked for, and refuses."""
    seen = []

    def refuse(model, options, **_kwargs):
        proto = onnx.ModelProto.FromString(model)
        # Not where it is asked whether it is the options.
        if any(node.op_type == "EPContext" for node in proto.graph.node):
            seen.append((proto, options))
            raise RuntimeError("no such EP here")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    return seen


class ByName(CpuProvider):
    finds_values_by_name = True


def context_node(attributes, *names):
    """Return what the core passes of a node whose payload is three bytes long."""
    values = [
        epctx.plugin.ValueInfo(name, epctx.plugin.TensorType(TensorProto.FLOAT, (4, 8)))
        for name in names
    ]
    return SimpleNamespace(
        name="node",
        partition_name="graph",
        inputs=values[:1],
        outputs=values[1:],
        attributes=attributes,
    )


IN_MEMORY = SimpleNamespace(view=memoryview(b"abc"), is_file=False)


def load(node, payload=IN_MEMORY):
    cancel = SimpleNamespace(raise_if_requested=lambda: None)
    context = SimpleNamespace(
        session_config={},
        options={},
        intra_op_num_threads=1,
        purpose=Purpose.LOAD,
        cancel=cancel,
    )
    reader = SimpleNamespace(payload=lambda _node: payload)
    return ByName(context).load_context([node], reader)


@pytest.mark.parametrize(
    ("is_file", "size", "given"),
    [
        (True, 3, b"b.bin"),
        (False, 3, b"abc"),
        (False, 16 << 20, bytes(16 << 20)),
        (False, (16 << 20) + 1, b"b.bin"),
    ],
)
def test_onnxruntime_is_given_a_file_by_its_name_and_memory_as_bytes_up_to_16_mib(
    opened, tmp_path, is_file, size, given
):
    payload = SimpleNamespace(
        view=memoryview(b"abc" if size == len(b"abc") else bytes(size)),
        is_file=is_file,
        as_file=lambda: str(tmp_path / "b.bin"),
    )

    with pytest.raises(epctx.InvalidGraph, match="no such EP here"):
        load(context_node({}, "x", "y"), payload)

    model, options = opened[0]
    (node,) = model.graph.node
    is_named = given == b"b.bin"
    assert helper.get_node_attr_value(node, "ep_cache_context") == given
    assert helper.get_node_attr_value(node, "embed_mode") == int(not is_named)
    if is_named:
        folder = Path(options.get_session_config_entry("ep.context_file_path")).parent
        assert folder == tmp_path


@pytest.mark.parametrize(
    ("attributes", "asked"),
    [({"epctx_value_names": ["x", "y"]}, ["x", "y"]), ({}, ["renamed x", "renamed y"])],
)
def test_a_graph_that_knows_its_values_by_name_is_asked_for_them_by_these(
    opened, attributes, asked
):
    with pytest.raises(epctx.InvalidGraph, match="no such EP here"):
        load(context_node(attributes, "renamed x", "renamed y"))

    (node,) = opened[0][0].graph.node
    assert [*node.input, *node.output] == asked
    assert "epctx_value_names" not in {attribute.name for attribute in node.attribute}


@pytest.mark.parametrize("names", [["x"], ["x", "y", "z"], "xy"])
def test_names_that_fit_another_node_are_refused(names):
    with pytest.raises(
        epctx.InvalidGraph, match="does not name its 2 inputs and outputs"
    ):
        load(context_node({"epctx_value_names": names}, "x", "y"))
