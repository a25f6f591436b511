"""Context binaries of QNN without an ONNX model around them: what Qualcomm's library says
of each, models that load them, and damage.
"""

from __future__ import annotations

import epctx_files
import numpy as np
import onnx
import pytest
from epctx_native_formats import BinaryReader, describe_binary, wrap_binary
from onnx import TensorProto, helper, numpy_helper
from support.folders import REAL
from support.vendor_routes import route
from support.vendors_onnxruntime import qnn_options
from vendors.vendor_networks import MORE_NETWORKS, NETWORKS, network

import epctx_core as epctx
from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    NotImplementedByProvider,
)

DAMAGES = 100
MANY_DAMAGES = 10_000


def draw(model, seed=0):
    """Return inputs for a model, by name."""
    generator = np.random.default_rng(seed)
    inputs = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        largest = 2 if dtype.kind == "f" else 3
        drawn = generator.random(shape) * largest
        inputs[value.name] = np.asarray(drawn, dtype)
    return inputs


def run_vendor(path, inputs):
    """Run a model in onnxruntime with Qualcomm's EP alone."""
    return route("onnxruntime with QNN").run(path, inputs)


def run_epctx(path, inputs):
    """Run a model in epctx."""
    options = epctx.SessionOptions()
    options.add_provider("QNN", qnn_options())
    return epctx.InferenceSession(path, options).run(None, inputs)


@pytest.fixture(
    scope="module",
    params=[
        *NETWORKS,
        *(pytest.param(name, marks=pytest.mark.stress) for name in MORE_NETWORKS),
    ],
)
def context_model(request, tmp_path_factory):
    """Return the path of a context model that onnxruntime compiled."""
    folder = tmp_path_factory.mktemp(request.param)
    source = network(request.param).model
    return route("onnxruntime with QNN").compile_to_file(
        source, folder / "m_ctx.onnx", embedded=False
    )


def list_contexts(path):
    model = onnx.load(path, load_external_data=False)
    return [node for node in model.graph.node if node.op_type == "EPContext"]


def find_binary(path, _node):
    """Return the path of the binary of a model."""
    (name,) = {
        attribute.s.decode()
        for each in list_contexts(path)
        for attribute in each.attribute
        if attribute.name == "ep_cache_context"
    }
    return path.parent / name


def test_every_graph_is_described_as_its_node_is_and_runs_in_a_wrapper(
    context_model, tmp_path
):
    contexts = list_contexts(context_model)
    assert contexts

    for number, node in enumerate(contexts):
        # The vendor's own node alone, as a model.
        alone = tmp_path / f"alone_{number}.onnx"
        epctx_files.extract(context_model, alone, node=node.name)
        proto = onnx.load(alone, load_external_data=False)
        binary = find_binary(alone, node)
        graphs = {graph.name: graph for graph in describe_binary(binary).graphs}
        graph = graphs[node.name]
        # onnxruntime renames some values, which then have their positions.
        inputs = dict(zip(node.input, graph.inputs, strict=True))
        outputs = dict(zip(node.output, graph.outputs, strict=True))
        for value in (*proto.graph.input, *proto.graph.output):
            tensor = (inputs | outputs)[value.name]
            declared = value.type.tensor_type
            assert tensor.element_type == TensorProto.DataType.Name(declared.elem_type)
            lengths = [dim.dim_value for dim in declared.shape.dim]
            assert [*tensor.shape] == (lengths or [1])

        wrapper = tmp_path / f"wrapped_{number}_ctx.onnx"
        wrap_binary(binary, wrapper, graphs=[node.name])
        feeds = draw(proto)
        names = [value.name for value in proto.graph.output]
        expected = dict(zip(names, run_vendor(alone, feeds), strict=True))
        shapes = {tensor.name: tensor.shape for tensor in graph.inputs}
        renamed = {
            inputs[name].name: array.reshape(shapes[inputs[name].name])
            for name, array in feeds.items()
        }
        for run in (run_vendor, run_epctx):
            results = run(wrapper, renamed)
            for name, result in zip(node.output, results, strict=True):
                np.testing.assert_array_equal(
                    result.reshape(-1), expected[name].reshape(-1)
                )
        assert epctx.verify_model(wrapper).ok


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    """Return the path of a context model whose node has quantised inputs and outputs."""
    folder = tmp_path_factory.mktemp("quantised")
    generator = np.random.default_rng(1)
    weights = generator.integers(-100, 100, (8, 8), np.int8)

    def constant(name, value, dtype):
        return numpy_helper.from_array(np.array(value, dtype), name)

    constants = [
        constant("s", 0.02, np.float32),
        constant("z", 128, np.uint8),
        constant("ws", 0.01, np.float32),
        constant("wz", 0, np.int8),
        numpy_helper.from_array(weights, "w"),
        constant("ys", 0.05, np.float32),
        constant("yz", 7, np.uint8),
    ]
    node = helper.make_node
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["xf"], name="dx"),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], name="dw"),
        node("MatMul", ["xf", "wf"], ["yf"], name="mm"),
        node("QuantizeLinear", ["yf", "ys", "yz"], ["y"], name="qy"),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.UINT8, [4, 8]) for name in "xy"
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    return route("onnxruntime with QNN").compile_to_file(
        model.SerializeToString(), folder / "m_ctx.onnx", embedded=False
    )


