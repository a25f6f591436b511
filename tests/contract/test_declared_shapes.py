"""Shapes that a model only declares: a load shows an EP the types that its compile
showed it, and the context model declares nothing that is not proven.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from contract.test_graph_names import ByContent, compile_to
from onnx import TensorProto, helper
from support.isolation import options_for, registry_of
from support.small_models import finished, saved, tensor

import epctx_core as epctx
from epctx_core.plugin import hookimpl

NOTE = "epctx.declared"
X = np.float32([[1, -2, 3], [4, 5, -6]])
INPUTS = {"x": X, "to": np.int64([3, 2])}
RESULT = [[1, 0], [3, 4], [5, 0]]


class Seeing(ByContent):
    """Notes the types at the boundary that a compile and a load show it."""

    name = "SeeingExecutionProvider"
    binary_suffix = "seeing"
    compiled = loaded = None

    @hookimpl
    def compile(self, partitions):
        type(self).compiled = list_boundaries(partitions)
        return super().compile(partitions)

    @hookimpl
    def load_context(self, nodes, reader):
        type(self).loaded = list_boundaries(nodes)
        return super().load_context(nodes, reader)


def list_boundaries(units):
    values = (value for unit in units for value in (*unit.inputs, *unit.outputs))
    return {v.name: (v.elem_type, v.shape, v.type.is_proven) for v in values}


def reshaped(shape=(3, 2), output=(3, 2)):
    """Return a model of two Relu, between which a Reshape takes the shape from an
    input, so that only declarations know it.
    """
    nodes = [
        helper.make_node("Relu", ["x"], ["v0"]),
        helper.make_node("Reshape", ["v0", "to"], ["v1"]),
        helper.make_node("Relu", ["v1"], ["v2"]),
        helper.make_node("Sigmoid", ["v2"], ["v3"]),
        helper.make_node("Relu", ["v3"], ["y"]),
    ]
    inputs = [tensor("x", shape=(2, 3)), tensor("to", TensorProto.INT64, (2,))]
    made = finished(nodes, inputs, [tensor("y", shape=output)])
    made.graph.value_info.append(tensor("v1", shape=shape))
    return made


@pytest.fixture
def context(tmp_path):
    return tmp_path / "m_ctx.onnx"


def load_and_run(context, inputs=INPUTS, ep=Seeing):
    options = options_for(ep, isolate="")
    with epctx.InferenceSession(context, options, registry=registry_of(ep)) as session:
        return session.run(None, inputs)[0]


def make_context(context, model, tmp_path, ep=Seeing, **entries):
    compile_to(context, saved(model, tmp_path / "m.onnx"), ep, **entries)
    return onnx.load(context, load_external_data=False)


def find_note(graph, name):
    (value,) = [v for v in (*graph.value_info, *graph.output) if v.name == name]
    return {entry.key: entry.value for entry in value.metadata_props}.get(NOTE)


@pytest.mark.parametrize(
    ("shape", "output"),
    [((3, 2), (3, 2)), (("rows", 2), (3, 2)), ((3, "n"), ("m", None))],
)
def test_a_load_shows_the_types_that_the_compile_showed(
    tmp_path, context, shape, output
):
    make_context(context, reshaped(shape, output), tmp_path)

    np.testing.assert_allclose(
        load_and_run(context), 1 / (1 + np.exp(-np.float32(RESULT))), rtol=1e-6
    )
    assert Seeing.loaded == Seeing.compiled
    assert Seeing.loaded["x"] == (TensorProto.FLOAT, (2, 3), True)
    assert Seeing.loaded["v1"] == (TensorProto.FLOAT, shape, False)


class Saying(Seeing):
    """Says in an error what it sees, as another process has classes of its own."""

    name = "SayingExecutionProvider"

    @hookimpl
    def load_context(self, nodes, reader):
        raise ValueError(list_boundaries(nodes)["v1"])


@pytest.mark.parametrize("isolate", ["", "all"])
def test_a_process_of_its_own_sees_the_same_types(tmp_path, context, isolate):
    make_context(context, reshaped(), tmp_path, Saying, context_read_back=0)
    options, registry = options_for(Saying, isolate=isolate), registry_of(Saying)

    with pytest.raises(epctx.PluginError, match=r"\(1, \(3, 2\), False\)"):
        epctx.InferenceSession(context, options, registry=registry)


def test_the_file_declares_only_what_is_proven(tmp_path, context):
    graph = make_context(context, reshaped(), tmp_path).graph

    (v1,) = [value for value in graph.value_info if value.name == "v1"]
    assert v1.type.tensor_type.elem_type == TensorProto.FLOAT
    assert not any(dim.dim_value for dim in v1.type.tensor_type.shape.dim)
    assert find_note(graph, "v1") == "[3, 2]"
    assert find_note(graph, "v0") is None
    assert find_note(graph, "y") == "shape"


def test_onnxruntime_reads_the_model_up_to_the_ep_that_it_lacks(tmp_path, context):
    make_context(context, reshaped(), tmp_path)

    with pytest.raises(Exception, match="EPContext"):
        onnxruntime.InferenceSession(context, providers=["CPUExecutionProvider"])


def test_a_false_declaration_changes_no_result_of_an_ep_that_takes_open_shapes(
    tmp_path, context
):
    make_context(context, reshaped((9, 9), (None, None)), tmp_path)

    np.testing.assert_allclose(
        load_and_run(context), 1 / (1 + np.exp(-np.float32(RESULT))), rtol=1e-6
    )
    assert Seeing.loaded["v1"] == (TensorProto.FLOAT, (9, 9), False)


def test_where_an_ep_fails_over_a_false_declaration_the_error_names_it(
    tmp_path, context
):
    class Static(Seeing):
        """Runs the shapes that it is loaded with, and no others."""

        @hookimpl
        def load_context(self, nodes, reader):
            def limit(node, compiled):
                def run(inputs, outputs=None):
                    if [a.shape for a in inputs] != [v.shape for v in node.inputs]:
                        raise ValueError("another shape than compiled")
                    return compiled.run(inputs, outputs)

                return type(compiled)(run, close=compiled.close)

            return list(map(limit, nodes, super().load_context(nodes, reader)))

    make_context(context, reshaped((9, 9), (None, None)), tmp_path, Static)

    with pytest.raises(
        epctx.RuntimeException,
        match=r"the model declares float\[9,9\] for the value 'v1', and its operators "
        r"give float32\[3, 2\]",
    ):
        load_and_run(context, ep=Static)


def test_what_inference_refutes_is_shown_to_neither_compile_nor_load(tmp_path, context):
    model = reshaped()
    model.graph.value_info.append(tensor("v0", shape=(7, 3)))

    graph = make_context(context, model, tmp_path).graph
    load_and_run(context)

    assert Seeing.loaded == Seeing.compiled
    assert Seeing.loaded["v0"] == (TensorProto.FLOAT, (2, 3), True)
    assert find_note(graph, "v0") is None


def in_a_subgraph():
    """Return a model of an If whose branch is `reshaped`."""
    inner = reshaped().graph
    branch = helper.make_graph(
        inner.node, "then", [], [tensor("y", shape=(3, 2))], value_info=inner.value_info
    )
    other = helper.make_graph(
        [
            helper.make_node("Reshape", ["x", "to"], ["r"]),
            helper.make_node("Sigmoid", ["r"], ["z"]),
        ],
        "else",
        [],
        [tensor("z", shape=None)],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other)
    inputs = [*inner.input, tensor("c", TensorProto.BOOL, ())]
    return finished([node], inputs, [tensor("y", shape=None)])


def test_a_load_shows_the_types_inside_of_a_subgraph_too(tmp_path, context):
    make_context(context, in_a_subgraph(), tmp_path)

    load_and_run(context, {**INPUTS, "c": np.array(True)})

    assert Seeing.loaded == Seeing.compiled
    assert Seeing.loaded["v1"] == (TensorProto.FLOAT, (3, 2), False)


def test_a_context_model_that_is_compiled_again_keeps_the_shapes(tmp_path, context):
    class Later(ByContent):
        name = "LaterExecutionProvider"
        binary_suffix = "later"
        operators = frozenset({"Sigmoid"})

    made = make_context(context, reshaped(), tmp_path)
    again = tmp_path / "again" / "m_ctx.onnx"
    again.parent.mkdir()
    options = options_for(Seeing, Later, isolate="")
    registry = registry_of(Seeing, Later)
    epctx.ModelCompiler(options, context, registry=registry).compile_to_file(again)

    graph = onnx.load(again, load_external_data=False).graph
    assert {n.op_type for n in graph.node} == {"EPContext", "Reshape"}
    assert find_note(graph, "v1") == find_note(made.graph, "v1")
    with epctx.InferenceSession(again, options, registry=registry) as session:
        session.run(None, INPUTS)
    assert Seeing.loaded == Seeing.compiled


@pytest.mark.parametrize(
    "note",
    [
        "3, 2",
        '"32"',
        "[3.5, 2]",
        "[[3], 2]",
        "[" * 100_000,
        json.dumps([1] * 1000),
        f"[{1 << 80}, 2]",
        r'["\ud800", 2]',
    ],
)
def test_a_note_that_is_not_a_shape_is_refused_by_load_and_verify(
    tmp_path, context, note
):
    model = make_context(context, reshaped(), tmp_path)
    for value in model.graph.value_info:
        for entry in value.metadata_props:
            entry.value = note
    context.write_bytes(model.SerializeToString())

    with pytest.raises(epctx.InvalidGraph, match=r"'v1' has the metadata epctx\.decl"):
        load_and_run(context)
    report = epctx.verify_model(context, registry=registry_of(Seeing))
    assert not report.ok
    assert any(NOTE in finding.message for finding in report.findings)


def test_a_note_that_contradicts_the_declared_type_is_refused(tmp_path, context):
    model = make_context(context, reshaped(), tmp_path)
    (v0,) = [value for value in model.graph.value_info if value.name == "v0"]
    v0.metadata_props.add(key=NOTE, value="[9, 3]")
    context.write_bytes(model.SerializeToString())

    with pytest.raises(epctx.InvalidGraph, match=r"not a shape of .* float\[2,3\]"):
        load_and_run(context)
