"""Models as host plugins leave them, with functions of their own."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper
from support.routes import with_transformers
from support.small_models import chain, saved

import epctx_core as epctx


@pytest.fixture
def negations(tmp_path):
    return saved(chain(["Neg", "Neg", "Relu", "Add"]), tmp_path / "m.onnx")


def test_functions_that_a_host_plugin_adds_are_inlined_as_those_of_a_file(
    negations, tmp_path
):
    def with_a_function(model, _weights, _level):
        opsets = [helper.make_opsetid("", model.opset_import[0].version)]
        body = [
            helper.make_node("Abs", ["p"], ["r"]),
            helper.make_node("Neg", ["r"], ["q"]),
        ]
        model.functions.append(
            helper.make_function("acme", "F", ["p"], ["q"], body, opsets)
        )
        model.opset_import.add(domain="acme", version=1)
        model.graph.node[0].op_type, model.graph.node[0].domain = "F", "acme"
        return model

    options = with_transformers(with_a_function)
    explained = epctx.explain_model(negations, options)

    assert [node.operator for node in explained.nodes] == [
        "Abs",
        "Neg",
        "Neg",
        "Relu",
        "Add",
    ]
    output = (
        epctx.ModelCompiler(options, negations)
        .compile_to_file(tmp_path / "m_ctx.onnx")
        .output
    )
    assert not onnx.load(output).functions
