"""Nodes that OpenVINO would compute otherwise than ONNX says: refused with the reason,
and computed by the CPU EP.
"""

from __future__ import annotations

import io

import numpy as np
import onnx
import pytest
from epctx_openvino.native import core
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx_models import FLOAT, INT32, INT64, model_of, single
from support.extensions_library import LIBRARY

import epctx_core as epctx

pytestmark = pytest.mark.internal

DOUBLE, UINT32, UINT64 = TensorProto.DOUBLE, TensorProto.UINT32, TensorProto.UINT64
INT8, UINT8, INT16 = TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16
WITHOUT_EPS = epctx.Registry(entry_points=False)
BEYOND_32_BITS = np.array([2**40, -(2**33), 5], np.int64)


def explained(harness, model):
    """Return by operator the reason for each node that is left; an empty text for those
    that OpenVINO takes.
    """
    options = harness.session_options()
    options.add_session_config_entry("ep.partition_without_computation", "keep")
    found = epctx.explain_model(model, options, registry=harness.registry)
    return {
        node.operator: node.refusals[0][1] if node.refusals else ""
        for node in found.nodes
    }


def expected(model, inputs):
    with epctx.InferenceSession(model, registry=WITHOUT_EPS) as session:
        return session.run(None, inputs)


def computed_by_openvino(model, inputs):
    compiled = core().compile_model(core().read_model(io.BytesIO(model)), "CPU")
    return [
        np.array(each)
        for each in compiled(
            [inputs[p.get_any_name()] for p in compiled.inputs]
        ).values()
    ]


def vector(elem_type):
    return {"x": (elem_type, [3])}


@pytest.mark.parametrize(
    ("model", "x", "reason"),
    [
        (single("Neg", vector(INT64), {"y": (INT64, [3])}), BEYOND_32_BITS, "int64 in 32 bits"),
        (
            single("Add", vector(INT64), {"y": (INT64, [3])}, {"one": np.int64(2**33)}),
            np.arange(3), "int64 in 32 bits",
        ),
        (
            single("Max", vector(UINT32), {"y": (UINT32, [3])}, {"one": np.uint32(1)}),
            np.array([2**32 - 1, 5, 0], np.uint32), "uint32 in 32 bits",
        ),
        (
            single("Abs", vector(UINT64), {"y": (UINT64, [3])}),
            np.array([2**63, 5, 0], np.uint64), "uint64 in 32 bits",
        ),
        (single("Sqrt", vector(DOUBLE), {"y": (DOUBLE, [3])}), np.array([2.0, 3, 5]), "double as float"),
        (
            single("Div", vector(INT32), {"y": (INT32, [3])}, {"seven": np.int32(7)}),
            np.array([2**31 - 1, 2**31 - 8, 7], np.int32), "Div of integers as floats",
        ),
        *(
            (
                single(operator, vector(INT32), {"y": (INT32, [1])}),
                np.array([2**24 + 1] * 3, np.int32), f"{operator} of integers as floats",
            )
            for operator in ("ReduceMax", "ReduceMin")
        ),
        (
            single("ReduceSum", vector(INT32), {"y": (INT32, [1])}, {"axes": np.array([0])}),
            np.array([2**24 + 1, 2, 2], np.int32), "ReduceSum of integers as floats",
        ),
        (
            single("Add", vector(INT8), {"y": (INT8, [3])}, {"one": np.int8(100)}),
            np.array([100, -100, 0], np.int8), "does not wrap integers of 8 and 16 bits around",
        ),
    ],
)  # fmt: skip
def test_arithmetic_that_openvino_narrows_is_refused(harness, model, x, reason):
    (said,) = explained(harness, model).values()

    assert reason in said
    np.testing.assert_array_equal(
        harness.run(model, {"x": x})[0], expected(model, {"x": x})[0]
    )
    assert not np.array_equal(
        computed_by_openvino(model, {"x": x})[0], expected(model, {"x": x})[0]
    )


def test_indices_and_shapes_are_openvinos_though_they_are_int64(harness):
    """A lookup of tokens, joined, and split by the length that they have."""
    model = model_of(
        [
            helper.make_node("Gather", ["table", "tokens"], ["words"]),
            helper.make_node("Shape", ["words"], ["shape"]),
            helper.make_node("Gather", ["shape", "first"], ["rows"]),
            helper.make_node("Mul", ["rows", "two"], ["parts"]),
            helper.make_node("Concat", ["parts", "rest"], ["target"], axis=0),
            helper.make_node("Reshape", ["words", "target"], ["y"]),
        ],
        {"tokens": (INT64, ["n"])},
        {"y": (FLOAT, None)},
        {
            "table": np.arange(40, dtype=np.float32).reshape(10, 4),
            "first": np.array([0]), "two": np.array([2]), "rest": np.array([-1]),
        },
    )  # fmt: skip

    assert set(explained(harness, model).values()) == {""}
    tokens = np.array([3, 1, 9])
    np.testing.assert_array_equal(
        harness.run(model, {"tokens": tokens})[0],
        expected(model, {"tokens": tokens})[0],
    )


