"""Operators that `onnx.reference` lacks or computes wrongly: without onnxruntime they
give what onnxruntime gives.
"""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from support.models_for_engines import WITHOUT_ONNXRUNTIME

PROGRAM = (
    WITHOUT_ONNXRUNTIME
    + """
import pickle
import epctx_core as epctx
cases = pickle.load(sys.stdin.buffer)
answers = {name: epctx.InferenceSession(model).run(None, feeds) for name, (model, feeds) in cases.items()}
sys.stdout.buffer.write(pickle.dumps(answers))
"""
)


def written(text, opset=17, ml=3):
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}, "ai.onnx.ml": {ml}]> {text}'
    )


def drawn(*shape):
    return np.random.default_rng(3).standard_normal(shape, np.float32)


BATCH = [drawn(2, 3, 4), drawn(3), drawn(3), drawn(3), drawn(3) ** 2]
BATCH_NORMALIZATION = """
    g (float[2,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3,4] y) {
        y = BatchNormalization(x, s, b, m, v)
    }"""
CASES = {
    "an empty batch flattened": (
        "g (float[0,3,4] x) => (float[0,12] y) { y = Flatten(x) }",
        {},
        [drawn(0, 3, 4)],
    ),
    "a tensor flattened from its end": (
        "g (float[2,3,4] x) => (float[6,4] y) { y = Flatten<axis = -1>(x) }",
        {},
        [drawn(2, 3, 4)],
    ),
    "a tensor flattened to one row": (
        "g (float[2,3] x) => (float[1,6] y) { y = Flatten<axis = 0>(x) }",
        {},
        [drawn(2, 3)],
    ),
    "the largest of each row": (
        "g (float[2,3,4] x) => (float[2,3,1] y) { y = GlobalMaxPool(x) }",
        {},
        [drawn(2, 3, 4)],
    ),
    "the largest of each volume": (
        "g (float[2,3,4,3,2] x) => (float[2,3,1,1,1] y) { y = GlobalMaxPool(x) }",
        {},
        [drawn(2, 3, 4, 3, 2)],
    ),
    "vectors put together": (
        """g (int64[3] x, int64[2] z) => (float[1,5] y) {
            y = ai.onnx.ml.FeatureVectorizer<inputdimensions = [2, 3]>(x, z)
        }""",
        {},
        [np.arange(1, 4), np.arange(4, 6)],
    ),
    "rows of several dimensions put together": (
        """g (float[2,2,2] x, float[2,3] z) => (float[2,8] y) {
            y = ai.onnx.ml.FeatureVectorizer<inputdimensions = [3, 5]>(x, z)
        }""",
        {},
        [drawn(2, 2, 2), drawn(2, 3)],
    ),
    "a loop whose carried values are called as outside": (
        """g (float[3] s, int64 n) => (float[3] y) {
            c = Constant<value = bool {1}>()
            y = Loop(n, c, s)<body = b (int64 i, bool k, float[3] s) => (bool k2, float[3] t) {
                k2 = Identity(k)
                t = Add(s, s)
            }>
        }""",
        {"opset": 17},
        [drawn(3), np.array(3)],
    ),
    "a loop without a condition that gives each step": (
        """g (float[3] x, int64 n) => (float[3] y, float[m,3] steps) {
            y, steps = Loop(n, , x)<body = b (int64 i, bool k, float[3] s) => (bool k2, float[3] t, float[3] u) {
                k2 = Identity(k)
                t = Add(s, s)
                u = Identity(t)
            }>
        }""",
        {"opset": 17},
        [drawn(3), np.array(4)],
    ),
    "a loop that takes no step": (
        """g (float[3] x, int64 n) => (float[3] y, float[m,3] steps) {
            y, steps = Loop(n, , x)<body = b (int64 i, bool k, float[3] s) => (bool k2, float[3] t, float[3] u) {
                k2 = Identity(k)
                t = Add(s, s)
                u = Identity(t)
            }>
        }""",
        {"opset": 17},
        [drawn(3), np.array(0)],
    ),
    "a scan backwards over columns": (
        """g (float[3] x, float[3,4] z) => (float[3] y, float[3,4] steps) {
            y, steps = Scan<
                num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                scan_output_axes = [1], scan_output_directions = [1],
                body = b (float[3] s, float[3] e) => (float[3] t, float[3] u) {
                    t = Add(s, e)
                    u = Identity(t)
                }
            >(x, z)
        }""",
        {"opset": 17},
        [drawn(3), drawn(3, 4)],
    ),
    "a scan of version 8 over a batch": (
        """g (int64[2] n, float[2,3] x, float[2,4,3] z) => (float[2,3] y, float[2,4,3] steps) {
            y, steps = Scan<
                num_scan_inputs = 1, directions = [1],
                body = b (float[3] s, float[3] e) => (float[3] t, float[3] u) {
                    t = Add(s, e)
                    u = Identity(t)
                }
            >(n, x, z)
        }""",
        {"opset": 8},
        [np.array([4, 2]), drawn(2, 3), drawn(2, 4, 3)],
    ),
    "a scan of version 8 without lengths": (
        """g (float[2] x, float[2,4] z) => (float[2] y) {
            y = Scan<num_scan_inputs = 1, body = b (float s, float e) => (float t) { t = Add(s, e) }>("", x, z)
        }""",
        {"opset": 8},
        [drawn(2), drawn(2, 4)],
    ),
    "BatchNormalization of version 7": (BATCH_NORMALIZATION, {"opset": 8}, BATCH),
    "BatchNormalization of version 9": (BATCH_NORMALIZATION, {"opset": 12}, BATCH),
    "DequantizeLinear of version 13": (
        """g (int8[2,3] q, float[3] s, int8[3] z) => (float[2,3] y) { y = DequantizeLinear<axis = 1>(q, s, z) }""",
        {"opset": 13},
        [
            np.arange(6, dtype=np.int8).reshape(2, 3),
            drawn(3) ** 2,
            np.array([1, 0, -3], np.int8),
        ],
    ),
    "Scatter": (
        """g (float[2,3] x, int64[1,3] i, float[1,3] u) => (float[2,3] y) { y = Scatter<axis = 0>(x, i, u) }""",
        {"opset": 9},
        [drawn(2, 3), np.array([[1, 0, 1]]), drawn(1, 3)],
    ),
    "a value put into an optional and taken out": (
        """g (float[2,3] x) => (float[2,3] y, bool h) {
            o = Optional(x)
            y = OptionalGetElement(o)
            h = OptionalHasElement(o)
        }""",
        {"opset": 18},
        [drawn(2, 3)],
    ),
    "CategoryMapper": (
        """g (string[3] x) => (int64[3] y) {
            y = ai.onnx.ml.CategoryMapper<cats_int64s = [4, 5], cats_strings = ["a", "b"], default_int64 = 9>(x)
        }""",
        {"opset": 17, "ml": 1},
        [np.array(["b", "a", "c"], object)],
    ),
    "probabilities of three classes of an SVMClassifier": (
        """g (float[4,2] x) => (int64[4] label, float[4,3] y) {
            label, y = ai.onnx.ml.SVMClassifier<
                classlabels_ints = [0, 1, 2], coefficients = [1.0, -0.5, -1.0, 0.5, 0.75, -0.25],
                kernel_params = [0.5, 0.0, 3.0], kernel_type = "RBF", post_transform = "NONE",
                prob_a = [-2.0, -3.0, -4.0], prob_b = [0.1, 0.6, -0.4], rho = [0.1, 0.3, -0.2],
                support_vectors = [1.0, 0.5, -1.0, 0.25, 0.0, -0.5], vectors_per_class = [1, 1, 1]
            >(x)
        }""",
        {"opset": 17, "ml": 1},
        [drawn(4, 2)],
    ),
    "strings of a LabelEncoder": (
        """g (int64[3] x) => (string[3] y) {
            y = ai.onnx.ml.LabelEncoder<keys_int64s = [4, 5], values_strings = ["a", "long"]>(x)
        }""",
        {"opset": 17, "ml": 2},
        [np.array([5, 4, 5])],
    ),
}
MAPPINGS = {
    "ZipMap": (
        [
            onnx.helper.make_node(
                "ZipMap",
                ["x"],
                ["y"],
                domain="ai.onnx.ml",
                classlabels_strings=["a", "b"],
            )
        ],
        onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [3, 2]),
        onnx.helper.make_sequence_type_proto(
            onnx.helper.make_map_type_proto(
                onnx.TensorProto.STRING,
                onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, []),
            )
        ),
        drawn(3, 2),
    ),
    "DictVectorizer": (
        [
            onnx.helper.make_node(
                "DictVectorizer",
                ["x"],
                ["y"],
                domain="ai.onnx.ml",
                string_vocabulary=["a", "b", "c"],
            )
        ],
        onnx.helper.make_map_type_proto(
            onnx.TensorProto.STRING,
            onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, []),
        ),
        onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [1, 3]),
        {"c": 2.5, "a": 1.5},
    ),
    "CastMap": (
        [
            onnx.helper.make_node(
                "CastMap",
                ["x"],
                ["y"],
                domain="ai.onnx.ml",
                map_form="SPARSE",
                max_map=4,
            )
        ],
        onnx.helper.make_map_type_proto(
            onnx.TensorProto.INT64,
            onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, []),
        ),
        onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [1, 4]),
        {2: 2.5, 0: 1.5},
    ),
}

