"""Type inference: shapes that the model computes are followed, long vectors are not."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest
from onnx import parser

from epctx_core.graph import inference
from epctx_core.graph.inference import (
    LONGEST_SHAPE,
    PROPAGATING,
    infer_types,
    prove_wrong,
)
from epctx_core.graph.type_table import make_declared_types

pytestmark = pytest.mark.internal

HEADER = '<ir_version: 9, opset_import: ["": 17]>'
COMPUTED = "s = Shape(x)  t = Concat <axis = 0> (s, one)  y = Reshape(x, t)"


def inferred(graph):
    return infer_types(parser.parse_model(HEADER + graph))


def test_the_operators_that_compute_shapes_are_those_of_onnx():
    known = {
        s.name for s in onnx.defs.get_all_schemas() if s.has_data_propagation_function
    }

    assert known == PROPAGATING


def test_a_shape_that_the_model_computes_is_followed():
    types = inferred(f"g (float[3,4] x) => (y) <int64[1] one = {{1}}> {{ {COMPUTED} }}")

    assert types.get("y").shape == (3, 4, 1)


def test_a_shape_that_a_body_computes_is_followed():
    computed = "s = Shape(x)  y = Reshape(x, s)"

    types = inferred(
        f"g (bool c, float[3,4] x) => (y) {{ y = If (c) <then_branch = a () => (y) {{ "
        f"{computed} }}, else_branch = b () => (y) {{ {computed} }}> }}"
    )

    assert types.get("y").shape == (3, 4)


@pytest.mark.parametrize(
    "attribute",
    ['value_string = "x"', 'value_strings = ["x"]', "value_ints: ints = @r"],
)
def test_steps_of_a_slice_that_are_no_numbers_are_for_a_check_that_names_the_node(
    attribute,
):
    model = parser.parse_model(
        HEADER + "g (float[4] x) => (y) <int64[1] zero = {0}, int64[1] end = {4}> "
        "{ s = Constant <value_int = 1> () y = Slice (x, zero, end, zero, s) }"
    )
    maker = parser.parse_node(f"s = Constant <{attribute}> ()")
    model.graph.node[0].CopyFrom(maker)

    infer_types(model)  # no error
    assert "Slice" in prove_wrong(model)


@pytest.mark.parametrize("length", [LONGEST_SHAPE, LONGEST_SHAPE + 1])
def test_values_of_a_long_vector_are_not_followed_and_types_are_found_all_the_same(
    length, monkeypatch
):
    asked, real = [], onnx.shape_inference.infer_shapes
    monkeypatch.setattr(
        inference.onnx.shape_inference,
        "infer_shapes",
        lambda *given, **named: (
            asked.append(named["data_prop"]) or real(*given, **named)
        ),
    )

    types = inferred(
        f"g (float[1,{length}] x, int64[1] s) => (y) {{ v = Squeeze(x)  y = Add(v, v) "
        f"}}"
    )

    assert types.get("y").shape == (length,)
    assert asked == ([False, True] if length == LONGEST_SHAPE else [False])


def test_long_vectors_cost_no_memory_for_their_elements():
    script = (
        "import resource; from onnx import parser; from epctx_core.graph.inference "
        "import infer_types;chain = ' '.join(f'v{i + 1} = Add(v{i}, v{i})' for i in "
        f"range(20));model = parser.parse_model('{HEADER} g (float[1000000] v0) => "
        f"(v20) {{ ' + chain + ' }}');before = "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; infer_types(model);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )

    grown = int(subprocess.check_output([sys.executable, "-c", script], text=True))

    # In KiB; with the elements followed it would be above 1 GiB.
    assert grown < 64 * 1024


def test_a_declared_type_that_inference_refutes_is_not_proven_by_having_been_asked_for_before():
    graph = (
        "g (float[2,3] x) => (float[N,M] z) <float[9,9] y> { y = Relu(x) z = Neg(y) }"
    )
    model = parser.parse_model(HEADER + graph)
    types = make_declared_types(model, lambda: infer_types(model))

    assert types.get("y").shape == (9, 9)
    assert types.get("what nothing declares").shape is None
    assert types.get("y").shape == types.get_proven("y").shape == (2, 3)
