"""Levels above ORT_DISABLE_ALL: the whole model before partitioning, pieces afterwards,
and an EP's own wishes.
"""

from __future__ import annotations

import re

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from support.changed_models import (
    circular,
    with_a_context_node,
    with_a_renamed_output,
    without_negations,
)
from support.engine_eps import Alpha
from support.models_for_engines import on_the_reference
from support.optimised_networks import convolution_and_normalisation, gelu
from support.routes import (
    by_compiler,
    by_session,
    compile_with,
    refused,
    session_with,
    with_qnn,
)
from support.small_models import chain, example, finished, saved, tensor

import epctx_core as epctx
from epctx_core import Fail, InvalidArgument, PluginError
from epctx_core.plugin import hookimpl

LEVEL = epctx.GraphOptimizationLevel


def image():
    return np.random.default_rng(0).standard_normal((1, 3, 16, 16), np.float32)


def level(number):
    return {"graph_optimization_level": number}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return saved(convolution_and_normalisation(), folder / "m.onnx")


# --- the whole model ------------------------------------------------------------------


def test_a_model_is_brought_to_a_level_before_eps_see_it(source, tmp_path):
    expected = epctx.InferenceSession(source).run(None, {"x": image()})[0]

    report = epctx.ModelCompiler(
        with_qnn(), source, graph_optimization_level=LEVEL.ORT_ENABLE_BASIC
    ).compile_to_file(tmp_path / "m_ctx.onnx")

    assert [p.nodes for p in report.partitions] == [2]
    found = epctx.InferenceSession(tmp_path / "m_ctx.onnx").run(None, {"x": image()})[0]
    assert np.max(np.abs(found - expected)) <= 1e-5 * np.max(np.abs(expected))


def test_by_default_eps_see_the_model_as_it_is(source, tmp_path):
    report = epctx.ModelCompiler(with_qnn(), source).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )

    assert [p.nodes for p in report.partitions] == [3]


def test_what_the_model_says_about_itself_reaches_the_context_model(source, tmp_path):
    epctx.ModelCompiler(
        with_qnn(), source, graph_optimization_level=LEVEL.ORT_ENABLE_EXTENDED
    ).compile_to_file(tmp_path / "m_ctx.onnx")

    made = onnx.load(tmp_path / "m_ctx.onnx")

    assert (made.doc_string, made.graph.doc_string, made.producer_name) == (
        "about the model", "about the graph", "tests",
    )  # fmt: skip
    assert ("author", "someone") in {(e.key, e.value) for e in made.metadata_props}
    assert {o.domain for o in made.opset_import} == {"", "com.microsoft"}
    assert [v.name for v in made.graph.input] == ["x"]
    assert [v.name for v in made.graph.output] == ["y"]


def test_onnxruntimes_own_operators_run_on_the_cpu_and_have_types(tmp_path):
    path = saved(gelu(), tmp_path / "m.onnx")
    options = epctx.SessionOptions()
    options.graph_optimization_level = LEVEL.ORT_ENABLE_EXTENDED
    x = example(shape=(4, 8))

    report = epctx.ModelCompiler(
        with_qnn(), path, graph_optimization_level=LEVEL.ORT_ENABLE_EXTENDED
    ).compile_to_file(tmp_path / "m_ctx.onnx")

    assert sum(p.nodes for p in report.partitions) == 1
    expected = epctx.InferenceSession(path).run(None, {"x": x})[0]
    assert np.allclose(
        epctx.InferenceSession(tmp_path / "m_ctx.onnx").run(None, {"x": x})[0],
        expected,
        atol=1e-6,
    )
    assert np.allclose(
        epctx.InferenceSession(path, options).run(None, {"x": x})[0],
        expected,
        atol=1e-6,
    )


