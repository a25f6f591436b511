"""Lengths that a model declares are hints: onnxruntime warns and runs, and so does
every way through epctx.
"""

from __future__ import annotations

import logging
from typing import ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models.test_loose_models import EPS, FLOAT, X, body, model, node, saved
from onnx import TensorProto, helper
from support.taker import (
    Taker,
    assert_same,
    compile_with,
    run_with,
    through_everything,
)

import epctx_core as epctx
from epctx_core.plugin import CompiledPartition, hookimpl

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
LENGTHS = [3, 1, 7]


def declared(made, *, inputs=None, outputs=None, values=None):
    """Declare shapes by name; None takes a shape away."""
    result = onnx.ModelProto()
    result.CopyFrom(made)
    present = [*result.graph.input, *result.graph.output]
    for name, shape in {**(inputs or {}), **(outputs or {})}.items():
        value = next(v for v in present if v.name == name)
        value.CopyFrom(
            helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, shape)
        )
    for name, shape in (values or {}).items():
        result.graph.value_info.append(
            helper.make_tensor_value_info(name, FLOAT, shape)
        )
    return result


TWO = model([node("Relu", "x", "h"), node("Erf", "h", "i"), node("Add", "i i", "y")])
STATIC = {"inputs": {"x": [3, 4]}}
COUNTED = model(
    [
        node("Relu", "x", "h"),
        node("Compress", "h c", "i", axis=0),
        node("Add", "i i", "y"),
    ],
    inputs=[helper.make_tensor_value_info("c", BOOL, ["k"])],
)


