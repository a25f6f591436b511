"""Parts of the source that a context model keeps and leaves out; and every write is
checked.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.command_line import main
from support.compiling import compiler, proto_of
from support.engine_eps import Alpha, scripted
from support.small_models import chain, example, finished, saved, snapshot, tensor
from support.validating_eps import session

import epctx_core as epctx
from epctx_core.plugin import hookimpl

LARGE = 2000


def described(path):
    """Write a model that says everything about itself that a model can; Alpha takes the
    first of three nodes.
    """
    weights = [
        numpy_helper.from_array(np.full(LARGE, number + 1, np.float32), name)
        for number, name in enumerate(["taken", "left"])
    ]
    weights[1].doc_string = "what stays"
    nodes = [
        helper.make_node("Add", ["x", "taken"], ["a"], name="add", doc_string="goes"),
        helper.make_node("Neg", ["a"], ["n"], name="neg", doc_string="stays"),
        helper.make_node("Mul", ["n", "left"], ["y"], name="mul"),
    ]
    inputs = [tensor("x", shape=["N"]), tensor("unused", TensorProto.INT64, [])]
    outputs = [tensor("y", shape=["N"]), tensor("n", shape=["N"])]
    for number, value in enumerate([*inputs, *outputs]):
        value.doc_string = f"value {number}"
    model = finished(nodes, inputs, outputs, weights)
    model.graph.name, model.graph.doc_string = "the graph", "about the graph"
    model.producer_name, model.producer_version = "a producer", "1.2"
    model.domain, model.model_version, model.doc_string = (
        "org.example",
        7,
        "about the model",
    )
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    helper.set_model_props(model, {"author": "somebody", "licence": "any"})
    helper.set_model_props(model.graph, {"graph": "property"}) if hasattr(
        model.graph, "metadata_props"
    ) else None
    return saved(model, path)


@pytest.fixture
def source(tmp_path):
    return described(tmp_path / "m.onnx")


@pytest.fixture(params=["file", "bytes", "embedded file", "session"])
def written(request, source):
    """Its context model, by every route that writes one."""
    output = source.with_name("m_ctx.onnx")
    entries = {"ep__context_file_path": output}
    if request.param == "session":
        session(source, Alpha, ep__context_enable=1, **entries).close()
        return onnx.load(output)
    made = compiler(
        source,
        Alpha,
        entries=entries,
        embed_compiled_data_into_model=request.param != "file",
    )
    return proto_of(
        made.compile_to_bytes()
        if request.param == "bytes"
        else made.compile_to_file().output
    )


def test_everything_that_a_model_says_about_itself_is_kept(source, written):
    before = onnx.load(source)

    for part in (
        "ir_version",
        "producer_name",
        "producer_version",
        "domain",
        "model_version",
        "doc_string",
    ):
        assert getattr(written, part) == getattr(before, part)
    assert (written.graph.name, written.graph.doc_string) == (
        "the graph",
        "about the graph",
    )
    assert list(written.graph.input) == list(before.graph.input)
    for output, declared in zip(written.graph.output, before.graph.output, strict=True):
        # Lengths that were proved are added.
        declared.type.tensor_type.shape.CopyFrom(output.type.tensor_type.shape)
        assert output == declared
    assert {o.domain: o.version for o in written.opset_import} == {
        "": 18,
        "ai.onnx.ml": 3,
        "com.microsoft": 1,
    }
    assert {p.key: p.value for p in before.metadata_props}.items() <= {
        p.key: p.value for p in written.metadata_props
    }.items()
    assert {p.key for p in written.metadata_props} == {
        "author",
        "licence",
        "epctx.manifest",
        "external_dependencies",
    }
    assert written.graph.metadata_props == before.graph.metadata_props


def test_nodes_and_initializers_that_stay_are_as_they_were(source, written):
    before = onnx.load(source)

    assert [n for n in written.graph.node if n.op_type != "EPContext"] == list(
        before.graph.node
    )[1:]
    assert list(written.graph.initializer) == [before.graph.initializer[1]]


def test_the_weights_that_an_ep_took_are_in_the_payload_alone(source, written):
    taken = numpy_helper.from_array(np.full(LARGE, 1, np.float32)).raw_data
    node = next(n for n in written.graph.node if n.op_type == "EPContext")
    attributes = {a.name: a for a in node.attribute}
    if attributes["embed_mode"].i == 1:
        attributes["ep_cache_context"].s = b""

    assert "taken" not in {t.name for t in written.graph.initializer}
    assert taken not in written.SerializeToString()


# --- progress -------------------------------------------------------------------------


def test_progress_names_the_stages_in_their_order_and_ends_each(source):
    calls = []

    compiler(source, Alpha, progress=lambda *call: calls.append(call)).compile_to_file()

    assert list(dict.fromkeys(stage for stage, _, _ in calls)) == [
        "read",
        "partition",
        "compile",
        "write",
    ]
    last = {stage: (done, total) for stage, done, total in calls}
    assert last == {
        "read": (1, 1),
        "partition": (1, 1),
        "compile": (1, 1),
        "write": (1, 1),
    }


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize(
    ("call", "said"),
    [((3, 1, 2), "name of a stage first, not 3"), (("tiles", "a", 2), "integer")],
)
def test_progress_of_an_ep_that_is_none_is_the_eps_mistake(source, shown, call, said):
    class Telling(Alpha):
        name = "TellingExecutionProvider"

        @hookimpl
        def compile(self, partitions):
            self.context.progress(*call)
            return super().compile(partitions)

    given = {"progress": lambda *_: None} if shown else {}

    with pytest.raises(epctx.EPFail, match=f"failed in compile: TypeError.*{said}"):
        compiler(source, Telling, **given).compile_to_file()


def test_progress_of_compiling_counts_partitions(tmp_path):
    source = saved(chain(["Relu", "Neg", "Relu", "Neg"]), tmp_path / "m.onnx")
    calls = []

    compiler(source, Alpha, progress=lambda *call: calls.append(call)).compile_to_file()

    assert [(done, total) for stage, done, total in calls if stage == "compile"] == [
        (0, 2),
        (2, 2),
    ]


@pytest.mark.parametrize("external", [False, True])
def test_progress_of_writing_counts_bytes_of_a_total_that_is_not_known(
    tmp_path, external
):
    weight = numpy_helper.from_array(np.ones((5 << 20, 1), np.float32), "w")
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [onnx.helper.make_tensor_value_info("x", 1, [1, 5 << 20])],
            [onnx.helper.make_tensor_value_info("y", 1, [1, 1])],
            [weight],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    source = tmp_path / "m.onnx"
    onnx.save(model, source, save_as_external_data=external, location="m.weights")
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    calls = []

    report = epctx.ModelCompiler(
        options, source, progress=lambda *call: calls.append(call)
    ).compile_to_file()

    size = sum(file.bytes for file in report.outputs)
    counts = [done for stage, done, total in calls if (stage, total) == ("write", 0)]
    assert size > 20 << 20
    assert 1 <= len(counts) <= size >> 23
    assert counts == sorted(set(counts))
    assert counts[0] >= 8 << 20
    assert 16 << 20 <= counts[-1] <= size
    assert calls[-1] == ("write", 1, 1)


# --- reports --------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["file", "bytes", "stream"])
def test_the_report_of_the_last_compile_is_the_compilers(source, route):
    made = compiler(source, Alpha, embed_compiled_data_into_model=True)
    assert made.report is None

    if route == "file":
        assert made.compile_to_file() is made.report
    else:
        made.compile_to_bytes() if route == "bytes" else made.compile_to_stream(
            lambda _chunk: None
        )
        assert made.report.output is None
        assert made.report.required_files == made.report.outputs == ()

    assert [p.ep for p in made.report.partitions] == [Alpha.name]
    assert made.report.as_dict()["output"] == (
        "m_ctx.onnx" if route == "file" else None
    )


def test_payloads_that_a_callback_got_are_reported_apart_from_files(source):
    made, got = compiler(source, Alpha), {}
    made.set_ep_context_data_write_func(
        lambda name, data: got.update({name: data.read()})
    )

    report = made.compile_to_file()

    assert report.required_files == ("m_ctx.onnx",)
    assert [(d.path, d.bytes) for d in report.delivered] == [
        (name, len(data)) for name, data in got.items()
    ]
    assert [d["path"] for d in report.as_dict()["delivered"]] == list(got)
    assert [d["path"] for d in report.as_dict()["files"]] == ["m_ctx.onnx"]
    assert sorted(snapshot(source.parent)) == ["m.onnx", "m_ctx.onnx"]


def test_options_are_copied_when_the_compiler_is_made(source):
    options = epctx.SessionOptions()
    options.add_provider(Alpha.name)
    registry = epctx.Registry(entry_points=False)
    registry.register(Alpha)
    made = epctx.ModelCompiler(options, source, registry=registry)

    options.add_session_config_entry("ep.context_embed_mode", "1")
    options.add_session_config_entry("ep.context_node_name_prefix", "late_")
    options.providers.clear()
    report = made.compile_to_file()

    assert [p.name.startswith("Alpha") for p in report.partitions] == [True]
    assert "m_alpha.bin" in report.required_files


# --- every write of the suite is looked at (tests/support/written_models.py) ------------------


@pytest.mark.parametrize("embedded", [True, False])
@pytest.mark.parametrize(
    "place", ["folder of the test", "scratch folder", "repository"]
)
def test_a_path_of_this_machine_in_an_output_fails_the_test_that_wrote_it(
    source, tmp_path, place, embedded
):
    path = {
        "folder of the test": tmp_path,
        "scratch folder": Path(tempfile.gettempdir()) / "epctx-x1y2z3",
        "repository": Path(__file__),
    }[place]

    def tell(honest, _writer):
        nodes = honest()
        nodes[0].payload.write(f"made in {path}".encode())
        return nodes

    with pytest.raises(
        pytest.fail.Exception, match="a path of the machine that wrote it"
    ):
        compiler(
            source,
            scripted(get_ep_context_nodes=tell),
            embed_compiled_data_into_model=embedded,
        ).compile_to_file()


def test_a_path_of_this_machine_in_the_model_itself_fails_the_test_that_wrote_it(
    source, tmp_path
):
    model = onnx.load(source)
    model.doc_string = f"exported to {tmp_path}"

    with pytest.raises(pytest.fail.Exception, match="the model holds"):
        compiler(saved(model, source), Alpha).compile_to_file()


def test_an_output_in_order_is_let_pass(source):
    report = compiler(source, Alpha).compile_to_file()

    with session(report.output, Alpha) as loaded:
        x = example(shape=(LARGE,))
        assert np.array_equal(
            loaded.run(["n"], {"x": x, "unused": np.array(0)})[0], -(x + 1)
        )


def in_a_group(path, options):
    with epctx.ShareGroup() as group:
        group.compile(path, options)


def by_a_session(path, options):
    options.add_session_config_entry("ep.context_enable", "1")
    epctx.InferenceSession(path, options)


EVERY_OTHER_WAY = {
    "bytes": lambda path, options: epctx.ModelCompiler(
        options, path, True
    ).compile_to_bytes(),
    "stream": lambda path, options: epctx.ModelCompiler(
        options, path, True
    ).compile_to_stream(bytes),
    "share group": in_a_group,
    "session": by_a_session,
    "cache": lambda path, options: epctx.load_or_compile(
        path, options, path.with_name("cache")
    ),
    "command line": lambda path, _options: main(["compile", str(path), "--ep", "QNN"]),
}


@pytest.mark.parametrize("way", EVERY_OTHER_WAY)
def test_what_is_written_in_another_way_is_looked_at_too(tmp_path, way):
    model = chain(["Relu", "Add"])
    model.doc_string = f"exported to {tmp_path}"
    options = epctx.SessionOptions()
    options.add_provider("QNN")

    with pytest.raises(pytest.fail.Exception, match="the model holds"):
        EVERY_OTHER_WAY[way](saved(model, tmp_path / "m.onnx"), options)


def test_payloads_for_the_hosts_function_are_looked_at_too(source, tmp_path):
    def tell(honest, _writer):
        nodes = honest()
        nodes[0].payload.write(f"made in {tmp_path}".encode())
        return nodes

    made = compiler(source, scripted(get_ep_context_nodes=tell))
    made.set_ep_context_data_write_func(lambda _name, _data: None)

    with pytest.raises(pytest.fail.Exception, match=r"m_scripted\.bin holds"):
        made.compile_to_bytes()