def test_an_operator_that_onnxruntime_inlines_in_a_graph_and_in_its_subgraph_is_optimised(
    tmp_path,
):
    model = onnx.parser.parse_model(
        """
        <ir_version: 10, opset_import: ["": 21]>
        g (float[1,4,3] x, bool c) => (float[1,4,3] y)
        <float[4] scale = {1, 2, 3, 4}, float[4] bias = {0, 1, 2, 3}> {
            outer = GroupNormalization <num_groups = 2> (x, scale, bias)
            y = If (c) <
                then_branch = twice () => (float[1,4,3] a) {
                    a = GroupNormalization <num_groups = 2> (outer, bias, scale)
                },
                else_branch = once () => (float[1,4,3] b) { b = Neg (outer) }
            >
        }
        """
    )
    path = saved(model, tmp_path / "m.onnx")
    options = epctx.SessionOptions()
    options.graph_optimization_level = LEVEL.ORT_ENABLE_EXTENDED
    x = example(shape=(1, 4, 3))
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    epctx.ModelCompiler(
        with_qnn(), path, **level(LEVEL.ORT_ENABLE_BASIC)
    ).compile_to_file(tmp_path / "m_ctx.onnx")

    for session in (
        epctx.InferenceSession(path, options),
        epctx.InferenceSession(tmp_path / "m_ctx.onnx"),
    ):
        for c in (np.array(True), np.array(False)):
            given = {"x": x, "c": c}
            (found,), (wanted,) = session.run(None, given), theirs.run(None, given)
            assert np.allclose(found, wanted, atol=1e-5)


def test_the_same_model_gives_the_same_bytes_in_any_folder(source, tmp_path):
    written = []
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        copy = folder / "m.onnx"
        copy.write_bytes(source.read_bytes())
        epctx.ModelCompiler(
            with_qnn(), copy, graph_optimization_level=LEVEL.ORT_ENABLE_BASIC
        ).compile_to_file()
        written.append([(folder / f).read_bytes() for f in ("m_ctx.onnx", "m_qnn.bin")])

    assert written[0] == written[1]


@pytest.mark.parametrize("number", [LEVEL.ORT_ENABLE_ALL, LEVEL.ORT_ENABLE_LAYOUT])
def test_a_level_that_is_none_for_a_whole_model_is_refused(source, number):
    with refused(InvalidArgument, "graph_optimization_level"):
        epctx.ModelCompiler(with_qnn(), source, **level(number))


def test_on_an_engine_without_an_optimiser_a_level_is_refused_with_what_to_install(
    source,
):
    with refused(InvalidArgument, r"onnx\.reference .* has no optimiser") as caught:
        epctx.ModelCompiler(
            on_the_reference(with_qnn()), source, **level(LEVEL.ORT_ENABLE_BASIC)
        )

    assert re.search(r"pip install .*(-core\[ort\]|-onnxruntime)", caught.value.hint)


def test_on_the_reference_a_model_compiles_and_runs_all_the_same(source, tmp_path):
    expected = epctx.InferenceSession(source).run(None, {"x": image()})[0]
    made_with = tmp_path / "with_ctx.onnx"
    epctx.ModelCompiler(with_qnn(), source).compile_to_file(made_with)

    epctx.ModelCompiler(on_the_reference(with_qnn()), source).compile_to_file(
        tmp_path / "without_ctx.onnx"
    )

    for path in (made_with, tmp_path / "without_ctx.onnx"):
        found = epctx.InferenceSession(path, on_the_reference()).run(
            None, {"x": image()}
        )[0]
        assert np.max(np.abs(found - expected)) <= 1e-5 * np.max(np.abs(expected))


def test_a_model_that_cannot_be_optimised_says_why(tmp_path):
    node = helper.make_node("Nothing", ["x"], ["y"], domain="nobody")
    model = finished([node], [tensor("x")], [tensor("y")])
    model.opset_import.add(domain="nobody", version=1)
    path = saved(model, tmp_path / "m.onnx")

    with refused(
        Fail, "cannot be optimised to ORT_ENABLE_BASIC: onnxruntime refuses it"
    ) as caught:
        epctx.ModelCompiler(
            with_qnn(), path, **level(LEVEL.ORT_ENABLE_BASIC)
        ).compile_to_file()

    assert "ORT_DISABLE_ALL" in caught.value.hint


# --- an EP's own wishes ---------------------------------------------------------------


def wishing(answer):
    """An EP that answers `optimize_model` with `answer(model, weights, level)`; it
    notes its calls.
    """

    class Wishing(Alpha):
        name = "WishingExecutionProvider"
        binary_suffix = "wishing"
        calls = []  # noqa: RUF012 - one for each class that is made here

        @hookimpl
        def optimize_model(self, model, weights, level):
            self.calls.append((sorted(weights), level))
            return answer(model, weights, level)

    return Wishing


