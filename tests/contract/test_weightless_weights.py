"""Weightless mode: which weights stay out of a payload, and how they are used."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import onnx
import pytest
from epctx_sim_openvino import OpenVinoProvider
from onnx import TensorProto, helper, numpy_helper
from support.agreement import TOLERANCE, worst_relative_error
from support.command_line import main
from support.engine_eps import Alpha
from support.onnxruntime_results import onnxruntime_says
from support.validating_eps import registry_with
from support.weightless import (
    ALL,
    EXTERNAL_ONLY,
    SIZE,
    Harness,
    attributes,
    metadata,
    with_openvino,
)

import epctx_core as epctx
from epctx_core.plugin import CompiledPartition, EPContextNode, WeightlessMode, hookimpl

OPENVINO = "OpenVINOExecutionProvider"


@pytest.fixture
def harness(tmp_path):
    return Harness(tmp_path)


# What stays out of the payload


def test_all_weights_stay_out_of_the_payload_the_small_ones_too(harness):
    harness.compile(ALL)

    assert harness.w.tobytes() not in harness.binary
    assert harness.b.tobytes() not in harness.binary


@pytest.mark.entry(131)
def test_only_external_ones_stay_out_and_the_source_model_is_not_needed(harness):
    harness.externalise()
    context = harness.compile(EXTERNAL_ONLY)

    assert harness.w.tobytes() not in harness.binary
    assert harness.b.tobytes() in harness.binary
    assert epctx.inspect_model(context).source_files == ("net.weights",)
    harness.check(harness.moved("net.weights"))


def test_without_external_weights_their_mode_leaves_nothing_out(harness):
    context = harness.compile(EXTERNAL_ONLY)

    assert harness.w.tobytes() in harness.binary
    assert "onnx_model_filename" not in attributes(context)[0]
    assert metadata(context)["weightless_mode"] == "1"
    harness.check(harness.moved())


def test_without_the_mode_nothing_is_left_out_and_nothing_is_said(harness):
    context = harness.compile(0)

    assert harness.w.tobytes() in harness.binary
    assert "weightless_mode" not in metadata(context)
    assert "source_weights" not in metadata(context)["epctx.manifest"]
    harness.check(harness.moved())


def test_what_the_ep_converts_stays_in_the_payload(harness):
    half = {"device_type": "GPU", "precision": "FP16"}
    context = harness.compile(ALL, options=half)

    assert harness.w.astype(np.float16).tobytes() in harness.binary
    assert "source_weights" not in metadata(context)["epctx.manifest"]
    with epctx.InferenceSession(harness.moved(), with_openvino(half)) as session:
        np.testing.assert_allclose(
            session.run(None, {"x": harness.x})[0], harness.expected, atol=0.1
        )


def test_a_weight_that_the_host_replaces_is_stored(harness):
    session = with_openvino(**{"ep.enable_weightless_mode": ALL})
    session.add_initializer("w", harness.w + 1)
    context = harness.folder / "net_ctx.onnx"
    epctx.ModelCompiler(session, harness.source).compile_to_file(context)

    assert set(epctx.inspect_model(context).manifest.source_weights) == {"b"}
    harness.w = harness.w + 1
    harness.check(context)


def test_what_an_optimiser_makes_stays_in_the_payload(harness):
    model = onnx.load(harness.source)
    model.graph.node[0].input[1] = "w2"
    model.graph.node.insert(
        0, helper.make_node("Mul", ["w", "two"], ["w2"], name="double")
    )
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    onnx.save(model, harness.source)

    context = harness.compile(
        graph_optimization_level=epctx.GraphOptimizationLevel.ORT_ENABLE_BASIC
    )

    assert (2 * harness.w).tobytes() in harness.binary
    assert set(epctx.inspect_model(context).manifest.source_weights) == {"b"}
    harness.w = 2 * harness.w
    harness.check(context)


@pytest.mark.parametrize("mode", [EXTERNAL_ONLY, ALL])
def test_the_same_source_gives_the_same_bytes_in_any_folder(tmp_path, mode):
    written = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        harness = Harness(tmp_path / name)
        harness.externalise()
        written.append((harness.compile(mode).read_bytes(), harness.binary))

    assert written[0] == written[1]
    assert all(str(tmp_path).encode() not in content for content in written[0])


def test_the_manifest_says_name_digest_and_extent(harness):
    weights = harness.externalise()
    found = epctx.inspect_model(harness.compile()).manifest.source_weights

    assert found["w"].digest == hashlib.sha256(harness.w.tobytes()).hexdigest()
    assert (found["w"].location, found["w"].shape, found["w"].nbytes) == (
        "net.weights",
        (SIZE, SIZE),
        harness.w.nbytes,
    )
    assert (
        weights.read_bytes()[found["w"].offset :][: harness.w.nbytes]
        == harness.w.tobytes()
    )
    assert (found["b"].location, found["b"].shape) == ("", (SIZE,))


@pytest.mark.parametrize("name", ["resnet", "lstm", "bert"])
@pytest.mark.parametrize("mode", [EXTERNAL_ONLY, ALL])
def test_networks_compiled_without_their_weights_agree_after_a_move(
    network, tmp_path, name, mode
):
    net = network(name)
    model = onnx.load(net.path)
    (tmp_path / "at home").mkdir()
    source = tmp_path / "at home" / "net.onnx"
    onnx.save(
        model,
        source,
        save_as_external_data=True,
        location="net.weights",
        size_threshold=1 << 14,
    )
    context = source.with_name("net_ctx.onnx")
    epctx.ModelCompiler(
        with_openvino(**{"ep.enable_weightless_mode": mode}), source
    ).compile_to_file()
    left = epctx.inspect_model(context).manifest.source_weights
    shutil.move(tmp_path / "at home", tmp_path / "far away")
    if mode == EXTERNAL_ONLY:
        (tmp_path / "far away" / "net.onnx").unlink()

    with epctx.InferenceSession(
        tmp_path / "far away" / "net_ctx.onnx", with_openvino()
    ) as session:
        found = session.run(None, net.inputs)

    assert worst_relative_error(found, net.reference) <= TOLERANCE
    assert left
    assert {bool(reference.location) for reference in left.values()} <= {
        True,
        mode == EXTERNAL_ONLY,
    }


def test_a_weight_that_only_a_body_reads_stays_out_too(harness):
    branch = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["t"], name="inside")],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, [2, SIZE])],
    )
    other = helper.make_graph(
        [helper.make_node("Add", ["x", "b"], ["e"], name="beside")],
        "else",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, [2, SIZE])],
    )
    graph = helper.make_graph(
        [
            helper.make_node(
                "If", ["c"], ["y"], name="choose", then_branch=branch, else_branch=other
            )
        ],
        "net",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, SIZE]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, SIZE])],
        [
            numpy_helper.from_array(harness.w, "w"),
            numpy_helper.from_array(harness.b, "b"),
        ],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )
    onnx.save(model, harness.source)

    harness.compile()
    left_out = harness.w.tobytes() not in harness.binary
    context = harness.moved("net.onnx")

    assert left_out
    with epctx.InferenceSession(context, with_openvino()) as session:
        (found,) = session.run(None, {"c": np.array(True), "x": harness.x})
    np.testing.assert_allclose(found, harness.x @ harness.w, rtol=1e-4, atol=1e-4)


# How it is used


def test_two_sessions_use_one_source_at_the_same_time(harness):
    context = harness.compile()

    with (
        epctx.InferenceSession(context, with_openvino()) as first,
        epctx.InferenceSession(context, with_openvino()) as second,
    ):
        harness.source.unlink()
        for session in (first, second):
            np.testing.assert_allclose(
                session.run(None, {"x": harness.x})[0], harness.expected, atol=1e-4
            )


class Noting:
    """A reader that keeps the tensors of the source that it gave."""

    def __init__(self, reader, given):
        self.source_tensor = lambda name: (
            given.append(reader.source_tensor(name)) or given[-1]
        )
        self.reader = reader

    def __getattr__(self, name):
        return getattr(self.reader, name)


def test_weights_are_used_where_they_lie(harness):
    weights, given = harness.externalise(), []

    class Watched(OpenVinoProvider):
        @hookimpl
        def load_context(self, nodes, reader):
            return super().load_context(nodes, Noting(reader, given))

    with epctx.InferenceSession(
        harness.compile(), with_openvino(), registry=registry_with(Watched)
    ) as session:
        session.run(None, {"x": harness.x})

    extents = {view.name: view.extent for view in given}
    assert not any(view.array().flags.owndata for view in given)
    assert extents["w"].file == str(weights)
    assert extents["b"].file == str(harness.source)
    assert (
        harness.source.read_bytes()[extents["b"].offset :][: extents["b"].length]
        == harness.b.tobytes()
    )


def test_inspection_shows_the_mode_and_what_is_required_of_the_source(harness):
    harness.externalise()

    info = epctx.inspect_model(harness.compile())

    assert info.weightless_mode == "2"
    assert (
        info.source_files == harness.report.source_files == ("net.onnx", "net.weights")
    )
    assert set(harness.report.required_files).isdisjoint(info.source_files)
    assert info.as_dict()["source_files"] == ["net.onnx", "net.weights"]


def test_onnxruntime_reads_it_up_to_the_ep(harness):
    assert OPENVINO in onnxruntime_says(harness.compile())


class Frugal(Alpha):
    """Alpha that leaves in the source what it may: its payload is a graph and, by
    place, names of weights.
    """

    name = "FrugalExecutionProvider"
    binary_suffix = "frugal"
    weightless_modes = (WeightlessMode.ALL,)

    @hookimpl
    def get_ep_context_nodes(self, writer):
        ((partition, _),) = self._compiled
        names = {key: writer.reference(view) for key, view in partition.weights.items()}
        payload = writer.payload()
        payload.write(json.dumps(names).encode() + b"\n")
        model = partition.model()
        kept = [t for t in model.graph.initializer if names[t.name] is None]
        del model.graph.initializer[:]
        model.graph.initializer.extend(kept)
        payload.write(model.SerializeToString())
        return [EPContextNode(partition, payload)]

    @hookimpl
    def load_context(self, nodes, reader):
        names, content = bytes(reader.payload(nodes[0]).view).split(b"\n", 1)
        model = onnx.load_from_string(content)
        for key, name in json.loads(names).items():
            model.graph.initializer.append(
                numpy_helper.from_array(reader.source_tensor(name).array(), key)
            )
        return [CompiledPartition(self.context.engine.prepare(model).run)]


def test_several_eps_leave_weights_in_one_source(harness):
    registry = epctx.Registry()
    registry.register(Frugal)
    options = epctx.SessionOptions()
    options.add_provider(Frugal.name)
    options.add_provider("OpenVINO")
    options.add_session_config_entry("ep.enable_weightless_mode", "2")
    context = harness.folder / "net_ctx.onnx"

    report = epctx.ModelCompiler(
        options, harness.source, registry=registry
    ).compile_to_file(context)

    assert {partition.ep for partition in report.partitions} == {Frugal.name, OPENVINO}
    assert {a["onnx_model_filename"] for a in attributes(context)} == {b"net.onnx"}
    assert set(epctx.inspect_model(context).manifest.source_weights) == {"w", "b"}
    assert all(
        harness.b.tobytes() not in path.read_bytes()
        for path in harness.folder.glob("*.bin")
    )
    with epctx.InferenceSession(
        harness.moved("net.onnx"), options, registry=registry
    ) as session:
        np.testing.assert_allclose(
            session.run(None, {"x": harness.x})[0], harness.expected, atol=1e-4
        )


def test_the_command_compiles_and_checks_it_in_another_folder(
    harness, tmp_path, capsys
):
    output = tmp_path / "out"
    output.mkdir()
    given = [
        "--ep",
        "OpenVINO",
        "-c",
        "ep.enable_weightless_mode=2",
        "-o",
        f"{output}/",
        "--check",
    ]

    assert main(["compile", str(harness.source), *given]) == 0

    assert "a load needs net.onnx beside the context model" in " ".join(
        capsys.readouterr().out.split()
    )


def test_the_command_shows_them_too(harness, capsys):
    context = harness.compile()

    assert main(["inspect", str(context)]) == 0

    assert "weightless mode 2: weights stay in the source model net.onnx" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_model_compiled_again_still_finds_its_weights(harness):
    first = harness.compile()
    again = harness.folder / "again_ctx.onnx"

    epctx.ModelCompiler(with_openvino(), first).compile_to_file(again)

    assert (
        epctx.inspect_model(again).manifest.source_weights
        == epctx.inspect_model(first).manifest.source_weights
    )
    harness.check(again)