# onnxruntime has the operator for these, and takes none from Python.
WHOLE_NUMBERS = (
    [
        onnx.helper.make_node(
            "DictVectorizer",
            ["x"],
            ["y"],
            domain="ai.onnx.ml",
            string_vocabulary=["a", "b"],
        )
    ],
    onnx.helper.make_map_type_proto(
        onnx.TensorProto.STRING,
        onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT64, []),
    ),
    onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT64, [1, 2]),
    {"b": np.int64(2**40 + 1)},
)


def made_cases():
    for name, (text, versions, arrays) in CASES.items():
        model = written(text, **versions)
        feeds = dict(
            zip([value.name for value in model.graph.input], arrays, strict=True)
        )
        yield name, (model.SerializeToString(), feeds)
    for name, (nodes, taken, given, x) in {
        **MAPPINGS,
        "whole numbers": WHOLE_NUMBERS,
    }.items():
        graph = onnx.helper.make_graph(
            nodes,
            "g",
            [onnx.helper.make_value_info("x", taken)],
            [onnx.helper.make_value_info("y", given)],
        )
        imports = [
            onnx.helper.make_opsetid("", 17),
            onnx.helper.make_opsetid("ai.onnx.ml", 1),
        ]
        model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
        yield name, (model.SerializeToString(), {"x": x})


MADE = dict(made_cases())


@pytest.fixture(scope="module")
def answers():
    """Results of sessions where onnxruntime is not installed."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command,
        input=pickle.dumps(MADE),
        check=True,
        stdout=subprocess.PIPE,
        timeout=120,
    )
    return pickle.loads(done.stdout)  # noqa: S301 - our own child


def test_a_dict_vectorizer_keeps_whole_numbers_of_numpy(answers):
    (found,) = answers["whole numbers"]

    assert found.dtype == np.int64
    assert found.tolist() == [[0, 2**40 + 1]]


@pytest.mark.parametrize("name", [name for name in MADE if name != "whole numbers"])
def test_the_reference_gives_what_onnxruntime_gives(answers, name):
    model, feeds = MADE[name]
    # onnxruntime finds these in steps and stops when they hardly change.
    tolerance = 5e-3 if "probabilities" in name else 1e-5

    wanted = onnxruntime.InferenceSession(model).run(None, feeds)

    assert len(answers[name]) == len(wanted)
    for found, expected in zip(answers[name], wanted, strict=True):
        if isinstance(expected, np.ndarray):
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if isinstance(expected, np.ndarray) and expected.dtype != object:
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
        else:
            assert list(found) == list(expected)
