"""Graph transformers of a host and of packages: called in order before a model is
partitioned, and checked like EPs.
"""

from __future__ import annotations

import functools
import json
import logging
import sys

import numpy as np
import onnx
import pytest
from end_to_end.engine_eps import Alpha
from end_to_end.routes import refused, with_qnn, with_transformers
from end_to_end.small_models import chain, example, finished, saved, tensor
from installed import install_distribution
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx
from epctx_core import InvalidArgument, ModelLoadCanceled, PluginError
from epctx_core.errors import PackageMissing
from epctx_core.plugin import ComputeCapability, hookimpl

KEY = "session.graph_transformers"
LEVEL = epctx.GraphOptimizationLevel
PACKAGE = """
import os, time
from onnx import helper

def relu_for_neg(model, weights, level):
    for node in model.graph.node:
        node.op_type = "Relu" if node.op_type == "Neg" else node.op_type
    return model

def fail(model, weights, level):
    raise LookupError("its own words")

def crash(model, weights, level):
    os.abort()

def hang(model, weights, level):
    time.sleep(600)

nothing = 3
"""
ENTRIES = ("relu_for_neg", "fail", "crash", "hang", "nothing")


def without_negations(model, _weights, _level):
    """Neg(Neg(x)) is x."""
    kept = [n for n in model.graph.node if n.op_type != "Neg"]
    if len(kept) == len(model.graph.node):
        return None
    kept[0].input[0] = "x"
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


@pytest.fixture
def negations(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return saved(chain(["Neg", "Neg", "Relu", "Add"]), folder / "m.onnx")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package with transformers, as pip would leave it."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))
    modules = []

    def install(distribution, *names, code=PACKAGE):
        module = distribution.replace("-", "_")
        entries = {"epctx.graph_transformers": {n: f"{module}:{n}" for n in names}}
        install_distribution(site, distribution, entries, version="1.2")
        (site / f"{module}.py").write_text(code)
        modules.append(module)

    yield install
    for module in modules:
        sys.modules.pop(module, None)


# --- where they apply -----------------------------------------------------------------


def by_model_compiler(options, source, output):
    return (
        epctx.ModelCompiler(options, source).compile_to_file(output).graph_transformers
    )


def by_session(options, source, output):
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(output))
    epctx.InferenceSession(source, options).close()


def by_share_group(options, source, output):
    with epctx.ShareGroup(output.parent) as group:
        group.compile(source, options, name="m")
    return group.report.members[0].graph_transformers


def by_cache(options, source, output):
    output.write_bytes(
        epctx.compile_cached(
            source, options, cache_dir=output.parent / "cache"
        ).read_bytes()
    )


@pytest.mark.parametrize(
    "route", [by_model_compiler, by_session, by_share_group, by_cache]
)
def test_a_transformer_changes_the_model_that_an_ep_compiles(
    negations, tmp_path, monkeypatch, route
):
    monkeypatch.setattr(without_negations, "version", "1", raising=False)
    output = tmp_path / "m_ctx.onnx"

    reports = route(
        with_transformers(without_negations, ep__context_embed_mode=0),
        negations,
        output,
    )

    made = onnx.load(output, load_external_data=False)
    (manifest,) = [
        json.loads(e.value) for e in made.metadata_props if e.key == "epctx.manifest"
    ]
    ran = {
        "name": "without_negations",
        "distribution": None,
        "version": "1",
        "changed": True,
    }
    assert manifest["graph_transformers"] == [ran]
    assert [vars(report) for report in reports or ()] in ([], [ran])
    assert [node.op_type for node in made.graph.node] == ["EPContext"]


def test_a_session_that_compiles_runs_what_the_transformer_made_at_every_level(
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
    assert (
        "graph transformer noting (registered by the host): changed." in caplog.messages
    )


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

        note.name = label
        return note

    class Wishing(Alpha):
        name = "WishingExecutionProvider"

        @hookimpl
        def optimize_model(self, model):
            noting("the EP")(model, None, None)

    options = with_transformers(
        noting("first"), without_negations, noting("second"), "first", ep="Wishing"
    )
    registry = epctx.Registry(entry_points=False)
    registry.register(Wishing)
    report = epctx.ModelCompiler(options, negations, registry=registry).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )

    whole, rest = ["Neg", "Neg", "Relu", "Add"], ["Relu", "Add"]
    assert seen == [
        ("first", whole),
        ("second", rest),
        ("first", rest),
        ("the EP", rest),
    ]
    assert [(each.name, each.changed) for each in report.graph_transformers] == [
        ("first", False), ("without_negations", True), ("second", False),
        ("first", False),
    ]  # fmt: skip
    assert report.as_dict()["graph_transformers"][1] == {
        "name": "without_negations", "distribution": None, "version": None,
        "changed": True,
    }  # fmt: skip


