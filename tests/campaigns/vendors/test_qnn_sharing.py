"""Share groups of Qualcomm's EP: one binary for several models, of the size of
onnxruntime's own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from epctx_native_formats import describe_binary
from onnx import TensorProto, helper, numpy_helper
from support.vendor_routes import make_qnn_session_options as options_for
from support.vendors_onnxruntime import qnn_options
from vendors.vendor_networks import network

import epctx_core as epctx

HOST = Path(__file__).with_name("sharing_host.py")
PAGE = 4096
HEADS, WIDTH, PAST, LAYERS = 4, 128, 32, 2


def make_language_model(length, seed=0):
    """Return layers of attention over a cache and the tokens of one call, whose weights
    do not depend on their number.
    """
    generator = np.random.default_rng(seed)
    head = WIDTH // HEADS
    nodes, weights = [], []

    def add(operator, *inputs, **attributes):
        name = f"{operator}_{len(nodes)}"
        nodes.append(
            helper.make_node(operator, inputs, [name], name=name, **attributes)
        )
        return name

    def weight(*shape):
        array = generator.normal(size=shape) / np.sqrt(shape[0])
        weights.append(
            numpy_helper.from_array(array.astype(np.float32), f"w{len(weights)}")
        )
        return weights[-1].name

    def constant(values):
        array = np.array(values, np.int64)
        weights.append(numpy_helper.from_array(array, f"w{len(weights)}"))
        return weights[-1].name

    split = constant([1, length, HEADS, head])
    joined = constant([1, length, WIDTH])
    value, inputs = "x", [("x", [1, length, WIDTH])]
    for layer in range(LAYERS):
        cached = []
        for kind in ("key", "value"):
            past = f"past_{layer}_{kind}"
            inputs.append((past, [1, HEADS, PAST, head]))
            made = add("MatMul", value, weight(WIDTH, WIDTH))
            made = add("Transpose", add("Reshape", made, split), perm=[0, 2, 1, 3])
            cached.append(add("Concat", past, made, axis=2))
        query = add("MatMul", value, weight(WIDTH, WIDTH))
        query = add("Transpose", add("Reshape", query, split), perm=[0, 2, 1, 3])
        keys = add("Transpose", cached[0], perm=[0, 1, 3, 2])
        attention = add("Softmax", add("MatMul", query, keys), axis=-1)
        mixed = add("MatMul", attention, cached[1])
        mixed = add("Reshape", add("Transpose", mixed, perm=[0, 2, 1, 3]), joined)
        value = add("Add", value, mixed)
        wide = add("Relu", add("MatMul", value, weight(WIDTH, 4 * WIDTH)))
        value = add("Add", value, add("MatMul", wide, weight(4 * WIDTH, WIDTH)))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, length, WIDTH])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def ask_onnxruntime(command, *arguments):
    """Return what a host of unmodified onnxruntime says."""
    done = subprocess.run(
        [sys.executable, HOST, command, *map(str, arguments)],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def share(folder, sources):
    """Compile a share group; return its report."""
    with epctx.ShareGroup(output_dir=folder) as group:
        for source in sources:
            group.compile(source, options_for())
    return group.report


def graphs_of(path):
    """Return the names of the graphs that a context model's nodes name."""
    return [
        attribute.s.decode()
        for node in onnx.load(path, load_external_data=False).graph.node
        for attribute in node.attribute
        if attribute.name == "partition_name"
    ]


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """Return the paths of five stages of a language model with equal weights."""
    folder = tmp_path_factory.mktemp("stages")
    paths = []
    for length in (64, 1, 16, 2, 32):
        paths.append(folder / f"stage_{length}.onnx")
        onnx.save(make_language_model(length), paths[-1])
    return paths


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_group_has_one_binary_of_the_size_of_onnxruntimes_own(
    stages, count, tmp_path
):
    own = tmp_path / "own"
    own.mkdir()

    report = share(tmp_path / "out", stages[:count])

    (binary,) = report.binaries
    expected = ask_onnxruntime("compile", own, *stages[:count])
    assert abs(binary.bytes - expected) <= PAGE
    named = [name for m in report.members for name in graphs_of(m.output)]
    description = describe_binary(report.folder / binary.path)
    assert sorted(graph.name for graph in description.graphs) == sorted(named)
    for member in report.members:
        verified = epctx.verify_model(member.output)
        assert (verified.ok, verified.checked) == (True, True), verified.findings