def looping(state, row):
    """A Loop whose state grows, and whose body declares that it does not."""
    inner = helper.make_graph(
        [
            node("Relu", "s", "a"),
            node("Concat", "a a", "t", axis=0),
            node("Identity", "going", "on"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("going", BOOL, []),
            helper.make_tensor_value_info("s", FLOAT, state),
        ],
        [
            helper.make_tensor_value_info("on", BOOL, []),
            helper.make_tensor_value_info("t", FLOAT, row),
        ],
    )
    count = helper.make_tensor("", INT64, [], [2])
    return model(
        [
            node("Constant", "", "n", value=count),
            helper.make_node("Loop", ["n", "", "x"], ["h"], body=inner),
            node("Add", "h h", "y"),
        ]
    )


def choosing():
    return model(
        [
            node("Constant", "", "c", value=helper.make_tensor("", BOOL, [], [True])),
            node(
                "If",
                "c",
                "y",
                then_branch=body(
                    [node("Relu", "x", "a"), node("Add", "a a", "t")], "t"
                ),
                else_branch=body([node("Neg", "x", "e")], "e"),
            ),
        ]
    )


def with_false_body():
    made = choosing()
    for attribute in made.graph.node[1].attribute:
        if attribute.name == "then_branch":
            attribute.g.value_info.append(
                helper.make_tensor_value_info("a", FLOAT, [9, 4])
            )
            attribute.g.output[0].CopyFrom(
                helper.make_tensor_value_info("t", FLOAT, [9, 4])
            )
    return made


FALSE = {
    "minus one for what is open": declared(
        TWO, inputs={"x": [-1, 4]}, outputs={"y": [-1, 4]}, values={"h": [-1, 4]}
    ),
    "minus seven": declared(TWO, inputs={"x": [-7, 4]}, outputs={"y": [-7, 4]}),
    "minus one, and an output that is not open": declared(
        TWO, inputs={"x": [-1, 4]}, outputs={"y": [1, 4]}
    ),
    "one row of many": declared(TWO, outputs={"y": [1, 4]}),
    "an open input without a name": declared(
        TWO, inputs={"x": [None, 4]}, outputs={"y": [1, 4]}
    ),
    "an output that inference refutes": declared(TWO, **STATIC, outputs={"y": [5, 4]}),
    "another rank": declared(TWO, **STATIC, outputs={"y": [12]}),
    "another rank of an open input": declared(TWO, outputs={"y": [12]}),
    "an input of any rank": declared(TWO, inputs={"x": None}, outputs={"y": [5]}),
    "a value between": declared(TWO, values={"h": [5, 4]}),
    "a value that inference refutes": declared(
        TWO, **STATIC, values={"h": [5, 4], "i": [1]}
    ),
    "a state that grows": looping([3, 4], [3, 4]),
    "a body": with_false_body(),
}


def onnxruntime_gives(made, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(made.SerializeToString(), options).run(
        None, feeds
    )


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("kind", FALSE)
def test_a_false_declaration_gives_what_onnxruntime_gives_on_every_way(
    tmp_path, kind, ep
):
    expected = onnxruntime_gives(FALSE[kind], X)

    outcome = through_everything(
        saved(FALSE[kind], tmp_path / "source"),
        X,
        tmp_path / "out",
        ep=ep,
        embedded=ep is Taker,
    )

    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, expected)


@given(
    shapes=st.fixed_dictionaries(
        {}, optional=dict.fromkeys("hiy", st.none() | st.lists(st.sampled_from([-1, 1, 3, 4, "N", None]), max_size=3))
    ),
    given_shape=st.sampled_from([[3, 4], ["N", 4], [-1, 4], [None, None], None]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_whatever_is_declared_the_results_are_those_of_the_operators(
    shapes, given_shape
):
    outputs = {"y": shapes.pop("y")} if "y" in shapes else {}
    made = declared(TWO, inputs={"x": given_shape}, outputs=outputs, values=shapes)
    expected = run_with(Taker, TWO.SerializeToString(), X, providers=False)

    assert_same(run_with(Taker, made.SerializeToString(), X), expected)
    assert_same(run_with(Taker, made.SerializeToString(), X, providers=False), expected)


def test_what_inference_does_not_know_is_declared_to_eps_and_enforced_on_nobody(
    tmp_path, caplog
):
    """As in onnxruntime EPs may count on a declared length; whoever does is not blamed
    where it is false.
    """
    seen = []

    class Curious(Taker):
        name = "CuriousExecutionProvider"
        operators: ClassVar[frozenset[str]] = frozenset({"Compress"})

        @hookimpl
        def get_capability(self, graph):
            seen.append(graph.value("i").shape)
            return super().get_capability(graph)

    made = declared(COUNTED, **STATIC, outputs={"y": None}, values={"i": [3, 4]})
    feeds = {**X, "c": np.array([True, False, True])}
    expected = onnxruntime_gives(made, feeds)
    compile_with(Curious, saved(made, tmp_path / "source"), tmp_path / "m_ctx.onnx")

    for source in (made.SerializeToString(), tmp_path / "m_ctx.onnx"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "epctx"):
            assert_same(run_with(Curious, source, feeds), expected)
        assert seen[0] == (3, 4)
    assert "PluginError" not in caplog.text


def test_an_ep_that_fails_over_a_false_length_is_not_blamed():
    class Strict(Taker):
        name = "StrictExecutionProvider"
        operators: ClassVar[frozenset[str]] = frozenset({"Erf"})

        @hookimpl
        def compile(self, partitions):
            (partition,) = partitions
            (compiled,) = super().compile(partitions)
            (expected,) = partition.inputs

            def run(inputs, outputs=None):
                if inputs[0].shape != expected.shape:
                    raise ValueError("it was compiled for another shape")
                return compiled.run(inputs, outputs)

            return [CompiledPartition(run)]

    made = declared(
        model([node("Compress", "x c", "h", axis=0), node("Erf", "h", "y")],
              inputs=[helper.make_tensor_value_info("c", BOOL, ["k"])]),
        **STATIC, outputs={"y": None}, values={"h": [3, 4]},
    )  # fmt: skip

    with pytest.raises(
        epctx.RuntimeException,
        match=r"the model declares float\[3,4\] for the value 'h'",
    ) as caught:
        run_with(
            Strict, made.SerializeToString(), {**X, "c": np.array([True, False, True])}
        )

    assert caught.value.ep == Strict.name
    assert "value_info 'h'" in caught.value.hint


def test_a_compile_reports_what_is_declared_against_what_is_inferred(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "epctx"):
        report = compile_with(
            Taker,
            FALSE["a value that inference refutes"].SerializeToString(),
            tmp_path / "m_ctx.onnx",
        )

    said = "'h' is declared float[5,4] but is float[3,4]"
    assert said in report.contradictions
    assert said in report.as_dict()["contradictions"]
    assert said in caplog.text


def test_a_context_model_declares_what_is_proven_around_its_nodes(tmp_path):
    compile_with(
        Taker,
        FALSE["a value that inference refutes"].SerializeToString(),
        tmp_path / "m_ctx.onnx",
    )

    graph = onnx.load(tmp_path / "m_ctx.onnx").graph
    around = {
        n for c in graph.node if c.op_type == "EPContext" for n in (*c.input, *c.output)
    }
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in graph.value_info
    }
    assert {name: shape for name, shape in shapes.items() if name in around} == {
        "h": [3, 4],
        "i": [3, 4],
    }


class Liar(Taker):
    """Gives one row too few."""

    name = "LiarExecutionProvider"

    def _runnable(self, model):
        run = super()._runnable(model)
        return run and (
            lambda inputs, outputs=None: [r[:-1].copy() for r in run(inputs)]
        )


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("outputs", [{"y": [3, 4]}, {"y": [5, 4]}, {"y": None}])
def test_an_ep_that_gives_another_length_than_inference_is_refused_and_not_blamed(
    tmp_path, outputs, loaded
):
    source = declared(TWO, **STATIC, outputs=outputs).SerializeToString()
    if loaded:
        compile_with(Liar, source, tmp_path / "m_ctx.onnx")

    with pytest.raises(epctx.InvalidGraph, match=r"gave float32\[2, 4\]") as caught:
        run_with(Liar, tmp_path / "m_ctx.onnx" if loaded else source, X)

    assert caught.value.ep == Liar.name
    assert "epctx" in caught.value.hint or "compile it again" in caught.value.hint


def test_inspection_and_verification_read_negative_lengths_as_open(tmp_path):
    made = FALSE["minus one for what is open"]
    compile_with(Taker, made.SerializeToString(), tmp_path / "m_ctx.onnx")

    for source in (made.SerializeToString(), tmp_path / "m_ctx.onnx"):
        assert "-1" not in str(epctx.inspect_model(source).inputs)
        registry = epctx.Registry(entry_points=False)
        registry.register(Taker)
        assert epctx.verify_model(source, registry=registry).ok
        with epctx.InferenceSession(source, registry=registry) as session:
            (argument,) = session.get_inputs()
            assert argument.shape == [None, 4]