@pytest.mark.parametrize("to", [FLOAT, INT32, INT8, UINT8, TensorProto.BOOL])
def test_a_cast_reads_all_bits_of_an_input(harness, to):
    """So the mask of a transformer, int64 and cast first of all, does not cut the
    network.
    """
    model = model_of(
        [
            helper.make_node("Cast", ["x"], ["c"], to=to),
            helper.make_node("Identity", ["c"], ["y"]),
        ],
        vector(INT64),
        {"y": (to, [3])},
    )
    x = np.array([2**40, -(2**33) - 7, 0], np.int64)

    assert set(explained(harness, model).values()) == {""}
    np.testing.assert_array_equal(
        harness.run(model, {"x": x})[0], expected(model, {"x": x})[0]
    )


def test_the_least_int32_is_true(harness):
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=TensorProto.BOOL),
        helper.make_node("Not", ["c"], ["y"]),
    ]
    model = model_of(nodes, vector(INT32), {"y": (TensorProto.BOOL, [3])})
    x = np.array([-(2**31), 0, 7], np.int32)

    assert set(explained(harness, model).values()) == {""}
    assert harness.run(model, {"x": x})[0].tolist() == [False, True, False]


def test_a_mask_of_booleans_may_be_counted(harness):
    model = model_of(
        [
            helper.make_node("Cast", ["mask"], ["numbers"], to=INT64),
            helper.make_node("CumSum", ["numbers", "axis"], ["positions"]),
            helper.make_node("Gather", ["table", "positions"], ["y"]),
        ],
        {"mask": (TensorProto.BOOL, ["n"])},
        {"y": (FLOAT, ["n", 4])},
        {"table": np.arange(40, dtype=np.float32).reshape(10, 4), "axis": np.int64(0)},
    )

    assert set(explained(harness, model).values()) == {""}


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            model_of(
                [helper.make_node("Tile", ["x", "repeats"], ["y"])],
                {"x": (FLOAT, [2, 2]), "repeats": (INT64, [2])},
                {"y": (FLOAT, ["a", "b"])},
            ),
            "OpenVINO needs the input 1 of Tile as a constant",
        ),
        (
            model_of(
                [helper.make_node("TopK", ["x", "k"], ["values", "indices"])],
                {"x": (FLOAT, [4])},
                {"indices": (INT64, [2])},
                {"k": np.array([2])},
            ),
            "of equal elements, OpenVINO's TopK does not give the lowest index",
        ),
        *(
            (
                single(operator, {"x": (FLOAT, [4]), "shape": (INT64, ["rank"])}, {"y": (FLOAT, ["n"])}),
                "OpenVINO needs to know how long the shape is",
            )
            for operator in ("Expand", "Reshape")
        ),
        (
            single("Attention", {name: (FLOAT, [1, 1, 4, 8]) for name in "qkv"}, {"y": (FLOAT, [1, 1, 4, 8])},
                   opset=25, is_causal=1, left_window_size=1),
            "OpenVINO ignores the window of an Attention",
        ),
        (
            single("Resize", {"x": (FLOAT, [1, 1, 4, 4])}, {"y": (FLOAT, [1, 1, 2, 2])},
                   {"roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 0.5, 0.5], np.float32)},
                   mode="linear", antialias=1),
            "OpenVINO ignores antialias, exclude_outside and keep_aspect_ratio_policy",
        ),
        (
            single("MaxPool", {"x": (FLOAT, [1, 1, 2, 2])}, {"y": (FLOAT, [1, 1, 1, 1])},
                   kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1),
            "OpenVINO's pooling counts a window behind the end of the input",
        ),
        (
            single("Scaler", {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}, domain="ai.onnx.ml"),
            "OpenVINO's frontend does not convert it",
        ),
    ],
)  # fmt: skip
def test_what_differs_otherwise_is_refused_by_its_reason(harness, model, reason):
    assert explained(harness, model).popitem()[1] == reason


def test_control_flow_stays_with_the_session_and_its_subgraphs_are_openvinos(harness):
    branches = {
        f"{side}_branch": helper.make_graph(
            [helper.make_node(op, ["x"], [side])],
            side,
            [],
            [helper.make_tensor_value_info(side, FLOAT, [2])],
        )
        for side, op in (("then", "Relu"), ("else", "Neg"))
    }
    model = model_of(
        [helper.make_node("If", ["which"], ["y"], **branches)],
        {"which": (TensorProto.BOOL, []), "x": (FLOAT, [2])},
        {"y": (FLOAT, [2])},
    )
    x = np.array([-1, 2], np.float32)

    assert explained(harness, model) == {"If": "", "Relu": "", "Neg": ""}
    for which in (True, False):
        inputs = {"which": np.array(which), "x": x}
        np.testing.assert_array_equal(
            harness.run(model, inputs)[0], expected(model, inputs)[0]
        )


