"""Cases with an open first dimension: what is opened, how many rows are run, and what
is expected of them.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from conformance.open_dimension import open_cases
from conformance.routes import Route, run_case
from epctx_conformance.cases.case import Case, Data
from epctx_conformance.cases.onnx_cases import load_cases
from onnx.backend.base import Backend, BackendRep

from epctx_core.errors import InvalidGraph, PluginError, RuntimeException


def case_of(text, inputs, outputs):
    """A case of one model in ONNX's text syntax."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    return Case(
        name="test",
        model=model.SerializeToString,
        data=lambda: [Data(inputs=inputs, outputs=outputs)],
    )


def opened(case):
    """The model of the case with an open dimension, and its data."""
    (found,) = open_cases({"test": case}).values()
    return onnx.load_from_string(found.model()), found.data()


def shapes_of(values):
    return [
        tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
        for value in values
    ]


X = np.arange(6, dtype=np.float32).reshape(3, 2)
SUM = case_of(
    (
        "g (float[3,2] x, float[3,1] y, float[2] z) => (float[3,2] s) { t = Add(x, y) "
        "s = Add(t, z) }"
    ),
    {"x": X, "y": X[:, :1], "z": X[0]},
    [X + X[:, :1] + X[0]],
)


def test_all_inputs_with_as_many_rows_as_the_first_are_opened_and_what_follows_from_them():
    model, _ = opened(SUM)

    assert shapes_of(model.graph.input) == [("rows", 2), ("rows", 1), (2,)]
    assert shapes_of(model.graph.output) == [("rows", 2)]


def test_a_case_is_run_with_its_own_rows_one_and_none():
    own, one, none = opened(SUM)[1]

    np.testing.assert_array_equal(own.outputs[0], SUM.data()[0].outputs[0])
    np.testing.assert_array_equal(one.outputs[0], own.outputs[0][:1])
    assert [x.shape for x in (none.inputs["x"], none.inputs["z"], none.outputs[0])] == [
        (0, 2),
        (2,),
        (0, 2),
    ]
    assert [own.may_refuse, one.may_refuse, none.may_refuse] == [False, False, False]


def test_where_rows_are_not_a_batch_onnxruntime_says_what_comes_of_one():
    total = case_of(
        "g (float[3,2] x) => (float[1,2] y) { y = ReduceSum<keepdims=1>(x) }",
        {"x": X},
        [X.sum(keepdims=True)],
    )

    _, (_, one, _) = opened(total)

    assert one.outputs[0] == X[:1].sum()


def test_what_every_engine_refuses_may_be_refused_and_nothing_is_expected_of_it():
    fixed = case_of(
        (
            "g (float[3,2] x) => (float[2,3] y) { s = Constant<value = int64[2] "
            "{2,3}>() y = Reshape(x, s) }"
        ),
        {"x": X},
        [X.reshape(2, 3)],
    )

    _, (own, one, _) = opened(fixed)

    assert not own.may_refuse
    assert one.may_refuse
    assert one.outputs == []


def test_what_onnxruntime_alone_refuses_may_be_refused_and_is_compared_where_it_is_not():
    affine = load_cases()["test_affine_grid_2d"]

    _, (own, one, _) = opened(affine)

    assert one.may_refuse
    assert one.outputs[0].shape == (1, *own.outputs[0].shape[1:])


def test_a_number_of_rows_with_which_an_engine_contradicts_the_model_is_left_out():
    degenerate = load_cases()[
        "test_causal_conv_with_state_b1_c1_degenerate"
    ]  # its weights have one row, too

    assert len(opened(degenerate)[1]) == 1


def test_a_model_that_is_not_valid_with_an_open_dimension_is_no_case():
    scalar = case_of(
        "g (float x) => (float y) { y = Neg(x) }", {"x": X[0, 0]}, [-X[0, 0]]
    )
    text = """g (float[3] x, float[2] c) => (float[3] y) {
        z = Concat<axis = 0>(x, c)
        w = Constant<value = float[5] {1,2,3,4,5}>()
        y = Gemm(z, w)
    }"""
    fixed = case_of(text, {"x": X[:, 0], "c": X[0]}, [])

    assert open_cases({"test": scalar}) == {}
    assert open_cases({"test": fixed}) == {}


def test_most_cases_of_onnx_can_be_opened():
    assert len(open_cases(load_cases())) > 1_700


class Refusing(Backend):
    """Fails in a run as a test says."""

    error: Exception

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        rep = BackendRep()
        rep.run = cls.fail
        return rep

    @classmethod
    def fail(cls, _inputs):
        raise cls.error


@pytest.mark.parametrize(
    ("error", "may_refuse", "outcome"),
    [
        (RuntimeException("x"), True, "passed"),
        (RuntimeException("x"), False, "refused"),
        (PluginError("x"), True, "refused"),
        (InvalidGraph("x"), True, "refused"),
        (KeyError("x"), True, "raised"),
    ],
)
def test_only_an_error_that_says_no_is_as_good_as_a_result(error, may_refuse, outcome):
    case = Case(
        name="a",
        model=bytes,
        data=lambda: [Data(inputs={}, outputs=[], may_refuse=may_refuse)],
    )
    route = Route(
        eps="a",
        through="direct",
        backend=type("Failing", (Refusing,), {"error": error}),
    )

    assert run_case(case, route).outcome == outcome