@pytest.fixture(scope="module")
def berts(tmp_path_factory):
    """Return the paths of two encoders of equal weights but for one."""
    folder = tmp_path_factory.mktemp("berts")
    model = onnx.ModelProto.FromString(network("bert").model)
    paths = [folder / "bert_0.onnx", folder / "bert_1.onnx"]
    onnx.save(model, paths[0])
    last = max(
        (t for t in model.graph.initializer if len(t.dims) == 2),
        key=lambda tensor: len(tensor.raw_data),
    )
    last.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(last) * 2, last.name))
    onnx.save(model, paths[1])
    return paths


def test_two_encoders_have_one_binary_of_the_size_of_onnxruntimes_own(berts, tmp_path):
    own = tmp_path / "own"
    own.mkdir()

    report = share(tmp_path / "out", berts)

    expected = ask_onnxruntime("compile", own, *berts)
    assert abs(report.binaries[0].bytes - expected) <= PAGE


def test_two_models_that_share_nothing_have_one_binary_too(tmp_path):
    sources = []
    for name in ("bert", "lstm"):
        sources.append(tmp_path / f"{name}.onnx")
        sources[-1].write_bytes(network(name).model)

    report = share(tmp_path / "out", sources)

    assert len(report.binaries) == 1
    assert all(epctx.verify_model(member.output).ok for member in report.members)


def test_prefill_and_decode_take_little_more_than_one_stage(stages, tmp_path):
    report = share(tmp_path / "out", stages[:2])

    alone = epctx.ModelCompiler(options_for(), stages[0]).compile_to_file(
        tmp_path / "alone_ctx.onnx"
    )
    size = max(file.bytes for file in alone.outputs)
    assert report.binaries[0].bytes <= 1.1 * size


def test_the_order_of_models_changes_no_graph(stages, tmp_path):
    forwards = share(tmp_path / "a", stages[:3])
    backwards = share(tmp_path / "b", stages[2::-1])

    for member in forwards.members:
        name = member.output.name
        assert graphs_of(member.output) == graphs_of(backwards.folder / name)


def test_a_model_that_is_in_a_group_twice_is_in_the_binary_once(stages, tmp_path):
    with epctx.ShareGroup(output_dir=tmp_path) as group:
        group.compile(stages[0], options_for(), name="one")
        group.compile(stages[0], options_for(), name="two")

    (binary,) = group.report.binaries
    assert len(describe_binary(tmp_path / binary.path).graphs) == 1
    first, second = (member.output for member in group.report.members)
    assert graphs_of(first) == graphs_of(second)


def test_session_options_drive_a_group_which_is_written_with_its_last_model(
    stages, tmp_path
):
    first, second = (tmp_path / f"{path.stem}_ctx.onnx" for path in stages[:2])
    epctx.ModelCompiler(options_for(share_ep_contexts="1"), stages[0]).compile_to_file(
        first
    )
    assert list(tmp_path.glob("*.bin")) == []

    options = options_for(share_ep_contexts="1", stop_share_ep_contexts="1")
    epctx.ModelCompiler(options, stages[1]).compile_to_file(second)

    (binary,) = tmp_path.glob("*.bin")
    named = graphs_of(first) + graphs_of(second)
    assert {graph.name for graph in describe_binary(binary).graphs} == {*named}
    assert all(epctx.verify_model(path).ok for path in (first, second))


