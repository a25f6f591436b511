"""Wrong graph transformations of host plugins: the plugin is blamed by its name, and
nothing is written.
"""

from __future__ import annotations

import sys

import onnx
import pytest
from onnx import TensorProto, helper
from support.changed_models import (
    circular,
    with_a_context_node,
    with_a_renamed_output,
)
from support.routes import refused, with_transformers
from support.small_models import finished, saved, tensor

import epctx_core as epctx
from epctx_core import InvalidArgument


def without_an_input(model, _weights, _level):
    del model.graph.input[1]
    model.graph.node[0].input[1] = "x"
    return model


def with_another_type(model, _weights, _level):
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return model


def with_a_context_node_in_a_function(model, _weights, _level):
    opsets = [helper.make_opsetid("com.microsoft", 1)]
    node = helper.make_node(
        "EPContext", ["p"], ["q"], domain="com.microsoft", source="QNN", main_context=1
    )
    model.functions.append(
        helper.make_function("acme", "F", ["p"], ["q"], [node], opsets)
    )
    model.opset_import.add(domain="acme", version=1)
    model.graph.node[-1].op_type, model.graph.node[-1].domain = "F", "acme"
    return model


def tensor_in_a_file(name):
    file = TensorProto(
        name=name,
        data_type=TensorProto.FLOAT,
        dims=[2, 3],
        data_location=TensorProto.EXTERNAL,
    )
    file.external_data.add(key="location", value="/etc/passwd")
    return file


def with_a_file(model, _weights, _level):
    model.graph.initializer.append(tensor_in_a_file("w"))
    model.graph.node[0].input[1] = "w"
    return model


def with_a_file_in_a_node(model, _weights, _level):
    constant = helper.make_node("Constant", [], ["c"], value=tensor_in_a_file("v"))
    model.graph.node.insert(0, constant)
    model.graph.node[1].input[1] = "c"
    return model


def with_a_file_in_a_function(model, _weights, _level):
    with_a_file_in_a_node(model, None, None)
    opsets = [helper.make_opsetid("", model.opset_import[0].version)]
    model.functions.append(
        helper.make_function("acme", "F", [], ["c"], [model.graph.node[0]], opsets)
    )
    model.opset_import.add(domain="acme", version=1)
    model.graph.node[0].CopyFrom(helper.make_node("F", [], ["c"], domain="acme"))
    return model


def with_too_short_a_weight(model, _weights, _level):
    short = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2, 3], raw_data=bytes(8)
    )
    model.graph.initializer.append(short)
    model.graph.node[0].input[1] = "w"
    return model


def with_operators_of_the_future(model, _weights, _level):
    model.opset_import[0].version = 999
    return model


def failing(_model, _weights, _level):
    raise LookupError("its own words")


def raising_no_exception(*_given):
    raise BaseException("odd")  # noqa: TRY002 - whatever a plugin raises


def leaving(_model, _weights, _level):
    sys.exit("bye")


@pytest.mark.parametrize(
    ("transformer", "fault"),
    [
        (lambda *_given: {}, "gave a dict instead of an onnx.ModelProto or None"),
        (
            lambda *_given: onnx.GraphProto(),
            "gave a GraphProto instead of an onnx.ModelProto or None",
        ),
        (lambda _model: None, "raised TypeError"),
        (
            without_an_input,
            r"gave a model with other inputs: \['x'\] instead of \['x', 'b'\]",
        ),
        (with_another_type, "gave a model with other inputs: .*or of other types"),
        (with_a_renamed_output, r"gave a model with other outputs: \['z'\]"),
        (with_a_context_node, "gave a model with EPContext nodes"),
        (with_a_context_node_in_a_function, "gave a model with EPContext nodes"),
        (with_a_file, "an external weight 'w' that the original does not have"),
        (
            with_a_file_in_a_node,
            "gave a model whose tensor 'v' lies in the file '/etc/passwd'",
        ),
        (
            with_a_file_in_a_function,
            "gave a model whose tensor 'v' lies in the file '/etc/passwd'",
        ),
        (
            with_too_short_a_weight,
            "gave a wrong model: initializer 'w' of shape .* needs 24 bytes and has 8",
        ),
        (
            with_operators_of_the_future,
            "gave a wrong model: .* imports version 999 of ONNX's operators",
        ),
        (circular, "gave a wrong model"),
        (lambda *_given: onnx.ModelProto(), "gave a"),
        (failing, "raised LookupError: its own words"),
        (leaving, "raised SystemExit: bye"),
        (raising_no_exception, "raised BaseException: odd"),
    ],
)
def test_a_plugin_that_transforms_wrongly_is_blamed_by_name_and_nothing_is_written(
    tmp_path, transformer, fault
):
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    source = saved(
        finished(nodes, [tensor("x"), tensor("b")], [tensor("y")]), tmp_path / "m.onnx"
    )

    with refused(
        InvalidArgument,
        rf"host plugin .*Transforming: its transform_model .*{fault}",
        folder=tmp_path,
    ) as caught:
        epctx.ModelCompiler(with_transformers(transformer), source).compile_to_file(
            tmp_path / "m_ctx.onnx"
        )

    assert isinstance(caught.value.__cause__, LookupError) or transformer is not failing