def test_a_compiled_model_is_nobody_s_to_change_and_keeps_the_record_of_who_did(
    negations, tmp_path
):
    first, again = tmp_path / "m_ctx.onnx", tmp_path / "again_ctx.onnx"
    epctx.ModelCompiler(
        with_transformers(without_negations), negations
    ).compile_to_file(first)

    def refuse(*_given):
        raise AssertionError("called for a compiled model")

    named = with_transformers(refuse)
    epctx.InferenceSession(first, named).close()
    epctx.ModelCompiler(named, first).compile_to_file(again)
    not_installed = with_transformers("acme")
    epctx.InferenceSession(first, not_installed).close()

    records = epctx.inspect_model(again).manifest.graph_transformers
    assert [each["name"] for each in records] == ["without_negations"]


def test_a_context_model_says_nothing_of_transformers_where_none_was_called(
    negations, tmp_path
):
    epctx.ModelCompiler(with_qnn(), negations).compile_to_file(tmp_path / "m_ctx.onnx")

    assert b"graph_transformers" not in (tmp_path / "m_ctx.onnx").read_bytes()


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


def test_an_installed_one_is_blamed_with_its_package_and_version(
    negations, install, tmp_path
):
    install("acme-graphs", *ENTRIES)

    with refused(
        PluginError,
        r"fail \(acme-graphs 1.2\) failed in optimize_model: .*its own words",
    ) as caught:
        epctx.ModelCompiler(with_transformers("fail"), negations).compile_to_file(
            tmp_path / "m_ctx.onnx"
        )

    assert (caught.value.distribution, caught.value.version) == ("acme-graphs", "1.2")
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize(
    ("name", "code", "fault"),
    [
        (
            "fail",
            "import no_such_library",
            "failed in optimize_model: ModuleNotFoundError: .*no_such_library",
        ),
        ("gone", PACKAGE, "failed in optimize_model: AttributeError: .*gone"),
        (
            "nothing",
            PACKAGE,
            "failed in optimize_model: TypeError: 'int' object is not callable",
        ),
    ],
)
def test_one_that_cannot_be_imported_or_called_is_a_fault_of_its_package(
    negations, install, tmp_path, name, code, fault
):
    install("acme-graphs", name, code=code)

    with refused(
        PluginError, rf"{name} \(acme-graphs 1.2\) {fault}", distribution="acme-graphs"
    ):
        epctx.ModelCompiler(with_transformers(name), negations).compile_to_file(
            tmp_path / "m_ctx.onnx"
        )


def test_a_cancellation_is_seen_between_transformers(negations, tmp_path):
    def cancelling(_model, _weights, _level):
        options.set_load_cancellation_flag(True)

    def not_called(_model, _weights, _level):
        raise LookupError("its own words")

    options = with_transformers(cancelling, not_called)

    with pytest.raises(ModelLoadCanceled):
        epctx.ModelCompiler(options, negations).compile_to_file(tmp_path / "m_ctx.onnx")

    assert not (tmp_path / "m_ctx.onnx").exists()


# --- names ----------------------------------------------------------------------------


def test_an_installed_transformer_runs_only_where_it_is_named(
    negations, install, tmp_path
):
    install("acme-graphs", *ENTRIES)
    output = tmp_path / "m_ctx.onnx"

    without = epctx.ModelCompiler(with_qnn(), negations).compile_to_file(output)
    named = [
        epctx.ModelCompiler(options, negations).compile_to_file(output)
        for options in (
            with_transformers("relu_for_neg"),
            with_qnn(session__graph_transformers="relu_for_neg"),
            with_qnn(session__graph_transformers=" acme-graphs:relu_for_neg ,"),
        )
    ]

    assert without.partitions[0].operators == ("Neg", "Neg", "Relu", "Add")
    for report in named:
        assert report.partitions[0].operators == ("Relu", "Relu", "Relu", "Add")
        (ran,) = report.graph_transformers
        assert vars(ran) == {
            "name": "relu_for_neg", "distribution": "acme-graphs", "version": "1.2",
            "changed": True,
        }  # fmt: skip


