"""Entries 1 to 28: context models out of paths and bytes, into files, bytes and
streams.
"""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.compiling import attribute, compiler, context_nodes, proto_of
from support.engine_eps import Alpha, Beta, scripted
from support.routes import refused
from support.small_models import chain, example, finished, saved, snapshot, tensor
from support.validating_eps import options_with, registry_with, session

import epctx_core as epctx
from epctx_core.errors import InvalidArgument
from epctx_core.plugin import Refusal, hookimpl, supported_partitions

TWO_PARTITIONS = ["Relu", "Add", "Neg", "Relu"]


@pytest.fixture
def source(tmp_path):
    """A model of which Alpha makes two partitions, alone in a folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    return saved(chain(TWO_PARTITIONS), folder / "m.onnx")


def result(model, *eps, feeds=None, **entries):
    with session(model, *(eps or (Alpha,)), **entries) as opened:
        return opened.run(None, feeds or {"x": example()})[0]


def plain(source, feeds=None):
    """Results of the source on the CPU EP."""
    return epctx.InferenceSession(source, epctx.SessionOptions()).run(
        None, feeds or {"x": example()}
    )[0]


# --- every way in and out -------------------------------------------------------------


@pytest.mark.entry(1, 12)
def test_a_model_from_a_path_becomes_a_file_that_loads_with_the_options_it_was_compiled_with(
    source,
):
    options, registry = options_with(Alpha), registry_with(Alpha)
    output = source.with_name("out_ctx.onnx")

    epctx.ModelCompiler(options, source, registry=registry).compile_to_file(output)

    assert len(context_nodes(output)) == 2
    with epctx.InferenceSession(output, options, registry=registry) as loaded:
        assert np.array_equal(loaded.run(None, {"x": example()})[0], plain(source))


@pytest.mark.entry(2, 11)
@pytest.mark.parametrize("embedded", [True, False])
def test_a_model_from_bytes_becomes_a_file_and_embedded_needs_no_other(
    source, tmp_path, embedded
):
    output = tmp_path / "out_ctx.onnx"

    compiler(
        source.read_bytes(), Alpha, embed_compiled_data_into_model=embedded
    ).compile_to_file(output)

    assert sorted(p.name for p in tmp_path.glob("out*")) == (
        ["out_ctx.onnx"] if embedded else ["out_alpha.bin", "out_ctx.onnx"]
    )
    assert np.array_equal(result(output), plain(source))


@pytest.mark.entry(3, 4, 10)
@pytest.mark.parametrize("given", [Path, Path.read_bytes], ids=["path", "bytes"])
def test_an_embedded_context_model_comes_as_bytes_that_load_and_no_file_appears(
    given, source, monkeypatch
):
    monkeypatch.chdir(source.parent)
    before = snapshot(source.parent)

    data = compiler(
        given(source), Alpha, embed_compiled_data_into_model=True
    ).compile_to_bytes()

    assert isinstance(data, bytes)
    assert len(context_nodes(data)) == 2
    assert np.array_equal(result(data), plain(source))
    assert snapshot(source.parent) == before


@pytest.mark.entry(5)
@pytest.mark.parametrize(
    ("name", "stem"),
    [("other.onnx", "other"), ("other_ctx.onnx", "other"), ("a.b.onnx", "a.b")],
)
def test_a_binary_of_a_model_in_bytes_goes_where_the_host_says(
    source, tmp_path, name, stem
):
    folder = tmp_path / "binaries"
    folder.mkdir()
    made = compiler(source.read_bytes(), Alpha)
    made.set_ep_context_binary_information(folder, name)

    data = made.compile_to_bytes()

    assert sorted(snapshot(folder)) == [f"{stem}_alpha.bin"]
    assert [f.path for f in made.report.outputs] == [f"{stem}_alpha.bin"]
    assert made.report.required_files == (f"{stem}_alpha.bin",)
    assert made.report.output is None
    assert made.report.folder == folder
    with pytest.raises(InvalidArgument, match="given as bytes"):
        result(data)
    loaded = result(data, ep__context_file_path=folder / "anything.onnx")
    assert np.array_equal(loaded, plain(source))


@pytest.mark.entry(5)
def test_the_option_names_folder_and_stem_of_a_binary_for_bytes_too(source, tmp_path):
    entries = {"ep__context_file_path": tmp_path / "net_ctx.onnx"}

    data = compiler(source, Alpha, entries=entries).compile_to_bytes()

    assert (tmp_path / "net_alpha.bin").exists()
    assert not (tmp_path / "net_ctx.onnx").exists()
    assert np.array_equal(result(data, **entries), plain(source))


@pytest.mark.entry(5)
@pytest.mark.parametrize("route", ["bytes", "stream"])
def test_a_binary_for_which_there_is_no_folder_is_refused_before_compiling(
    source, monkeypatch, route
):
    monkeypatch.chdir(source.parent)
    made = compiler(source, Alpha)

    with refused(
        InvalidArgument, "nothing says where its binary", folder=source.parent
    ) as caught:
        made.compile_to_bytes() if route == "bytes" else made.compile_to_stream(
            io.BytesIO().write
        )

    for way_out in (
        "ep.context_file_path",
        "embed_compiled_data_into_model",
        "set_ep_context_data_write_func",
    ):
        assert way_out in caught.value.hint
    assert made.report is None


@pytest.mark.parametrize("folder", ["model", "model/deep/er"])
def test_binaries_of_a_file_may_lie_in_a_sub_folder(source, tmp_path, folder):
    made = compiler(source, Alpha, Beta)
    made.set_ep_context_binary_information(tmp_path / folder, "v.onnx")
    sub = folder.removeprefix("model").lstrip("/")

    report = made.compile_to_file()

    names = {
        attribute(n, "ep_cache_context").decode()
        for n in context_nodes(report.output)
        if attribute(n, "main_context")
    }
    start = f"{sub}/" if sub else ""
    assert names == {f"{start}v_alpha.bin", f"{start}v_beta_0.bin"}
    assert names < set(report.required_files)
    assert all((source.parent / name).is_file() for name in names)
    assert np.array_equal(result(report.output, Alpha, Beta), plain(source))


def test_compiling_again_replaces_what_lies_in_the_sub_folder(source):
    for seed in (0, 1):
        saved(chain(TWO_PARTITIONS, seed=seed), source)
        made = compiler(source, Alpha)
        made.set_ep_context_binary_information(source.parent / "sub", "v.onnx")
        report = made.compile_to_file()

        assert np.array_equal(result(report.output), plain(source))


@pytest.mark.entry(7, 8, 9)
@pytest.mark.parametrize("size", [3, 1 << 14, 1 << 16, 300_000])
def test_a_stream_gets_the_model_in_pieces_of_64_kib_the_last_one_shorter(
    tmp_path, size
):
    source = saved(large(size), tmp_path / "m.onnx")
    pieces = []

    made = compiler(source, Alpha, embed_compiled_data_into_model=True)
    made.compile_to_stream(pieces.append)

    assert all(type(piece) is bytes and piece for piece in pieces)
    assert {len(piece) for piece in pieces[:-1]} <= {65_536}
    assert len(pieces[-1]) <= 65_536
    assert b"".join(pieces) == made.compile_to_bytes()
    assert np.array_equal(
        result(b"".join(pieces), feeds={"x": example(shape=(size,))}),
        plain(source, {"x": example(shape=(size,))}),
    )


def large(size):
    """Return Add, Neg and Mul, of which Alpha takes the first: one weight is taken, one
    is left.
    """
    weights = [
        numpy_helper.from_array(np.full(size, number, np.float32), f"w{number}")
        for number in (1, 2)
    ]
    nodes = [
        helper.make_node("Add", ["x", "w1"], ["a"], name="a"),
        helper.make_node("Neg", ["a"], ["b"], name="b"),
        helper.make_node("Mul", ["b", "w2"], ["y"], name="c"),
    ]
    return finished(
        nodes, [tensor("x", shape=[size])], [tensor("y", shape=[size])], weights
    )


def test_a_file_bytes_and_a_stream_have_the_same_content(tmp_path):
    source = saved(large(1 << 16), tmp_path / "m.onnx")
    made = compiler(source, Alpha, embed_compiled_data_into_model=True)
    stream = io.BytesIO()

    report = made.compile_to_file()
    made.compile_to_stream(stream.write)

    assert made.compile_to_bytes() == stream.getvalue() == report.output.read_bytes()


@pytest.mark.entry(20)
def test_a_plugin_ep_compiles_under_the_flag_that_something_must_be_compiled(source):
    flags = epctx.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED

    report = compiler(source, Alpha, flags=flags).compile_to_file()

    assert report.output.exists()
    assert report.partitions


@pytest.mark.entry(24)
def test_one_compiler_compiles_twice_to_two_outputs(source):
    made = compiler(source, Alpha)
    first = made.compile_to_file(source.with_name("a_ctx.onnx"))
    second = made.compile_to_file(source.with_name("b_ctx.onnx"))

    assert made.report is second
    assert np.array_equal(result(first.output), result(second.output))


@pytest.mark.entry(28)
def test_four_threads_compile_to_different_outputs_at_once(source):
    names = [f"{name}_ctx.onnx" for name in "abcd"]

    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda name: compiler(source, Alpha).compile_to_file(
                    source.with_name(name)
                ),
                names,
            )
        )

    for name in names:
        assert np.array_equal(result(source.with_name(name)), plain(source))


@pytest.mark.entry(28)
def test_of_threads_that_compile_to_one_output_the_last_one_wins_and_the_pair_fits(
    source, tmp_path
):
    others = [
        saved(chain(TWO_PARTITIONS, seed=seed), tmp_path / f"{seed}.onnx")
        for seed in range(4)
    ]
    output, together = tmp_path / "out_ctx.onnx", threading.Barrier(4)

    def compile_one(other):
        together.wait()
        compiler(other, Alpha).compile_to_file(output)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(compile_one, others))

    assert any(np.array_equal(result(output), plain(other)) for other in others)


# --- names and paths ------------------------------------------------------------------


@pytest.mark.entry(23)
@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("m2.onnx", "m2_ctx.onnx"),
        ("m2.ort_onnx", "m2_ctx.onnx"),
        ("a.b.onnx", "a.b_ctx.onnx"),
        ("m2", "m2_ctx.onnx"),
    ],
)
def test_the_default_output_has_the_inputs_name_without_its_last_extension(
    source, name, output
):
    source = source.rename(source.with_name(name))

    report = compiler(source, Alpha).compile_to_file()

    assert report.output == source.with_name(output)
    assert report.output.exists()


@pytest.mark.entry(25)
def test_paths_may_be_pathlike(source):
    class Place:
        def __init__(self, path):
            self.path = path

        def __fspath__(self):
            return str(self.path)

    output = source.with_name("out_ctx.onnx")

    compiler(Place(source), Alpha).compile_to_file(Place(output))

    assert output.exists()


@pytest.mark.entry(25)
@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_a_buffer_that_may_change_is_no_model(source, kind):
    with refused(InvalidArgument, f"not a {kind.__name__}") as caught:
        compiler(kind(source.read_bytes()), Alpha)

    assert "bytes(model)" in caught.value.hint


@pytest.mark.entry(26)
@pytest.mark.parametrize("through_a_link", [False, True])
def test_the_source_is_never_replaced_by_its_own_context_model(source, through_a_link):
    output = source
    if through_a_link:
        output = source.with_name("link.onnx")
        output.symlink_to(source.name)

    with refused(
        InvalidArgument, "would be written, but .* reads it", folder=source.parent
    ):
        compiler(source, Alpha).compile_to_file(output)


@pytest.mark.entry(27)
def test_names_with_spaces_and_letters_of_any_script_work(source, tmp_path):
    folder = tmp_path / "größe 模型"
    folder.mkdir()

    report = compiler(source, Alpha).compile_to_file(folder / "mein modèle_ctx.onnx")

    assert report.required_files == ("mein modèle_alpha.bin", "mein modèle_ctx.onnx")
    assert np.array_equal(result(report.output), plain(source))


@pytest.mark.entry(13)
@pytest.mark.parametrize(
    "name", ["set_provider_selection_policy", "set_provider_selection_policy_delegate"]
)
def test_eps_are_named_and_a_policy_is_refused_rather_than_ignored(name):
    with pytest.raises(AttributeError):
        getattr(epctx.SessionOptions(), name)


# --- models ---------------------------------------------------------------------------


@pytest.mark.entry(14)
@pytest.mark.parametrize(
    ("operators", "partitions"),
    [(["Neg", "Relu"], 1), (["Relu", "Neg", "Relu", "Neg"], 2)],
)
def test_the_session_route_keeps_the_cpu_nodes_beside_the_new_ones(
    tmp_path, operators, partitions
):
    source, output = (
        saved(chain(operators), tmp_path / "m.onnx"),
        tmp_path / "out_ctx.onnx",
    )

    session(source, Alpha, ep__context_enable=1, ep__context_file_path=output).close()

    assert [n.op_type for n in proto_of(output).graph.node].count(
        "Neg"
    ) == operators.count("Neg")
    assert len(context_nodes(output)) == partitions
    assert np.array_equal(result(output), plain(source))


@pytest.mark.entry(15, 19)
def test_inputs_of_different_types_keep_them(tmp_path):
    nodes = [
        helper.make_node("Cast", ["i"], ["c"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "c"], ["y"], name="add"),
    ]
    inputs = [tensor("x"), tensor("i", TensorProto.INT64)]
    source = saved(finished(nodes, inputs, [tensor("y")]), tmp_path / "m.onnx")
    feeds = {"x": example(), "i": np.arange(6).reshape(2, 3)}

    report = compiler(source, Alpha).compile_to_file()

    assert [
        i.type.tensor_type.elem_type for i in proto_of(report.output).graph.input
    ] == [
        TensorProto.FLOAT,
        TensorProto.INT64,
    ]
    assert np.array_equal(result(report.output, feeds=feeds), plain(source, feeds))


@pytest.mark.entry(16)
def test_inputs_and_outputs_stay_in_the_models_order(tmp_path):
    nodes = [
        helper.make_node("Relu", ["late"], ["r"], name="r"),
        helper.make_node("Add", ["early", "r"], ["sum"], name="s"),
        helper.make_node("Neg", ["sum"], ["first"], name="n"),
    ]
    graph = [tensor("early"), tensor("late")], [tensor("first"), tensor("r")]
    source = saved(finished(nodes, *graph), tmp_path / "m.onnx")

    report = compiler(source, Alpha).compile_to_file()

    written = proto_of(report.output).graph
    assert [v.name for v in written.input] == ["early", "late"]
    assert [v.name for v in written.output] == ["first", "r"]
    with session(report.output, Alpha) as loaded:
        assert [v.name for v in loaded.get_inputs()] == ["early", "late"]


@pytest.mark.entry(17, 18)
@pytest.mark.parametrize("embedded", [True, False])
@pytest.mark.parametrize("route", ["compiler", "session"])
def test_a_context_model_computes_what_its_source_does(source, route, embedded):
    output = source.with_name("out_ctx.onnx")
    mode = {"ep__context_embed_mode": int(embedded)}

    if route == "compiler":
        compiler(source, Alpha, entries=mode).compile_to_file(output)
    else:
        session(
            source, Alpha, ep__context_enable=1, ep__context_file_path=output, **mode
        ).close()

    assert source.with_name("out_alpha.bin").exists() is not embedded
    assert np.array_equal(result(output), plain(source))
    from_bytes = {} if embedded else {"ep__context_file_path": output}
    assert np.array_equal(result(output.read_bytes(), **from_bytes), plain(source))


@pytest.mark.entry(21)
@pytest.mark.parametrize(
    ("level", "casts"), [("ORT_DISABLE_ALL", 3), ("ORT_ENABLE_BASIC", 2)]
)
def test_the_optimisation_level_is_that_of_the_compiler(tmp_path, level, casts):
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="r"),
        helper.make_node("Cast", ["r"], ["same"], name="c0", to=TensorProto.FLOAT),
        helper.make_node("Cast", ["same"], ["half"], name="c1", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["half"], ["y"], name="c2", to=TensorProto.FLOAT),
    ]
    source = saved(finished(nodes, [tensor("x")], [tensor("y")]), tmp_path / "m.onnx")

    given = (
        {}
        if level == "ORT_DISABLE_ALL"
        else {"graph_optimization_level": epctx.GraphOptimizationLevel[level]}
    )
    report = compiler(source, Alpha, **given).compile_to_file()

    assert [n.op_type for n in proto_of(report.output).graph.node].count(
        "Cast"
    ) == casts


@pytest.mark.entry(22)
def test_an_outer_initializer_that_only_a_body_reads_is_kept(tmp_path):
    weight = numpy_helper.from_array(np.full((2, 3), 3, np.float32), "outer")
    branches = {
        name: helper.make_graph(
            [helper.make_node("Mul", ["r", "outer"], [name], name=name)],
            name,
            [],
            [tensor(name)],
        )
        for name in ("then_branch", "else_branch")
    }
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("If", ["c"], ["y"], name="if", **branches),
    ]
    inputs = [tensor("x"), tensor("c", TensorProto.BOOL, [])]
    source = saved(
        finished(nodes, inputs, [tensor("y")], [weight]), tmp_path / "m.onnx"
    )
    feeds = {"x": example(), "c": np.array(True)}

    report = compiler(source, Alpha).compile_to_file()

    assert len(context_nodes(report.output)) == 1
    assert [t.name for t in proto_of(report.output).graph.initializer] == ["outer"]
    assert np.array_equal(result(report.output, feeds=feeds), plain(source, feeds))


@pytest.mark.entry(6)
def test_a_file_of_initializers_for_which_there_is_no_folder_is_refused_before_compiling(
    source, monkeypatch
):
    monkeypatch.chdir(source.parent)
    ep = scripted()
    made = compiler(
        source,
        ep,
        embed_compiled_data_into_model=True,
        external_initializers_file_path="net.data",
    )

    with refused(
        InvalidArgument, "nothing says where its initializers", folder=source.parent
    ) as caught:
        made.compile_to_bytes()

    assert "ep.context_file_path" in caught.value.hint
    assert "embed_compiled_data_into_model" not in caught.value.hint
    assert "compile" not in ep.calls


@pytest.mark.entry(6)
@pytest.mark.parametrize("embedded", [True, False])
def test_bytes_with_a_file_of_initializers_have_it_in_the_folder_of_the_option(
    tmp_path, embedded
):
    source = saved(large(3000), tmp_path / "m.onnx")
    folder = tmp_path / "out"
    folder.mkdir()
    made = compiler(
        source,
        Alpha,
        entries={"ep__context_file_path": folder / "net_ctx.onnx"},
        embed_compiled_data_into_model=embedded,
        external_initializers_file_path="net.data",
    )

    data = made.compile_to_bytes()

    expected = ["net.data"] if embedded else ["net.data", "net_alpha.bin"]
    assert sorted(snapshot(folder)) == sorted(made.report.required_files) == expected
    source.unlink()
    (folder / "net_ctx.onnx").write_bytes(data)
    feeds = {"x": example(shape=(3000,))}
    assert np.array_equal(
        result(folder / "net_ctx.onnx", feeds=feeds), -(feeds["x"] + 1) * 2
    )
    onnx.checker.check_model(str(folder / "net_ctx.onnx"))


def test_the_report_has_no_refusals_of_bodies_that_an_ep_takes_with_their_node(
    tmp_path,
):
    class Whole(Alpha):
        name = "WholeExecutionProvider"

        @hookimpl
        def get_capability(self, graph):
            if graph.parent_node is not None:
                return [Refusal("it is in an If that is taken whole", graph.nodes)]
            return supported_partitions(graph, lambda node: node.op_type == "If")

    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (bool c, float[2] x) => '
        "(float[2] y, float[2] z) { y = If (c) <then_branch = t () => (float[2] p) "
        "{ p = Relu(x) }, else_branch = e () => (float[2] q) { q = Neg(x) }> "
        "z = Abs(x) }"
    )

    report = compiler(saved(model, tmp_path / "m.onnx"), Whole).compile_to_file()

    assert report.assignments == {Whole.name: 3, "CPUExecutionProvider": 1}
    assert [refusal.operators for refusal in report.refusals] == [("Abs",)]
