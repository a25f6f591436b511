"""Entries 54 to 62 and 66 to 69: which EP loads which node, by which payload, and what
the host may forbid.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from contract.context_edits import by_qnn, context_nodes, edit, set_attributes
from onnx import helper
from support.engine_eps import Alpha, Beta, scripted
from support.routes import QNN, refused, with_qnn
from support.small_models import SHAPE, chain, example, saved, snapshot
from support.validating_eps import options_with, registry_with

import epctx_core as epctx
from epctx_core.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    ModelRequiresCompilation,
    RuntimeException,
)

MODES = pytest.mark.parametrize("embed", [False, True], ids=["file", "embedded"])


@pytest.fixture
def source(tmp_path):
    """A network of which QNN takes three parts: it has no Erf here."""
    return saved(
        chain(["Relu", "Add", "Erf", "Mul", "Erf", "Add"]), tmp_path / "m.onnx"
    )


@pytest.fixture
def lone(tmp_path):
    """A network that QNN takes whole."""
    return saved(chain(["Relu", "Add"]), tmp_path / "l.onnx")


def result(path, *eps, **entries):
    options = options_with(*eps, **entries)
    registry = {"registry": registry_with(*eps)} if eps else {}
    with epctx.InferenceSession(path, options, **registry) as session:
        return session.run(None, {"x": example()})[0]


# --- primaries and references ---------------------------------------------------------


@pytest.mark.entry(54)
@MODES
def test_an_ep_with_a_payload_for_each_node_loads_them_all(tmp_path, embed):
    source = saved(
        chain(["Neg", "Sigmoid", "Mul", "Sigmoid", "Relu"]), tmp_path / "m.onnx"
    )
    options = options_with(Beta)
    path = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(
        options, source, embed, registry=registry_with(Beta)
    ).compile_to_file(path)

    found = result(path, Beta)

    mains = [
        helper.get_node_attr_value(node, "main_context")
        for node in context_nodes(onnx.load(path))
    ]
    assert mains == [1, 1, 1]
    assert len([name for name in snapshot(tmp_path) if name.endswith(".bin")]) == (
        0 if embed else 3
    )
    assert np.allclose(found, result(source), atol=1e-6)


@pytest.mark.entry(55)
@MODES
def test_the_only_graph_of_a_payload_is_found_under_any_name(lone, embed):
    path = by_qnn(lone, embed=embed, bare=True)

    for change in (
        {"partition_name": "other"},
        {"partition_name": None},
        {"partition_name": ""},
    ):
        edit(
            path,
            lambda model, change=change: set_attributes(
                context_nodes(model)[0], **change
            ),
        )
        edit(path, lambda model: setattr(context_nodes(model)[0], "name", "renamed"))
        assert np.array_equal(result(path), result(lone))


@pytest.mark.entry(56)
@MODES
def test_of_several_graphs_each_is_found_by_partition_name_whatever_its_node_is_called(
    source, embed
):
    path = by_qnn(source, embed=embed)

    def rename(model):
        for number, node in enumerate(context_nodes(model)):
            node.name = f"renamed_{number}"

    edit(path, rename)

    assert np.allclose(result(path), result(source), atol=1e-6)


@pytest.mark.entry(57)
@MODES
@pytest.mark.parametrize("name", ["other", None])
def test_of_several_graphs_one_that_is_not_there_is_refused_with_those_that_are(
    source, embed, name
):
    path = by_qnn(source, embed=embed)
    graphs = [node.name for node in context_nodes(onnx.load(path))]

    def change(model):
        node = context_nodes(model)[1]
        set_attributes(node, partition_name=name)
        node.name = "a node"

    edit(path, change)

    with refused(
        InvalidGraph, "no payload of this EP holds a graph", node="a node", ep=QNN
    ) as caught:
        result(path)
    assert all(repr(graph) in str(caught.value) for graph in graphs)


@pytest.mark.entry(58)
@MODES
def test_a_primary_may_stand_behind_its_references(source, embed):
    path = by_qnn(source, embed=embed)

    def last(model):
        nodes = context_nodes(model)
        cache = helper.get_node_attr_value(nodes[0], "ep_cache_context")
        set_attributes(nodes[0], main_context=0, ep_cache_context=None)
        set_attributes(nodes[-1], main_context=1, ep_cache_context=cache)
        if embed:
            del model.metadata_props[:]

    edit(path, last)

    assert np.allclose(result(path), result(source), atol=1e-6)


@pytest.mark.entry(58)
def test_all_nodes_may_be_primaries_of_one_file(source):
    path = by_qnn(source)

    def all_main(model):
        for node in context_nodes(model):
            set_attributes(node, main_context=1, ep_cache_context=b"m_qnn.bin")

    edit(path, all_main)

    assert np.allclose(result(path), result(source), atol=1e-6)


@pytest.mark.entry(58)
@MODES
def test_references_without_a_primary_are_refused(source, embed):
    path = by_qnn(source, embed=embed)
    edit(
        path,
        lambda model: (
            [set_attributes(n, main_context=0) for n in context_nodes(model)] and None
        ),
    )
    name = context_nodes(onnx.load(path))[0].name

    with refused(
        InvalidGraph, "no EPContext node of QNN.* has main_context=1", node=name, ep=QNN
    ):
        result(path)


def test_primaries_come_before_references_wherever_they_stand(tmp_path):
    seen = []
    ep = scripted(load_context=lambda honest: honest())

    class Watching(ep):
        operators = frozenset({"Relu", "Neg", "Add"})

        def load_context(self, nodes, reader):
            seen.extend(node.main_context for node in nodes)
            return super().load_context(nodes, reader)

        load_context.epctx_impl = ep.load_context.epctx_impl

    source = saved(
        chain(["Relu", "Sigmoid", "Neg", "Sigmoid", "Add"]), tmp_path / "m.onnx"
    )
    path = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(
        options_with(Watching), source, registry=registry_with(Watching)
    ).compile_to_file(path)

    def last(model):
        first, *_, final = context_nodes(model)
        cache = helper.get_node_attr_value(first, "ep_cache_context")
        set_attributes(first, main_context=0, ep_cache_context=None)
        set_attributes(final, main_context=1, ep_cache_context=cache)

    edit(path, last)
    result(path, Watching)

    assert seen == [True, False, False]


@pytest.mark.parametrize("embedded_first", [True, False])
def test_embedded_payloads_and_files_may_stand_in_one_model(tmp_path, embedded_first):
    source = saved(chain(["Neg", "Sigmoid", "Mul"]), tmp_path / "m.onnx")
    path = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(
        options_with(Beta), source, registry=registry_with(Beta)
    ).compile_to_file(path)

    def embed_one(model):
        node = context_nodes(model)[0 if embedded_first else 1]
        name = helper.get_node_attr_value(node, "ep_cache_context").decode()
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        set_attributes(node, embed_mode=1, ep_cache_context=content)

    edit(path, embed_one)

    assert np.allclose(result(path, Beta), result(source), atol=1e-6)


@MODES
def test_of_qnn_too(tmp_path, embed):
    """Two models one behind the other, one embedded and one not."""
    paths = []
    for number, mode in enumerate((embed, not embed)):
        source = saved(
            chain(["Relu", "Add"], seed=number), tmp_path / f"m{number}.onnx"
        )
        paths.append((source, by_qnn(source, embed=mode)))
    parts = [
        onnx.compose.add_prefix(bare(path), f"p{n}_", rename_nodes=False)
        for n, (_, path) in enumerate(paths)
    ]
    joined = onnx.compose.merge_models(*parts, io_map=[("p0_y", "p1_x")])

    path = saved(joined, tmp_path / "glued_ctx.onnx")

    with epctx.InferenceSession(path) as session:
        found = session.run(None, {"p0_x": example()})[0]
    between = result(paths[0][0])
    with epctx.InferenceSession(paths[1][0]) as session:
        assert np.allclose(found, session.run(None, {"x": between})[0], atol=1e-6)


def bare(path):
    model = onnx.load(path)
    del model.metadata_props[:]
    return model


def test_an_ep_takes_what_it_wants_of_a_model_without_nodes(source):
    ep = scripted()

    assert np.allclose(result(source, ep), result(source), atol=1e-6)

    assert [call for call in ep.calls if call != "__init__"] == [
        "get_capability",
        "compile",
        "shutdown",
    ]


# --- what the host forbids or changes -------------------------------------------------


@pytest.mark.entry(66)
def test_one_set_of_options_compiles_explicitly_and_loads_but_never_compiles_in_a_session(
    source,
):
    options = with_qnn(session__disable_model_compile=1)
    path = source.with_name("m_ctx.onnx")

    with refused(
        ModelRequiresCompilation, f"{QNN} would have to compile", ep=QNN
    ) as caught:
        epctx.InferenceSession(source, options)
    epctx.ModelCompiler(options, source).compile_to_file(path)

    assert "epctx compile" in caught.value.hint
    assert options.get_session_config_entry("session.disable_model_compile") == "1"
    with epctx.InferenceSession(path, options) as session:
        assert session.run(None, {"x": example()})[0].shape == SHAPE


@pytest.mark.entry(66)
def test_a_model_that_no_ep_would_compile_runs_where_compiling_is_forbidden(tmp_path):
    source = saved(chain(["Erf"]), tmp_path / "m.onnx")

    with epctx.InferenceSession(
        source, with_qnn(session__disable_model_compile=1)
    ) as session:
        assert session.run(None, {"x": example()})[0].shape == SHAPE


@pytest.mark.entry(67)
def test_nodes_left_to_the_cpu_are_refused_where_falling_back_is_forbidden(
    source, lone
):
    with refused(
        Fail, r"\(Erf\) and 1 more are left to the CPU EP", ep="CPUExecutionProvider"
    ):
        result(by_qnn(source), session__disable_cpu_ep_fallback=1)

    assert result(by_qnn(lone), session__disable_cpu_ep_fallback=1).shape == SHAPE


def test_a_node_without_a_name_that_is_left_is_named_by_operator_and_index(tmp_path):
    model = chain(["Relu", "Erf"])
    model.graph.node[1].ClearField("name")
    source = saved(model, tmp_path / "m.onnx")

    with refused(Fail, r"node 'Erf_1' \(Erf\) is left to", node="Erf_1"):
        epctx.InferenceSession(source, with_qnn(session__disable_cpu_ep_fallback=1))


@pytest.mark.entry(68)
def test_an_ep_that_loads_and_cannot_run_says_so_at_run(tmp_path):
    class LoadsOnly(Alpha):
        name = "LoadsOnlyExecutionProvider"

        def _runnable(self, _model):
            def run(_inputs, _outputs=None):
                raise NotImplementedError("this EP only loads")

            return run

    source = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")
    path = tmp_path / "m_ctx.onnx"
    registry = registry_with(LoadsOnly)
    epctx.ModelCompiler(
        options_with(LoadsOnly), source, registry=registry
    ).compile_to_file(path)

    with (
        epctx.InferenceSession(path, registry=registry) as session,
        pytest.raises(RuntimeException, match="this EP only loads") as caught,
    ):
        session.run(None, {"x": example()})

    assert caught.value.ep == LoadsOnly.name
    assert caught.value.node == context_nodes(onnx.load(path))[0].name


@pytest.mark.entry(69)
@MODES
def test_dynamic_options_reach_an_ep_that_loaded_its_nodes(source, embed):
    with epctx.InferenceSession(by_qnn(source, embed=embed)) as session:
        for value in ("Default", "Efficient"):
            session.set_ep_dynamic_options({"ep.dynamic.workload_type": value})
        with refused(InvalidArgument, "wrong"):
            session.set_ep_dynamic_options({"ep.dynamic.workload_type": "wrong"})
        with refused(
            InvalidArgument,
            "'ep.dynamic.workload_typ'.*Did you mean 'ep.dynamic.workload_type'",
        ):
            session.set_ep_dynamic_options({"ep.dynamic.workload_typ": "Default"})

        assert session.run(None, {"x": example()})[0].shape == SHAPE


# --- models from bytes ----------------------------------------------------------------


def test_a_model_from_bytes_that_names_files_is_refused_before_any_ep_exists(
    tmp_path, monkeypatch
):
    ep = scripted()
    source = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")
    path = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(
        options_with(ep), source, registry=registry_with(ep)
    ).compile_to_file(path)
    ep.calls.clear()
    monkeypatch.chdir(tmp_path)  # where the file would be found by accident

    with refused(
        InvalidArgument, r"given as bytes.*'m_scripted\.bin'", folder=tmp_path
    ) as caught:
        epctx.InferenceSession(path.read_bytes(), registry=registry_with(ep))

    assert "'ep.context_file_path'" in caught.value.hint
    assert ep.calls == []


def test_a_reference_that_names_a_file_counts_too(source):
    path = by_qnn(source, embed=True)
    edit(
        path,
        lambda model: set_attributes(
            context_nodes(model)[1], embed_mode=0, ep_cache_context=b"a.bin"
        ),
    )

    with refused(InvalidArgument, "given as bytes.*'a.bin'"):
        epctx.InferenceSession(path.read_bytes())


def test_a_model_from_bytes_with_weights_in_files_needs_the_option_for_those(
    tmp_path, monkeypatch
):
    model = chain(["Erf", "Add"])
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(
            np.ones((64, 64), np.float32), model.graph.initializer[0].name
        )
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, [64, 64]))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, [64, 64]))
    path = tmp_path / "m.onnx"
    onnx.save(
        model, path, save_as_external_data=True, location="w.data", size_threshold=0
    )
    monkeypatch.chdir(tmp_path)

    with refused(InvalidArgument, r"'w\.data', and bytes have no folder") as caught:
        epctx.InferenceSession(path.read_bytes())

    assert "session.model_external_initializers_file_folder_path" in caught.value.hint
    options = options_with(
        session__model_external_initializers_file_folder_path=tmp_path
    )
    epctx.InferenceSession(path.read_bytes(), options).close()


@MODES
def test_a_model_from_bytes_that_names_nothing_needs_no_folder(lone, embed):
    path = by_qnn(lone, embed=True)
    entries = (
        {"ep__context_file_path": lone.parent / "no_such.onnx"} if not embed else {}
    )

    assert np.array_equal(result(path.read_bytes(), **entries), result(lone))


@pytest.mark.entry(70)
def test_an_openvino_ir_beside_the_model_passes_through_and_is_refused_by_name_when_it_is_loaded(
    lone,
):
    options = epctx.SessionOptions()
    options.add_provider("OpenVINO")
    path = lone.with_name("l_ctx.onnx")
    binary = epctx.ModelCompiler(options, lone).compile_to_file(path).outputs[0].path
    lone.with_name(binary).unlink()
    lone.with_name("l.xml").write_text(
        '<?xml version="1.0"?><net name="Model0" version="11"></net>'
    )

    def name_it(model):
        del model.metadata_props[:]
        set_attributes(context_nodes(model)[0], ep_cache_context=b"l.xml")

    edit(path, name_it)
    again = lone.with_name("again_ctx.onnx")

    report = epctx.ModelCompiler(options, path).compile_to_file(again)

    assert report.required_files == ("l.xml", "again_ctx.onnx")
    assert context_nodes(onnx.load(again)) == context_nodes(onnx.load(path))
    with refused(
        InvalidGraph, "real OpenVINO.*is simulated", ep="OpenVINOExecutionProvider"
    ):
        epctx.InferenceSession(again)


@MODES
@pytest.mark.parametrize("holders", [0, 2])
def test_a_reference_whose_graph_is_in_none_or_two_of_several_payloads_is_refused(
    tmp_path, embed, holders
):
    source = saved(chain(["Relu", "Erf", "Add", "Erf", "Mul"]), tmp_path / "m.onnx")
    path = by_qnn(source, embed=embed, bare=True)
    (tmp_path / "copy.bin").write_bytes(
        b"" if embed else (tmp_path / "m_qnn.bin").read_bytes()
    )
    graphs = [node.name for node in context_nodes(onnx.load(path))]

    def two_primaries(model):
        first, second, third = context_nodes(model)
        cache = (
            helper.get_node_attr_value(first, "ep_cache_context")
            if embed
            else b"copy.bin"
        )
        set_attributes(second, main_context=1, ep_cache_context=cache)
        if not holders:
            set_attributes(third, partition_name="nowhere")

    edit(path, two_primaries)

    said = "2 of its 2 payloads hold" if holders else "no payload of this EP holds"
    with refused(InvalidGraph, f"{said} a graph", node=graphs[2], ep=QNN) as caught:
        result(path)
    assert all(repr(graph) in str(caught.value) for graph in graphs)


def test_a_length_that_a_strangers_file_declares_falsely_is_the_files_fault_and_not_the_plugins(
    tmp_path,
):
    made = chain(["Relu", "Relu"])
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    made.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    options = epctx.SessionOptions()
    options.add_provider("OpenVINO")
    path = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(options, saved(made, tmp_path / "m.onnx")).compile_to_file(path)
    honest = result(path)
    edit(
        path,
        lambda model: (
            model.graph.output[0]
            .type.tensor_type.shape.dim[0]
            .__setattr__("dim_value", 77)
        ),
    )

    with pytest.raises(
        InvalidGraph, match=r"'y', and the context model declares float\[77,3\]"
    ) as caught:
        result(path)

    assert honest.shape == SHAPE
    assert caught.value.node == context_nodes(onnx.load(path))[0].name
    assert "changed after it was compiled" in caught.value.hint