def test_an_unknown_name_is_refused_before_the_model_is_read_with_the_nearest_one(
    install, tmp_path
):
    install("acme-graphs", *ENTRIES)

    with refused(
        PackageMissing, "'relu_for_negg' is not installed. Did you mean 'relu_for_neg'?"
    ) as caught:
        epctx.ModelCompiler(
            with_transformers("relu_for_negg"), tmp_path / "missing.onnx"
        ).compile_to_file()

    assert "crash, fail, hang, nothing, relu_for_neg" in caught.value.hint


def test_of_two_packages_with_one_name_the_host_chooses(negations, install, tmp_path):
    install("acme-graphs", *ENTRIES)
    install("other-graphs", "relu_for_neg")
    output = tmp_path / "m_ctx.onnx"

    with refused(
        InvalidArgument, "ambiguous: acme-graphs and other-graphs have it"
    ) as caught:
        epctx.ModelCompiler(
            with_transformers("relu_for_neg"), negations
        ).compile_to_file(output)
    chosen = with_transformers("other-graphs:relu_for_neg")
    report = epctx.ModelCompiler(chosen, negations).compile_to_file(output)

    assert "acme-graphs:relu_for_neg" in caught.value.hint
    assert [each.distribution for each in report.graph_transformers] == ["other-graphs"]


def test_an_object_of_the_host_goes_before_an_installed_transformer_of_its_name(
    negations, install, tmp_path
):
    install("acme-graphs", *ENTRIES)

    class Mine:
        name = "relu_for_neg"
        version = 7

        def __call__(self, model, weights, level):
            return without_negations(model, weights, level)

    report = epctx.ModelCompiler(with_transformers(Mine()), negations).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )

    assert [vars(each) for each in report.graph_transformers] == [
        {"name": "relu_for_neg", "distribution": None, "version": "7", "changed": True}
    ]


def test_the_entry_is_the_list_so_that_setting_it_replaces_what_was_added():
    options = with_transformers(without_negations, "acme")
    assert options.get_session_config_entry(KEY) == "without_negations,acme"
    assert options.graph_transformers == (
        ("without_negations", without_negations),
        ("acme", None),
    )

    copy = options.copy()
    copy.add_session_config_entry(KEY, "")

    assert copy.graph_transformers == ()
    assert len(options.graph_transformers) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        3,
        "",
        " ",
        "a,b",
        [without_negations],
        type("N", (), {"name": "x"})(),
        functools.partial(print),
    ],
)
def test_what_is_no_transformer_and_no_name_is_refused_at_once(wrong):
    with refused(
        InvalidArgument,
        "add_graph_transformer takes the name of a graph transformer or a function",
    ):
        epctx.SessionOptions().add_graph_transformer(wrong)


def test_two_objects_of_one_name_are_refused_and_one_may_be_added_twice():
    def negations():
        return None

    def other():
        return None

    other.name = "negations"
    options = with_transformers(negations, negations)

    with refused(InvalidArgument, "another object is called 'negations'"):
        options.add_graph_transformer(other)

    assert [name for name, _ in options.graph_transformers] == [
        "negations",
        "negations",
    ]


# --- out of process -------------------------------------------------------------------


def test_an_isolated_transformer_gives_the_same_files(negations, install, tmp_path):
    install("acme-graphs", *ENTRIES)
    written = []
    for isolation in ("", "compile"):
        folder = tmp_path / f"out{isolation}"
        options = with_transformers(
            "relu_for_neg", without_negations, ep__isolate=isolation
        )
        epctx.ModelCompiler(options, negations).compile_to_file(folder / "m_ctx.onnx")
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})

    assert written[0] == written[1]


def test_an_isolated_transformer_that_crashes_leaves_the_host_alive(
    negations, install, tmp_path
):
    install("acme-graphs", *ENTRIES)
    options = with_transformers("crash", ep=None, ep__isolate="compile")

    with refused(
        PluginError,
        r"crash \(acme-graphs 1.2\).*optimize_model",
        distribution="acme-graphs",
    ):
        epctx.ModelCompiler(options, negations).compile_to_file(tmp_path / "m_ctx.onnx")


@pytest.mark.parametrize(
    "entries",
    [
        {"ep__isolate": "compile", "ep__isolate_timeout_seconds": 1},
        {"ep__compile_timeout": 1},
    ],
    ids=["of a call", "of a compile"],
)
def test_an_isolated_transformer_that_takes_too_long_is_ended(
    negations, install, tmp_path, entries
):
    install("acme-graphs", *ENTRIES)
    options = with_transformers("hang", ep=None, **entries)

    with refused(
        PluginError,
        r"hang \(acme-graphs 1.2\).*optimize_model",
        distribution="acme-graphs",
    ):
        epctx.ModelCompiler(options, negations).compile_to_file(tmp_path / "m_ctx.onnx")
