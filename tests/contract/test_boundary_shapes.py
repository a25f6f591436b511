"""EPs that compile for static shapes which no inference proves: the context model
declares them, a load gets them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from contract.test_graph_names import ByContent, compile_to
from onnx import TensorProto, helper
from support.isolation import options_for, registry_of
from support.small_models import finished, saved, tensor

import epctx_core as epctx
from epctx_core.plugin import hookimpl


class Static(ByContent):
    """Compiles for the lengths that it is told, and loads nothing else."""

    name = "StaticExecutionProvider"
    shapes = ({}, {"v1": (3, 2), "y": [3, 2]})
    seen = ()

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = super().get_ep_context_nodes(writer)
        return [
            replace(node, shapes=shapes)
            for node, shapes in zip(nodes, self.shapes, strict=True)
        ]

    @hookimpl
    def load_context(self, nodes, reader):
        type(self).seen = [
            v.shape for node in nodes for v in (*node.inputs, *node.outputs)
        ]
        return super().load_context(nodes, reader)


def reshaped_by_an_input():
    """Return a model of two Relu, between which a Reshape takes the shape from an
    input.
    """
    nodes = [
        helper.make_node("Relu", ["x"], ["v0"]),
        helper.make_node("Reshape", ["v0", "to"], ["v1"]),
        helper.make_node("Relu", ["v1"], ["y"]),
    ]
    inputs = [tensor("x", shape=(2, 3)), tensor("to", TensorProto.INT64, (2,))]
    return finished(nodes, inputs, [tensor("y", shape=(3, 2))])


@pytest.fixture
def model(tmp_path):
    return saved(reshaped_by_an_input(), tmp_path / "m.onnx")


@pytest.fixture
def context(tmp_path):
    return tmp_path / "m_ctx.onnx"


def lengths(value):
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("isolate", ["", "all"])
def test_the_context_model_declares_the_shapes_that_the_ep_compiled_for(
    model, context, isolate
):
    compile_to(context, model, Static, isolate=isolate)

    graph = onnx.load(context, load_external_data=False).graph
    declared = {value.name: value for value in (*graph.value_info, *graph.output)}
    assert lengths(declared["v1"]) == [3, 2]
    assert lengths(declared["y"]) == [3, 2]
    assert not declared["y"].metadata_props


def test_a_load_gets_the_shapes(model, context):
    compile_to(context, model, Static)
    inputs = {"x": np.float32([[1, -2, 3], [4, 5, -6]]), "to": np.int64([3, 2])}

    options = options_for(Static, isolate="")
    with epctx.InferenceSession(
        context, options, registry=registry_of(Static)
    ) as session:
        (result,) = session.run(None, inputs)

    assert Static.seen == [(2, 3), (2, 3), (3, 2), (3, 2)]
    np.testing.assert_array_equal(result, [[1, 0], [3, 4], [5, 0]])


@pytest.mark.parametrize(
    ("shapes", "fault"),
    [
        ({"v0": [2, 3]}, "'v0', which is not at the boundary"),
        ({"v1": [3, "n"]}, "not a list of static lengths"),
        ({"v1": [3, -1]}, "not a list of static lengths"),
        ({"v1": [True, 2]}, "not a list of static lengths"),
        ({"v1": 5}, "not a list of static lengths"),
        ([], "a list instead of a mapping"),
    ],
)
def test_shapes_that_are_none_break_the_contract(model, context, shapes, fault):
    class Wrong(Static):
        pass

    Wrong.shapes = ({}, shapes)

    with pytest.raises(epctx.PluginError, match=fault):
        compile_to(context, model, Wrong)


@pytest.mark.parametrize("shape", [[2, 4], [2], []])
def test_a_shape_that_inference_contradicts_is_refused_and_the_ep_not_blamed(
    model, context, shape
):
    class Wrong(Static):
        shapes = ({"v0": shape}, {})

    with pytest.raises(
        epctx.InvalidGraph, match=r"for 'v0', and type inference gives float\[2,3\]"
    ):
        compile_to(context, model, Wrong)


def test_the_node_has_the_name_of_its_graph(model, context):
    compile_to(context, model, Static)

    for node in epctx.inspect_model(context).ep_contexts:
        assert node.name == node.partition_name


def test_a_name_that_another_node_has_is_not_given_twice(context, tmp_path):
    class Same(Static):
        def graph_name(self, number, partition):
            return f"graph {number}"

        written_name = graph_name

    source = reshaped_by_an_input()
    source.graph.node[1].name = "graph 0"
    report = compile_to(context, saved(source, tmp_path / "m.onnx"), Same)

    first, second = epctx.inspect_model(context).ep_contexts
    assert (first.partition_name, second.partition_name) == ("graph 0", "graph 1")
    assert first.name.startswith("StaticExecutionProvider_")
    assert second.name == "graph 1"
    assert [partition.name for partition in report.partitions] == [
        first.name,
        second.name,
    ]