def test_a_quantised_graph_has_its_scales_and_a_wrapper_of_float(quantised, tmp_path):
    (node,) = list_contexts(quantised)
    binary = find_binary(quantised, node)
    (graph,) = describe_binary(binary).graphs
    (x,), (y,) = graph.inputs, graph.outputs
    assert (x.type, x.element_type) == ("UFIXED_POINT_8", "UINT8")
    assert x.quantization.scales == pytest.approx([0.02])
    assert x.quantization.zero_points == (128,)
    assert y.quantization.scales == pytest.approx([0.05])
    assert y.quantization.zero_points == (7,)

    plain, floating = tmp_path / "q_ctx.onnx", tmp_path / "f_ctx.onnx"
    wrap_binary(binary, plain)
    wrap_binary(binary, floating, as_float=True, rename={x.name: "image"}, embed=True)
    values = np.random.default_rng(2).integers(0, 255, (4, 8), np.uint8)
    expected = run_vendor(quantised, {"x": values})[0]
    real = (values.astype(np.float32) - 128) * np.float32(x.quantization.scales[0])
    for run in (run_vendor, run_epctx):
        (result,) = run(plain, {x.name: values})
        np.testing.assert_array_equal(result, expected)
        (result,) = run(floating, {"image": real})
        scale = np.float32(y.quantization.scales[0])
        np.testing.assert_array_equal(result, (expected.astype(np.float32) - 7) * scale)


def test_a_binary_of_two_graphs_needs_the_choice_of_one_or_two_models(tmp_path):
    binary = REAL / "share1_qnn.bin"
    first, second = (graph.name for graph in describe_binary(binary).graphs)

    with pytest.raises(InvalidArgument, match="2 graphs") as caught:
        wrap_binary(binary, tmp_path / "m_ctx.onnx")
    assert "--graph" in caught.value.hint
    with pytest.raises(InvalidArgument, match="two values"):
        wrap_binary(binary, tmp_path / "m_ctx.onnx", graphs=[first, second])
    with pytest.raises(InvalidArgument, match="no graph 'third'"):
        wrap_binary(binary, tmp_path / "m_ctx.onnx", graphs=["third"])
    assert not [*tmp_path.iterdir()]

    wrap_binary(binary, tmp_path / "m_ctx.onnx", graphs=[second])
    (node,) = list_contexts(tmp_path / "m_ctx.onnx")
    assert node.name == second


@pytest.mark.parametrize("name", ["qnn_ctx0", "qnn_ctx1"])
def test_a_wrapper_computes_what_the_vendors_own_context_model_does(name, tmp_path):
    own = REAL / f"{name}.onnx"
    wrapper = tmp_path / "m_ctx.onnx"
    # qnn_ctx1 has the same binary in it.
    wrap_binary(REAL / "qnn_ctx0_qnn.bin", wrapper, embed=name == "qnn_ctx1")
    inputs = draw(onnx.load(own, load_external_data=False))

    (expected,) = run_vendor(own, inputs)
    for run in (run_vendor, run_epctx):
        (result,) = run(wrapper, inputs)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "no digests"])
def test_a_node_that_is_not_that_of_its_graph_is_found(is_sealed, tmp_path):
    wrapper = tmp_path / "m_ctx.onnx"
    wrap_binary(REAL / "qnn_ctx0_qnn.bin", wrapper)
    model = onnx.load(wrapper)
    del model.metadata_props[:]
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 8
    changed = tmp_path / "changed_ctx.onnx"
    onnx.save(model, changed)
    if is_sealed:
        epctx_files.seal_model(changed)

    report = epctx.verify_model(changed)

    assert not report.ok
    (finding,) = [f for f in report.findings if f.code == "container-refused"]
    assert "its input 'x' is float[1,3,8,16]" in finding.message
    assert "FLOAT_32[1,3,16,16]" in finding.message


def damage(content, generator):
    """Return content with some bytes of its head changed, or cut."""
    damaged = bytearray(content)
    for _ in range(int(generator.integers(1, 5))):
        damaged[int(generator.integers(4, 0x420))] = int(generator.integers(256))
    if generator.random() < 0.1:
        del damaged[int(generator.integers(4, len(damaged))) :]
    return bytes(damaged)


@pytest.mark.parametrize(
    "count",
    [DAMAGES, pytest.param(MANY_DAMAGES, marks=pytest.mark.stress)],
)
@pytest.mark.parametrize("kind", ["two graphs", "quantised"])
def test_a_damaged_binary_is_described_or_refused_and_never_ends_the_host(
    count, kind, quantised
):
    path = REAL / "share1_qnn.bin"
    if kind == "quantised":
        path = find_binary(quantised, None)
    content = path.read_bytes()
    graphs = len(describe_binary(path).graphs)
    generator = np.random.default_rng(7)
    refused = []

    with BinaryReader() as reader:
        for _ in range(count):
            try:
                reader.describe(memoryview(damage(content, generator)), "it")
            except EpctxError as error:
                refused.append(error)
        # The next one is read as before.
        assert len(reader.describe(memoryview(content)).graphs) == graphs

    assert len(refused) > count // 10
    # A version that is not read may be damage, too.
    kinds = InvalidGraph, NotImplementedByProvider
    assert all(isinstance(error, kinds) for error in refused), refused
