"""Graph transformations by plugins of a host: called in order before a model is
partitioned, and checked like those of EPs.
"""

from __future__ import annotations

import logging
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.changed_models import without_negations
from support.engine_eps import Alpha
from support.installed import install_distribution
from support.routes import refused, with_qnn, with_transformers
from support.small_models import chain, example, finished, saved, tensor

import epctx_core as epctx
from epctx_core import InvalidArgument, ModelLoadCanceled
from epctx_core.plugin import ComputeCapability, hookimpl

LEVEL = epctx.GraphOptimizationLevel


@pytest.fixture
def negations(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return saved(chain(["Neg", "Neg", "Relu", "Add"]), folder / "m.onnx")


# --- where they apply -----------------------------------------------------------------


def by_model_compiler(options, source, output):
    epctx.ModelCompiler(options, source).compile_to_file(output)


def by_session(options, source, output):
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(output))
    epctx.InferenceSession(source, options).close()


def by_share_group(options, source, output):
    with epctx.ShareGroup(output.parent) as group:
        group.compile(source, options, name="m")


def by_cache(options, source, output):
    output.write_bytes(
        epctx.compile_cached(
            source, options, cache_dir=output.parent / "cache"
        ).read_bytes()
    )


@pytest.mark.parametrize(
    "route", [by_model_compiler, by_session, by_share_group, by_cache]
)
def test_a_host_plugin_changes_the_model_that_an_ep_compiles(
    negations, tmp_path, route
):
    output = tmp_path / "m_ctx.onnx"

    route(
        with_transformers(without_negations, ep__context_embed_mode=0),
        negations,
        output,
    )

    made = onnx.load(output, load_external_data=False)
    assert [node.op_type for node in made.graph.node] == ["EPContext"]


def test_a_session_that_compiles_runs_what_the_plugin_made_at_every_level(
    negations, caplog
):
    expected = epctx.InferenceSession(negations).run(None, {"x": example()})[0]
    levels = []

    def noting(model, weights, level):
        levels.append((sorted(weights), level))
        return without_negations(model, weights, level)

    caplog.set_level(logging.INFO, "epctx.graph")
    for level in LEVEL:
        options = with_transformers(noting)
        options.graph_optimization_level = level
        with epctx.InferenceSession(negations, options) as session:
            assert np.array_equal(session.run(None, {"x": example()})[0], expected)

    assert levels == [(["w3"], int(level)) for level in LEVEL]
    assert any("Transforming: changed." in text for text in caplog.messages)


def test_a_session_without_eps_runs_what_the_plugin_made(negations):
    seen = []

    def abs_for_neg(model, _weights, _level):
        seen.append(len(model.graph.node))
        for node in model.graph.node:
            node.op_type = "Abs" if node.op_type == "Neg" else node.op_type
        return model

    with epctx.InferenceSession(
        negations, with_transformers(abs_for_neg, ep=None)
    ) as session:
        (changed,) = session.run(None, {"x": example()})
    with epctx.InferenceSession(negations) as session:
        (plain,) = session.run(None, {"x": example()})

    assert seen == [4]
    assert not np.array_equal(changed, plain)


def test_an_explanation_shows_the_nodes_that_eps_are_asked_about(negations):
    explained = epctx.explain_model(negations, with_transformers(without_negations))

    assert [node.operator for node in explained.nodes] == ["Relu", "Add"]


def test_each_is_given_what_the_one_before_returned_and_the_ep_what_the_last_did(
    negations, tmp_path
):
    seen = []

    def noting(label):
        def note(model, _weights, _level):
            seen.append((label, [n.op_type for n in model.graph.node]))

        return note

    class Wishing(Alpha):
        name = "WishingExecutionProvider"

        @hookimpl
        def optimize_model(self, model):
            noting("the EP")(model, None, None)

    options = with_transformers(
        noting("first"), without_negations, noting("second"), ep="Wishing"
    )
    registry = epctx.Registry(entry_points=False)
    registry.register(Wishing)
    epctx.ModelCompiler(options, negations, registry=registry).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )

    whole, rest = ["Neg", "Neg", "Relu", "Add"], ["Relu", "Add"]
    assert seen == [
        ("first", whole),
        ("second", rest),
        ("the EP", rest),
    ]


def test_a_compiled_model_is_nobody_s_to_change(negations, tmp_path):
    first, again = tmp_path / "m_ctx.onnx", tmp_path / "again_ctx.onnx"
    epctx.ModelCompiler(
        with_transformers(without_negations), negations
    ).compile_to_file(first)

    def refuse(*_given):
        raise AssertionError("called for a compiled model")

    named = with_transformers(refuse)
    epctx.InferenceSession(first, named).close()
    report = epctx.ModelCompiler(named, first).compile_to_file(again)

    assert report.partitions == ()


# --- weights and cost -----------------------------------------------------------------


def fold_scale(model, weights, _level):
    """(x * scale) @ w is x @ (scale * w), for a scale that is one number."""
    scale, product = model.graph.node
    w = weights["w"]
    folded = w.array() * numpy_helper.to_array(
        next(t for t in model.graph.initializer if t.name == "scale")
    )
    product.input[:] = ["x", "folded"]
    kept = [t for t in model.graph.initializer if t.name == "other"]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, numpy_helper.from_array(folded, "folded")])
    model.graph.node.remove(scale)
    return model