@pytest.fixture
def negations(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return saved(chain(["Neg", "Neg", "Relu", "Add"]), folder / "m.onnx")


@pytest.mark.parametrize("route", [by_compiler, by_session])
def test_an_ep_changes_the_model_before_it_is_partitioned(negations, tmp_path, route):
    ep = wishing(without_negations)
    expected = epctx.InferenceSession(negations).run(None, {"x": example()})[0]

    route(ep, negations, tmp_path / "m_ctx.onnx")

    made = onnx.load(tmp_path / "m_ctx.onnx")
    assert [node.op_type for node in made.graph.node] == ["EPContext"]
    assert made.producer_name == "small"
    assert len(ep.calls) == 1
    assert np.array_equal(
        session_with(ep, tmp_path / "m_ctx.onnx").run(None, {"x": example()})[0],
        expected,
    )
    assert len(ep.calls) == 1, "a compiled model is nobody's to change"


def test_it_is_given_the_weights_and_the_level(negations, tmp_path):
    ep = wishing(without_negations)

    compile_with(
        ep, negations, tmp_path / "m_ctx.onnx", **level(LEVEL.ORT_ENABLE_BASIC)
    )

    assert ep.calls == [(["w3"], 1)]


def test_an_ep_that_gives_nothing_leaves_the_model_as_it_is_whatever_it_did_to_its_copy(
    negations, tmp_path
):
    def spoil(model, _weights, _level):
        del model.graph.node[:]

    ep = wishing(spoil)

    compile_with(ep, negations, tmp_path / "m_ctx.onnx")

    found = session_with(ep, tmp_path / "m_ctx.onnx").run(None, {"x": example()})[0]
    assert np.array_equal(
        found, epctx.InferenceSession(negations).run(None, {"x": example()})[0]
    )


def test_weights_that_it_leaves_alone_stay_where_they_are_and_new_ones_are_taken(
    tmp_path,
):
    kept = numpy_helper.from_array(np.arange(600, dtype=np.float32), "kept")
    nodes = [
        helper.make_node("Add", ["x", "kept"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    model = finished(
        nodes, [tensor("x", shape=[600])], [tensor("y", shape=[600])], [kept]
    )
    path = saved(model, tmp_path / "m.onnx")
    x = np.linspace(-700, 100, 600, dtype=np.float32)

    def add_more(model, _weights, _level):
        assert model.graph.initializer[0].data_location == onnx.TensorProto.EXTERNAL
        model.graph.initializer.append(
            numpy_helper.from_array(np.full(600, 2, np.float32), "more")
        )
        model.graph.node[1].input[0] = "b"
        relu = onnx.NodeProto.FromString(model.graph.node[1].SerializeToString())
        del model.graph.node[1]
        model.graph.node.extend([helper.make_node("Add", ["a", "more"], ["b"]), relu])
        return model

    compile_with(wishing(add_more), path, tmp_path / "m_ctx.onnx")

    found = session_with(wishing(add_more), tmp_path / "m_ctx.onnx").run(
        None, {"x": x}
    )[0]
    assert np.array_equal(
        found, np.maximum(x + np.arange(600, dtype=np.float32) + 2, 0)
    )


def other_type(model, _weights, _level):
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 4
    return model


def with_a_file(model, _weights, _level):
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="/etc/passwd")
    weight.name = "secret"
    model.graph.node[-1].input[1] = "secret"
    return model


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (lambda *_given: b"model", "gave a bytes instead of an onnx.ModelProto"),
        (
            with_a_renamed_output,
            "gave a model with other outputs: \\['z'\\] instead of \\['y'\\]",
        ),
        (other_type, "gave a model with other inputs"),
        (circular, "gave a wrong model"),
        (with_a_context_node, "gave a model with EPContext nodes"),
        (with_a_file, "external weight 'secret' that the original does not have"),
    ],
)
def test_a_wrong_answer_is_the_plugins_fault(negations, tmp_path, answer, what):
    with refused(
        PluginError, what, folder=tmp_path, ep="WishingExecutionProvider"
    ) as caught:
        compile_with(wishing(answer), negations, tmp_path / "m_ctx.onnx")

    assert caught.value.hook == "optimize_model"


def test_an_ep_that_raises_is_named(negations, tmp_path):
    def fail(*_given):
        raise LookupError("its own words")

    with refused(PluginError, "optimize_model: .*its own words", folder=tmp_path):
        compile_with(wishing(fail), negations, tmp_path / "m_ctx.onnx")
