"""Real networks, compiled by an EP found through its entry point, moved, and run by another process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from agreement import TOLERANCE, worst_relative_error
from end_to_end.small_models import snapshot
from networks.catalog import EXPORTED, FILLED, LARGE

import epctx_core as epctx

RUN_MODEL = Path(__file__).with_name("run_model.py")
QNN = "QNNExecutionProvider"
NETWORKS = [
    *EXPORTED,
    *(pytest.param(name, marks=[pytest.mark.stress] if name in LARGE else []) for name in FILLED),
]
MODES = [pytest.param(False, id="file"), pytest.param(True, id="embedded")]


def with_qnn(**entries: str) -> epctx.SessionOptions:
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return options


def compiled_nodes(report: epctx.CompileReport) -> int:
    """Return how many nodes QNN took; a network of which it takes nothing shows nothing."""
    nodes = sum(partition.nodes for partition in report.partitions if partition.ep == QNN)
    assert nodes > 0
    return nodes


def run_elsewhere(model: Path, inputs: dict[str, np.ndarray], folder: Path) -> list[np.ndarray]:
    np.savez(folder / "inputs.npz", **inputs)
    subprocess.run(
        [sys.executable, str(RUN_MODEL), str(model), "inputs.npz", "outputs.npz"],
        check=True,
        cwd=folder,
        timeout=120,
    )
    with np.load(folder / "outputs.npz") as stored:
        return [stored[name] for name in stored.files]


def test_the_ep_is_found_by_its_entry_point():
    (record,) = [r for r in epctx.plugins() if r.name == QNN]

    assert record.distribution == "epctx-sim-qnn"
    assert QNN in epctx.get_available_providers()


@pytest.mark.parametrize("embedded", MODES)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_compiled_network_runs_elsewhere_without_its_source(network, tmp_path, name, embedded):
    source = network(name)
    built, moved, here = tmp_path / "built", tmp_path / "moved" / "far away", tmp_path / "here"
    for folder in (built, moved.parent, here):
        folder.mkdir()

    report = epctx.ModelCompiler(with_qnn(), source.path, embedded).compile_to_file(built / "net_ctx.onnx")
    built.rename(moved)
    shutil.rmtree(source.path.parent)
    outputs = run_elsewhere(moved / "net_ctx.onnx", source.inputs, here)

    assert worst_relative_error(outputs, source.reference) <= TOLERANCE
    assert compiled_nodes(report) + report.assignments["CPUExecutionProvider"] > 10
    files = {"net_ctx.onnx"} if embedded else {"net_ctx.onnx", "net_qnn.bin"}
    assert {path.name for path in moved.iterdir()} == files
    assert set(report.required_files) == files


@pytest.mark.parametrize("name", NETWORKS)
def test_most_of_a_network_is_in_its_context_nodes(network, tmp_path, name):
    source = network(name)
    graph = onnx.load(source.path).graph
    written = tmp_path / "net_ctx.onnx"

    report = epctx.ModelCompiler(with_qnn(), source.path).compile_to_file(written)

    left = onnx.load(written).graph
    contexts = [node for node in left.node if node.op_type == "EPContext"]
    assert len(contexts) == len(report.partitions) > 0
    assert len(left.node) - len(contexts) + compiled_nodes(report) == len(graph.node)
    assert [v.name for v in left.input] == [v.name for v in graph.input]
    assert [v.name for v in left.output] == [v.name for v in graph.output]


@pytest.mark.parametrize("embedded", MODES)
@pytest.mark.parametrize("name", ["bert", "lstm", "resnet"])
def test_the_session_options_write_the_same_bytes_as_the_compiler(network, tmp_path, name, embedded):
    source = network(name)
    by_options, by_compiler = tmp_path / "by options", tmp_path / "by compiler"
    by_options.mkdir()
    by_compiler.mkdir()
    options = with_qnn(
        ep__context_enable="1",
        ep__context_file_path=str(by_options / "net_ctx.onnx"),
        ep__context_embed_mode=str(int(embedded)),
    )

    with epctx.InferenceSession(source.path, options) as session:
        outputs = session.run(None, source.inputs)
    epctx.ModelCompiler(with_qnn(), source.path, embedded).compile_to_file(by_compiler / "net_ctx.onnx")

    assert snapshot(by_options) == snapshot(by_compiler)
    assert len(snapshot(by_options)) == (1 if embedded else 2)
    assert worst_relative_error(outputs, source.reference) <= TOLERANCE


def test_without_a_path_both_routes_write_beside_the_source(network):
    source = network("lstm")
    written = source.path.with_name("lstm_ctx.onnx")

    with epctx.InferenceSession(source.path, with_qnn(ep__context_enable="1")):
        first = written.read_bytes()
    report = epctx.ModelCompiler(with_qnn(), source.path).compile_to_file()

    assert report.output == written
    assert written.read_bytes() == first
    assert sorted(p.name for p in written.parent.iterdir()) == ["lstm.onnx", "lstm_ctx.onnx", "lstm_qnn.bin"]


@pytest.mark.parametrize("name", NETWORKS)
def test_original_compiled_and_loaded_session_agree(network, tmp_path, name):
    source = network(name, seed=3)
    written = tmp_path / "net_ctx.onnx"
    compiled_nodes(epctx.ModelCompiler(with_qnn(), source.path).compile_to_file(written))

    results = {}
    for kind, model, options in (
        ("original", source.path, None),
        ("compiled", source.path, with_qnn()),
        ("loaded", written, None),
    ):
        with epctx.InferenceSession(model, options) as session:
            results[kind] = session.run(None, source.inputs)
            assert (QNN in session.get_providers()) == (kind != "original")

    for outputs in results.values():
        assert worst_relative_error(outputs, source.reference) <= TOLERANCE


def test_a_session_answers_a_choice_of_outputs_in_the_order_asked_for(network):
    source = network("bert")
    with epctx.InferenceSession(source.path, with_qnn()) as session:
        names = [output.name for output in session.get_outputs()]
        every = session.run(None, source.inputs)

        backwards = session.run(names[::-1], source.inputs)
        none_named = session.run([], source.inputs)

    for one, other in zip(backwards[::-1], every, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(none_named) == len(every)