def test_a_model_that_fails_leaves_nothing_in_the_binary(stages, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")

    with epctx.ShareGroup(output_dir=tmp_path / "out") as group:
        group.compile(stages[0], options_for())
        with pytest.raises(epctx.EpctxError):
            group.compile(broken, options_for())
        group.compile(stages[1], options_for())

    assert len(group.report.members) == 2
    (binary,) = group.report.binaries
    assert len(describe_binary(group.report.folder / binary.path).graphs) == 2


def test_a_second_group_in_a_folder_has_a_binary_of_its_own(stages, tmp_path):
    one, two = share(tmp_path, stages[:2]), share(tmp_path, stages[2:4])

    names = [report.binaries[0].path for report in (one, two)]
    assert len({*names}) == 2
    for member in (*one.members, *two.members):
        assert epctx.verify_model(member.output).ok


@pytest.mark.parametrize("seconds", [0.3, 0.6, 1.0, 1.5])
def test_a_kill_leaves_nothing_or_the_whole_group(stages, tmp_path, seconds):
    code = (
        "import sys; from pathlib import Path; from vendors import test_qnn_sharing as "
        "here\nprint('begin', flush=True)\n"
        "here.share(sys.argv[1], map(Path, sys.argv[2:]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "out", *stages[:2]],
        env={"PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)

    left = {path.name for path in (tmp_path / "out").glob("*")}
    whole = {f"{path.stem}_ctx.onnx" for path in stages[:2]}
    found = {name for name in left if name.endswith(".onnx")}
    assert found in (set(), whole)
    if not found:
        # Another compile there does what is left to do.
        share(tmp_path / "out", stages[:2])
    for name in whole:
        assert epctx.verify_model(tmp_path / "out" / name).ok


def test_the_simulator_refuses_a_shared_binary_with_one_typed_error(stages, tmp_path):
    report = share(tmp_path, stages[:2])

    for member in report.members:
        with pytest.raises(epctx.InvalidGraph) as caught:
            epctx.InferenceSession(member.output, options_for())
        assert "QNN_COMMON_ERROR_NOT_SUPPORTED" in caught.value.message
        for part in ("simulator", "ep.share_ep_contexts=1", "without a share group"):
            assert part in caught.value.hint


def test_unmodified_onnxruntime_gets_what_it_gets_from_its_own_files(stages, tmp_path):
    share(tmp_path / "out", stages[:2])
    (tmp_path / "own").mkdir()
    ask_onnxruntime("compile", tmp_path / "own", *stages[:2])

    refusals = set()
    for folder in ("out", "own"):
        first = tmp_path / folder / "first.onnx"
        first.write_bytes(network("lstm").model)
        for path in (tmp_path / folder).glob("*_ctx.onnx"):
            error = ask_onnxruntime("load", path)
            refusals.add(error.partition("contextCreateFromBinary")[2])

    (refusal,) = refusals
    assert "QNN_COMMON_ERROR_NOT_SUPPORTED" in refusal


def test_a_load_passes_the_option_on_and_computes_the_same(tmp_path, monkeypatch):
    source, inputs = network("two_parts")
    path = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(options_for(), source).compile_to_file(path)
    entries = []
    add = onnxruntime.SessionOptions.add_session_config_entry

    def spy(options, key, value):
        entries.append((key, value))
        add(options, key, value)

    monkeypatch.setattr(onnxruntime.SessionOptions, "add_session_config_entry", spy)
    results = []
    for entry in ({}, {"share_ep_contexts": "1"}):
        entries.clear()
        with epctx.InferenceSession(path, options_for(**entry)) as session:
            results.append(session.run(None, inputs))
        nodes = len(graphs_of(path))
        passed = entries.count(("ep.share_ep_contexts", "1"))
        assert passed == (nodes if entry else 0)

    for alone, shared in zip(*results, strict=True):
        np.testing.assert_array_equal(alone, shared)


def test_a_group_for_several_socs_is_refused_in_the_vendors_words(stages, tmp_path):
    targets = {"soc_model": "60,69", "htp_arch": "73,79"}
    options = options_for({**qnn_options(), **targets})

    with (
        pytest.raises(epctx.EpctxError, match="currently unsupported with shared EP"),
        epctx.ShareGroup(output_dir=tmp_path) as group,
    ):
        for source in stages[:2]:
            group.compile(source, options)

    assert list(tmp_path.iterdir()) == []
