"""From "is this node supported?" to claims and refusals."""

from __future__ import annotations

import io

import numpy as np
import pytest
from support.graph_models import model, node, tensor
from support.witness import looked, view

from epctx_core.plugin import (
    ComputeCapability,
    Refusal,
    number_nodes,
    read_inputs,
    supported_partitions,
)

MODEL = model(
    [
        node("Neg", ["x"], ["a"]),
        node("Abs", ["a"], ["b"]),
        node("Tan", ["b"], ["c"]),
        node("Neg", ["c"], ["y"]),
    ],
    ["x"],
    ["y"],
)


def answered(is_supported, **how):
    """Return what `supported_partitions` gives an EP that is asked about the model."""
    return looked(MODEL, lambda graph: supported_partitions(graph, is_supported, **how))


@pytest.fixture
def graph():
    return view(MODEL)


def indices(answer, kind):
    return [[n.index for n in item.nodes] for item in answer if isinstance(item, kind)]


def test_supported_nodes_are_claimed_in_convex_groups_and_the_others_refused():
    answer = answered(lambda n: n.op_type != "Tan")

    assert indices(answer, ComputeCapability) == [[0, 1], [3]]
    assert indices(answer, Refusal) == [[2]]
    assert answer[-1].reason == "Tan is not supported"


def test_each_reason_is_told_once_with_all_its_nodes():
    answer = answered(lambda n: "no sign changes" if n.op_type == "Neg" else True)

    assert [
        (item.reason, [n.index for n in item.nodes])
        for item in answer
        if isinstance(item, Refusal)
    ] == [("no sign changes", [0, 3])]


@pytest.mark.parametrize("verdict", [True, np.bool_(True), 1])
def test_whatever_is_true_is_support(verdict):
    answer = answered(lambda _: verdict)

    assert indices(answer, ComputeCapability) == [[0, 1, 2, 3]]
    assert indices(answer, Refusal) == []


@pytest.mark.parametrize("verdict", [False, np.bool_(False), "", None])
def test_whatever_is_false_is_a_refusal_by_operator(verdict):
    answer = answered(lambda _: verdict)

    assert indices(answer, ComputeCapability) == []
    assert [item.reason for item in answer] == [
        f"{op} is not supported" for op in ("Neg", "Abs", "Tan")
    ]


def test_claims_carry_what_was_asked_of_them():
    answer = answered(lambda _: True, keep_initializers=True)

    assert [(c.keep_nodes, c.keep_initializers) for c in answer] == [(False, True)]


def test_names_that_a_vendor_makes_of_numbered_nodes_are_mapped_back(graph):
    model = graph.model()

    number = number_nodes(model)

    assert [node.op_type for node in model.graph.node] == [
        node.op_type for node in graph.nodes
    ]
    assert [number(node.name) for node in model.graph.node] == [
        node.index for node in graph.nodes
    ]
    made_of_3 = ["epctx_n3", "epctx_n3_token_17", "epctx_n3/Add", "y"]
    assert [number(name) for name in made_of_3] == [3] * 4
    assert [number(name) for name in ("epctx_n31", "epctx_n4", "x", "Conv_3", "")] == [
        None
    ] * 5


def test_a_real_front_end_answers_about_numbered_nodes(graph):
    frontend = (
        pytest.importorskip("openvino.frontend")
        .FrontEndManager()
        .load_by_framework("onnx")
    )
    model = graph.model()
    model.graph.node[2].domain = "acme"
    model.opset_import.add(domain="acme", version=1)
    number = number_nodes(model)

    converted = frontend.convert_partially(
        frontend.load(io.BytesIO(model.SerializeToString()))
    )

    names = {op.get_type_name(): op.get_friendly_name() for op in converted.get_ops()}
    assert number(names["NotSupportedONNXNode"]) == 2
    assert number(names["Abs"]) == 1


def read(one, opset=13, **weights):
    """Return what `read_inputs` gives for a node of a model, its other inputs being
    weights.
    """
    given = [tensor(name, value, value.dtype) for name, value in weights.items()]
    graph = view(model([one], ["x"], ["y"], given, opsets=[("", opset)]))
    return read_inputs(graph, graph.nodes[0])


EMPTY, SCALES = np.empty(0, np.float32), np.ones(4, np.float32)


def test_a_resize_reads_its_roi_only_where_it_crops():
    inputs = ["x", "roi", "scales"]
    weights = {"roi": np.zeros(8, np.float32), "scales": SCALES}
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize"}

    assert read(node("Resize", inputs, ["y"]), **weights) == ("x", "", "scales")
    assert read(node("Resize", inputs, ["y"], **crop), **weights) == tuple(inputs)
    older = node("Resize", ["x", "scales"], ["y"])
    assert read(older, 10, scales=SCALES) == ("x", "scales")


def test_a_resize_ignores_scales_and_sizes_without_elements():
    inputs = ["x", "", "scales", "sizes"]
    both = node("Resize", inputs, ["y"])

    sizes = np.array([1, 1, 2, 2])
    assert read(both, scales=EMPTY, sizes=sizes) == ("x", "", "", "sizes")


def test_a_pad_reads_its_value_only_where_it_fills_with_it():
    weights = {"pads": np.array([1, 1]), "value": np.float32(1)}
    inputs = ["x", "pads", "value"]

    assert read(node("Pad", inputs, ["y"], mode="edge"), **weights) == ("x", "pads", "")
    assert read(node("Pad", inputs, ["y"]), **weights) == tuple(inputs)


def test_a_dropout_reads_its_ratio_only_where_it_may_train():
    ratio = np.float32(0.5)
    inputs = ["x", "ratio", "train"]

    alone = read(node("Dropout", inputs[:2], ["y"]), ratio=ratio)
    off = read(node("Dropout", inputs, ["y"]), ratio=ratio, train=np.array(False))
    on = read(node("Dropout", inputs, ["y"]), ratio=ratio, train=np.array(True))

    assert (alone, off, on) == (("x", ""), ("x", "", "train"), tuple(inputs))