def test_what_a_loop_carries_on_or_makes_stays_with_the_session_where_its_rank_is_only_declared(
    harness,
):
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["more"], ["still"]),
            helper.make_node("Add", ["sum", "x"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, [2]),
        ],
    )
    model = model_of(
        [
            helper.make_node("Loop", ["times", "", "x"], ["summed"], body=body),
            helper.make_node("Neg", ["summed"], ["y"]),
        ],
        {"times": (INT64, []), "x": (FLOAT, [2])},
        {"y": (FLOAT, [2])},
    )
    summed = helper.make_tensor_value_info("summed", FLOAT, [2])
    declared = onnx.ModelProto.FromString(model)
    declared.graph.value_info.append(summed)
    inputs = {"times": np.array(3), "x": np.array([1, 2], np.float32)}

    assert harness.run(declared.SerializeToString(), inputs)[0].tolist() == [-4, -8]


def test_what_reads_a_custom_operator_stays_with_the_session_where_its_rank_is_only_declared(
    harness,
):
    model = onnx.ModelProto.FromString(
        model_of(
            [
                helper.make_node(
                    "NegPos", ["x"], ["negative", "positive"], domain="ai.onnx.contrib"
                ),
                helper.make_node("Sqrt", ["positive"], ["root"]),
                helper.make_node("Reshape", ["root", "shape"], ["column"]),
                helper.make_node("Neg", ["column"], ["y"]),
            ],
            {"x": (FLOAT, [4])},
            {"root": (FLOAT, [4]), "y": (FLOAT, [4, 1])},
            {"shape": np.array([4, 1])},
        )
    )
    model.opset_import.add(domain="ai.onnx.contrib", version=1)
    model.graph.value_info.append(helper.make_tensor_value_info("positive", FLOAT, [4]))
    options = harness.session_options()
    options.register_custom_ops_library(LIBRARY)
    data, x = model.SerializeToString(), np.array([4, -4, 9, -9], np.float32)

    with epctx.InferenceSession(data, options, registry=harness.registry) as session:
        found = session.run(None, {"x": x})

    assert [each.tolist() for each in found] == [[2, 0, 3, 0], [[-2], [0], [-3], [0]]]
    reasons = explained(harness, data)
    assert reasons["Sqrt"].startswith("OpenVINO needs the rank of each value")
    assert reasons["Reshape"].startswith("OpenVINO needs the rank of each value")
    assert reasons["Neg"] == ""


BINARY = ("Add", "Sub", "Mul", "Max", "Min", "BitwiseAnd", "BitwiseXor")
UNARY = ("Abs", "Identity", "Transpose", "Sign")
SIGNED = ("Neg", "Relu")


@st.composite
def integer_graphs(draw):
    """Return a model of a few operators on integers of one type, and its inputs."""
    dtype = np.dtype(
        draw(st.sampled_from(["int32", "int64", "uint32", "int16", "int8", "uint8"]))
    )
    limits, kind = np.iinfo(dtype), helper.np_dtype_to_tensor_dtype(dtype)
    numbers = st.integers(int(limits.min), int(limits.max))
    arrays = [
        np.array(draw(st.lists(numbers, min_size=4, max_size=4)), dtype).reshape(2, 2)
        for _ in range(3)
    ]
    names, nodes = ["x", "z", "c"], []
    for i in range(draw(st.integers(1, 5))):
        op_type = draw(
            st.sampled_from(BINARY + UNARY + (SIGNED if dtype.kind == "i" else ()))
        )
        operands = (
            [names[-1]]
            if op_type in UNARY + SIGNED
            else [draw(st.sampled_from(names)), names[-1]]
        )
        nodes.append(helper.make_node(op_type, operands, [f"v{i}"]))
        names.append(f"v{i}")
    value = (kind, [2, 2])
    model = model_of(
        nodes, {"x": value, "z": value}, {names[-1]: value}, {"c": arrays[2]}
    )
    return model, {"x": arrays[0], "z": arrays[1]}


@settings(max_examples=60, deadline=None)
@given(integer_graphs())
def test_graphs_of_integers_give_the_cpu_eps_results(example):
    from epctx_openvino import OpenVINOExecutionProvider
    from support.contract_eps import Harness

    model, inputs = example

    results = Harness(provider=OpenVINOExecutionProvider).run(model, inputs)

    np.testing.assert_array_equal(results[0], expected(model, inputs)[0])