def test_a_transformer_may_compute_new_weights_of_old_ones(tmp_path):
    w = np.arange(600, dtype=np.float32).reshape(20, 30)
    weights = [
        numpy_helper.from_array(w, "w"),
        numpy_helper.from_array(np.float32(0.5), "scale"),
    ]
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    model = finished(
        nodes, [tensor("x", shape=(2, 20))], [tensor("y", shape=(2, 30))], weights
    )
    x = example(shape=(2, 20))

    report = epctx.ModelCompiler(
        with_transformers(fold_scale), saved(model, tmp_path / "m.onnx")
    ).compile_to_file(tmp_path / "m_ctx.onnx")

    assert [partition.operators for partition in report.partitions] == [("MatMul",)]
    found = epctx.InferenceSession(tmp_path / "m_ctx.onnx").run(None, {"x": x})[0]
    np.testing.assert_allclose(found, x * 0.5 @ w, rtol=1e-5)


def test_weights_that_stay_are_mapped_and_no_byte_of_them_is_read(tmp_path):
    gibibytes = 64 << 30  # a hole in a file: nothing could read it in time
    w = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[1 << 20, gibibytes >> 22]
    )
    w.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", "weights.bin"),
        ("offset", "0"),
        ("length", str(gibibytes)),
    ):
        w.external_data.add(key=key, value=value)
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(gibibytes)
    nodes = [
        helper.make_node(o, [a], [b])
        for o, a, b in (("Neg", "x", "n"), ("Neg", "n", "m"))
    ]
    nodes.append(helper.make_node("MatMul", ["m", "w"], ["y"]))
    shapes = (1, 1 << 20), (1, gibibytes >> 22)
    model = finished(
        nodes, [tensor("x", shape=shapes[0])], [tensor("y", shape=shapes[1])], [w]
    )
    extents = []

    class Mapping(Alpha):
        name = "MappingExecutionProvider"

        @hookimpl
        def get_capability(self, graph):
            extents.append(graph.initializer("w").extent)
            return [ComputeCapability(graph.nodes)]

    def noting(model, weights, level):
        extents.append(weights["w"].extent)
        return without_negations(model, weights, level)

    registry = epctx.Registry(entry_points=False)
    registry.register(Mapping)
    options = with_transformers(noting, ep="Mapping")
    explained = epctx.explain_model(
        saved(model, tmp_path / "m.onnx"), options, registry=registry
    )

    assert [node.operator for node in explained.nodes] == ["MatMul"]
    assert extents[0] == extents[1]
    assert (extents[1].file, extents[1].length) == (
        str(tmp_path / "weights.bin"),
        gibibytes,
    )


# --- wrong ones -----------------------------------------------------------------------


def test_a_cancellation_is_seen_between_plugins(negations, tmp_path):
    def cancelling(_model, _weights, _level):
        options.set_load_cancellation_flag(True)

    def not_called(_model, _weights, _level):
        raise LookupError("its own words")

    options = with_transformers(cancelling, not_called)

    with pytest.raises(ModelLoadCanceled):
        epctx.ModelCompiler(options, negations).compile_to_file(tmp_path / "m_ctx.onnx")

    assert not (tmp_path / "m_ctx.onnx").exists()


# --- how a host has them -----------------------------------------------------------------


class Undated:
    @hookimpl
    def transform_model(self, model):
        return None


class Numbered(Undated):
    version = 3


class Wrapping:
    version = "1"

    @hookimpl(wrapper=True)
    def transform_model(self, model):
        return (yield)


class Misspelt:
    version = "1"

    @hookimpl
    def transform_model(self, modle):
        return None


@pytest.mark.parametrize(
    ("plugin", "fault"),
    [
        (Undated(), "no text `version`"),
        (Numbered(), "no text `version`"),
        (Wrapping(), "transform_model is a wrapper"),
        (Misspelt(), "modle"),
    ],
)
def test_a_plugin_that_breaks_the_contract_is_refused_before_the_model_is_read(
    tmp_path, plugin, fault
):
    options = with_qnn()
    options.add_host_plugin(plugin)

    with refused(InvalidArgument, f"is not a plugin of a host: .*{fault}"):
        epctx.ModelCompiler(options, tmp_path / "missing.onnx").compile_to_file()


PACKAGE = """
from epctx_core.plugin import hookimpl

class Positive:
    version = "1"

    @hookimpl
    def transform_model(self, model):
        for node in model.graph.node:
            node.op_type = node.op_type.replace("Neg", "Relu")
        return model
"""


def test_one_of_a_package_runs_only_where_the_host_names_its_entry_point(
    negations, tmp_path, monkeypatch
):
    entries = {"epctx.host_plugins": {"acme": "acme_graphs:Positive"}}
    install_distribution(tmp_path / "site", "acme-graphs", entries)
    (tmp_path / "site" / "acme_graphs.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    named = with_qnn()
    named.add_host_plugin("acme")

    found = [
        epctx.ModelCompiler(options, negations)
        .compile_to_file(tmp_path / "m_ctx.onnx")
        .partitions[0]
        .operators
        for options in (with_qnn(), named)
    ]

    monkeypatch.delitem(sys.modules, "acme_graphs")
    assert found == [("Neg", "Neg", "Relu", "Add"), ("Relu", "Relu", "Relu", "Add")]


@pytest.mark.parametrize(
    "use",
    [
        lambda options: options.add_graph_transformer(print),
        lambda options: options.add_session_config_entry(
            "session.graph_transformers", "acme"
        ),
    ],
)
def test_what_named_graph_transformers_before_says_what_to_use(use):
    with refused(InvalidArgument, "graph_transformer") as caught:
        use(epctx.SessionOptions())

    assert "transform_model" in caught.value.hint
