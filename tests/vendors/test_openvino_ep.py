"""onnxruntime's OpenVINO EP on its CPU device, by itself and behind the hooks of epctx. It lists devices on Intel CPUs alone."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from agreement import worst_relative_error
from onnx import TensorProto, helper, numpy_helper
from vendors.networks import NETWORKS, Network, network
from vendors.vendors_epctx import Epctx
from vendors.vendors_onnxruntime import OPENVINO, PluginEP, devices

import epctx_core as epctx
from epctx_core.plugin import Purpose

FORMS = ("embedded", "file", "bytes")
FLOAT32 = {"load_config": json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": "f32"}})}
"""On CPUs with bfloat16 OpenVINO computes in it by default."""
ROUNDING = 1e-5
"""Of sums in another order, relative: OpenVINO may compile a graph otherwise each time."""


def listed():
    import onnxruntime_ep_openvino

    return devices(OPENVINO, onnxruntime_ep_openvino)


@pytest.fixture(scope="module")
def routes():
    found = [device for device in listed() if device.ep_metadata["ov_device"] == "CPU"]
    if not found:
        pytest.skip("needs an Intel CPU: onnxruntime-ep-openvino lists devices of Intel processors only")
    return {
        "onnxruntime": PluginEP(ep=OPENVINO, devices=found, options=FLOAT32),
        "epctx": Epctx(ep=f"epctx-onnxruntime:{OPENVINO}", options=FLOAT32),
    }


def three_parts() -> Network:
    """Return matrices that are inverted twice, which OpenVINO leaves to the CPU EP: three partitions of one binary."""
    generator = np.random.Generator(np.random.PCG64(12))
    nodes = [
        helper.make_node("Add", ["x", "eye"], ["a0"]),
        helper.make_node("Inverse", ["a0"], ["b0"], domain="com.microsoft"),
        helper.make_node("MatMul", ["b0", "w"], ["c1"]),
        helper.make_node("Add", ["c1", "eye"], ["a1"]),
        helper.make_node("Inverse", ["a1"], ["b1"], domain="com.microsoft"),
        helper.make_node("MatMul", ["b1", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 16, 16]) for name in "xy")
    weights = generator.standard_normal((16, 16)).astype(np.float32) / 5
    tensors = [numpy_helper.from_array(10 * np.eye(16, dtype=np.float32), "eye")]
    tensors.append(numpy_helper.from_array(weights, "w"))
    graph = helper.make_graph(nodes, "three", [x], [y], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    inputs = {"x": generator.standard_normal((2, 16, 16)).astype(np.float32) / 5}
    return Network(model.SerializeToString(), inputs)


def compiled(route, form, model, folder):
    if form == "bytes":
        return route.compile_to_bytes(model)
    return route.compile_to_file(model, folder / "m_ctx.onnx", embedded=form == "embedded")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*NETWORKS, "three_parts"])
@pytest.mark.parametrize("reader", ["onnxruntime", "epctx"])
@pytest.mark.parametrize("writer", ["onnxruntime", "epctx"])
def test_what_one_compiles_the_other_runs_with_the_direct_result(
    routes, writer, reader, name, form, tmp_path
):
    source, inputs = three_parts() if name == "three_parts" else network(name)

    results = routes[reader].run(compiled(routes[writer], form, source, tmp_path), inputs)

    assert worst_relative_error(results, routes["onnxruntime"].run(source, inputs)) <= ROUNDING


def test_three_partitions_are_one_binary(routes, tmp_path):
    routes["epctx"].compile_to_file(three_parts().model, tmp_path / "m_ctx.onnx", embedded=False)

    nodes = [n for n in onnx.load(tmp_path / "m_ctx.onnx").graph.node if n.op_type == "EPContext"]

    caches = {a.s for node in nodes for a in node.attribute if a.name == "ep_cache_context"}
    assert len(nodes) == 3
    assert caches == {b"m_OpenVINOExecutionProvider.bin"}
    assert len(list(tmp_path.glob("*.bin"))) == 1


def test_a_context_model_with_renamed_values_loads(routes, tmp_path):
    source, inputs = network("two_parts")
    path = routes["epctx"].compile_to_file(source, tmp_path / "m_ctx.onnx", embedded=True)
    model = onnx.load(path)
    for values in (*(node.input for node in model.graph.node), *(node.output for node in model.graph.node)):
        values[:] = [f"renamed {name}" for name in values]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.name = f"renamed {value.name}"
    onnx.save(model, path)

    results = routes["epctx"].run(path, {f"renamed {name}": array for name, array in inputs.items()})

    assert worst_relative_error(results, routes["onnxruntime"].run(source, inputs)) <= ROUNDING


def test_a_context_model_of_another_openvino_is_refused_where_onnxruntime_asks_nobody(routes, tmp_path):
    path = routes["epctx"].compile_to_file(network("bert").model, tmp_path / "m_ctx.onnx", embedded=True)
    model = onnx.load(path)
    (info,) = (p for p in model.metadata_props if p.key == f"ep_compatibility_info.{OPENVINO}")
    said = json.loads(info.value)
    said["ov_compat_string"] = said["ov_compat_string"].replace("ov=20", "ov=19")
    info.value = json.dumps(said)
    onnx.save(model, path)

    with pytest.raises(epctx.InvalidGraph, match=OPENVINO):
        routes["epctx"].run(path, network("bert").inputs)


def test_a_binary_of_another_model_is_refused(routes, tmp_path):
    """In onnxruntime a binary that holds the names runs, whatever it computes."""
    bert, resnet = (
        routes["epctx"].compile_to_file(network(name).model, tmp_path / f"{name}_ctx.onnx", embedded=False)
        for name in ("bert", "resnet")
    )
    binary_of = {
        path: path.with_name(f"{path.stem.removesuffix('_ctx')}_{OPENVINO}.bin") for path in (bert, resnet)
    }
    binary_of[bert].write_bytes(binary_of[resnet].read_bytes())

    with pytest.raises(epctx.InvalidGraph):
        routes["epctx"].run(bert, network("bert").inputs)


def test_on_a_processor_that_is_not_intels_it_says_so():
    from epctx_onnxruntime.providers.openvino import OpenVINOExecutionProvider

    if listed():
        pytest.skip("this processor is Intel's")
    found = OpenVINOExecutionProvider.availability(Purpose.EXPORT)

    assert not found.available
    assert "devices of Intel processors only" in found.reason
    assert "epctx-sim-openvino:OpenVINO" in found.hint
