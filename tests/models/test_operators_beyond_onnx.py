"""Operators that onnxruntime has in ONNX's own domain, and onnx does not.

Its optimiser for transformers writes SimplifiedLayerNormalization for each RMSNorm, and
LayerNormalization below version 17.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime
import pytest
from models.test_loose_models import EPS, node, saved
from onnx import TensorProto, helper, numpy_helper
from support.models_for_engines import on_the_reference
from support.taker import (
    Taker,
    assert_same,
    compile_with,
    expected,
    registry_with,
    through_everything,
)

import epctx_core as epctx

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
FEEDS = {"x": np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)}


def info(name, shape=(3, 4), elem_type=FLOAT):
    return helper.make_tensor_value_info(name, elem_type, shape)


def normalised(op_type, given, result):
    return node(op_type, f"{given} w", result, axis=-1, epsilon=1e-5, name="norm")


def model(nodes, opset, *, values=(), functions=(), inputs=()):
    scale = numpy_helper.from_array(np.arange(1, 5, dtype=np.float32), "w")
    graph = helper.make_graph(
        nodes, "g", [info("x"), *inputs], [info("y")], [scale], value_info=values
    )
    domains = {"": opset, **{function.domain: 1 for function in functions}}
    imports = [helper.make_opsetid(*each) for each in domains.items()]
    return helper.make_model(
        graph, opset_imports=imports, functions=functions, ir_version=8
    )


def around(op_type, opset, **parts):
    """Return a model in which EPs take what is around the operator."""
    nodes = [
        node("Relu", "x", "a"),
        normalised(op_type, "a", "n"),
        node("Neg", "n", "h"),
        node("Exp", "h", "y"),
    ]
    return model(nodes, opset, **parts)


def in_a_branch():
    branches = {
        f"{name}_branch": helper.make_graph(
            [normalised("SimplifiedLayerNormalization", "a", name)],
            name,
            [],
            [helper.make_tensor_value_info(name, FLOAT, None)],
        )
        for name in ("then", "else")
    }
    truth = helper.make_tensor("", BOOL, [], [True])
    nodes = [
        node("Constant", "", "c", value=truth),
        node("Relu", "x", "a"),
        node("If", "c", "h", **branches),
        node("Neg", "h", "y"),
    ]
    return model(nodes, 17)


def in_a_function(*, inlined=False):
    """Return a model of one function; onnxruntime 1.32 ends the process over it, and
    runs the same model `inlined`.
    """
    if inlined:
        norm = normalised("SimplifiedLayerNormalization", "a", "h")
        return model([node("Relu", "x", "a"), norm, node("Neg", "h", "y")], 17)
    opsets = [helper.make_opsetid("", 17)]
    body = [normalised("SimplifiedLayerNormalization", "p", "q")]
    function = helper.make_function("acme", "Norm", ["p", "w"], ["q"], body, opsets)
    nodes = [
        node("Relu", "x", "a"),
        helper.make_node("Norm", ["a", "w"], ["h"], domain="acme"),
        node("Neg", "h", "y"),
    ]
    return model(nodes, 17, functions=[function])


MODELS = {
    "RMSNorm": around("SimplifiedLayerNormalization", 17),
    "RMSNorm, its result declared": around(
        "SimplifiedLayerNormalization", 17, values=[info("n")]
    ),
    "LayerNormalization before ONNX had it": around("LayerNormalization", 13),
    "in a branch": in_a_branch(),
    "in a function": in_a_function(),
}
TRUE = {**MODELS, "in a function": in_a_function(inlined=True)}
"""Models for onnxruntime."""


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("kind", MODELS)
def test_what_onnxruntime_runs_runs_on_every_way(tmp_path, kind, ep):
    outcome = through_everything(
        saved(MODELS[kind], tmp_path / "source"),
        FEEDS,
        tmp_path / "out",
        ep=ep,
        embedded=ep is Taker,
    )

    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, expected(TRUE[kind], FEEDS))
    assert outcome.taken or ep not in {Taker, EPS[0]}


def with_open_result(made):
    made = onnx.ModelProto.FromString(made.SerializeToString())
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made.SerializeToString()


@pytest.mark.parametrize("kind", MODELS)
def test_the_engine_gives_types_behind_them_and_what_is_compiled_verifies(
    tmp_path, kind
):
    source = MODELS[kind].SerializeToString()

    report = compile_with(Taker, source, tmp_path / "m_ctx.onnx")

    # A boundary without a type would have been refused.
    assert report.partitions[-1].outputs == ("y",)
    with epctx.InferenceSession(with_open_result(MODELS[kind])) as session:
        (told,) = session.get_outputs()
    (truth,) = onnxruntime.InferenceSession(with_open_result(TRUE[kind])).get_outputs()
    assert told.shape == truth.shape
    registry = registry_with(Taker)
    assert epctx.verify_model(tmp_path / "m_ctx.onnx", registry=registry).ok


def test_the_engine_of_onnx_has_none_and_the_error_names_the_package_that_may():
    source = MODELS["RMSNorm"].SerializeToString()

    with pytest.raises(
        epctx.NotImplementedByProvider,
        match=r"ai\.onnx::SimplifiedLayerNormalization, which neither version 17",
    ) as caught:
        epctx.InferenceSession(source, on_the_reference())

    assert re.search(r"pip install .*(-core\[ort\]|-onnxruntime)", caught.value.hint)


def test_an_operator_that_nobody_has_is_refused_by_name():
    source = around("LayerNormalisation", 17).SerializeToString()

    with pytest.raises(
        epctx.InvalidGraph, match=r"ai\.onnx::LayerNormalisation, which neither"
    ):
        epctx.InferenceSession(source)
    assert not epctx.verify_model(source).ok


def test_an_operator_that_nobody_has_does_no_harm_in_a_function_that_nobody_calls():
    unused = in_a_function().functions[0]
    unused.name, unused.node[0].op_type = "Unused", "LayerNormalisation"
    made = around("SimplifiedLayerNormalization", 17, functions=[unused])

    with epctx.InferenceSession(made.SerializeToString()) as session:
        assert_same(session.run(None, FEEDS), expected(MODELS["RMSNorm"], FEEDS))


def test_what_else_is_wrong_with_such_a_model_is_still_found():
    wrong = around("SimplifiedLayerNormalization", 17)
    wrong.graph.node.append(onnx.NodeProto(op_type="Relu", input=["h"], output=["h"]))

    with pytest.raises(epctx.InvalidGraph, match="SSA"):
        epctx.InferenceSession(wrong.SerializeToString())
