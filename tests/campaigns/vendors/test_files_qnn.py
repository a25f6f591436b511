"""Context models of Qualcomm's EP that epctx-files put together and took apart."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from epctx_files import embed, externalize, extract, merge
from support.vendor_routes import route

import epctx_core as epctx

SHAPE = (1, 3, 16, 16)


def convolution(path, x, y, seed):
    """Write a small network whose values have names of their own."""
    generator = np.random.default_rng(seed)
    weights = generator.standard_normal((3, 3, 3, 3), np.float32) / 8
    kinds = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, SHAPE)
        for name in (x, y)
    ]
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node(
                "Conv", [x, f"{y}_w"], [f"{y}_c"], name=f"{y}_conv", pads=[1] * 4
            ),
            onnx.helper.make_node("Relu", [f"{y}_c"], [y], name=f"{y}_relu"),
        ],
        path.stem,
        kinds[:1],
        kinds[1:],
        [onnx.numpy_helper.from_array(weights, f"{y}_w")],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
    )
    return model.SerializeToString()


@pytest.fixture(params=["file", "embedded"])
def contexts(request, tmp_path):
    """Two context models of onnxruntime with QNN, sealed; the second goes on from the
    first.
    """
    vendor = route("onnxruntime with QNN")
    paths = []
    for number, (x, y) in enumerate((("x", "h"), ("h", "y"))):
        path = tmp_path / f"net{number}_ctx.onnx"
        vendor.compile_to_file(
            convolution(path, x, y, number), path, embedded=request.param == "embedded"
        )
        epctx.seal_model(path)
        paths.append(path)
    return paths


@pytest.fixture
def x():
    return np.random.default_rng(0).random(SHAPE, dtype=np.float32)


def get_node(path):
    (node,) = onnx.load(path, load_external_data=False).graph.node
    return node


def check(path):
    report = epctx.verify_model(path, route("epctx with QNN").session_options())
    assert report.ok, report
    assert all(payload.digests for payload in report.payloads)


def test_a_merged_model_computes_what_both_compute_in_turn(contexts, x, tmp_path):
    ours = route("epctx with QNN")
    (between,) = ours.run(contexts[0], {"x": x})
    (expected,) = ours.run(contexts[1], {"h": between})

    whole = merge(contexts, tmp_path / "out" / "whole.onnx").model

    check(whole)
    (found,) = ours.run(whole, {"x": x})
    np.testing.assert_array_equal(found, expected)


def test_the_parts_of_a_merged_model_are_extracted_equal(contexts, x, tmp_path):
    ours = route("epctx with QNN")
    whole = merge(contexts, tmp_path / "out" / "whole.onnx").model
    feeds = {"x": x}
    for number, context in enumerate(contexts):
        node = get_node(context)

        part = extract(whole, tmp_path / "part" / f"{number}.onnx", node=node.name)

        check(part.model)
        assert get_node(part.model) == node
        (expected,) = ours.run(context, feeds)
        (found,) = ours.run(part.model, feeds)
        np.testing.assert_array_equal(found, expected)
        feeds = {"h": expected}


@pytest.mark.parametrize("name", ["epctx with QNN", "onnxruntime with QNN"])
def test_a_payload_gives_the_same_results_in_the_model_and_in_a_file(
    contexts, x, name, tmp_path
):
    (expected,) = route(name).run(contexts[0], {"x": x})

    inside = embed(contexts[0], tmp_path / "inside" / "net_ctx.onnx").model
    outside = externalize(inside, tmp_path / "outside" / "net_ctx.onnx").model

    for path in (inside, outside):
        check(path)
        (found,) = route(name).run(path, {"x": x})
        np.testing.assert_array_equal(found, expected)
