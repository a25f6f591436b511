"""Three EPs that know the contract and nothing else: over a Python package, a native
library, a command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from contract import npuc
from contract.command_line_compiler import CommandLineProvider
from contract.openvino_package import OpenVinoPackageProvider
from contract.ort_plugin_ep import OrtPluginProvider
from onnx import TensorProto, helper
from support.agreement import TOLERANCE, worst_relative_error
from support.contract_eps import Harness, convolutional_network, negation, one_at_a_time
from support.networks.catalog import run_onnxruntime

import epctx_core as epctx
from epctx_core.testing import Requirements, check_provider

EPS = ("openvino", "ort_cpu", "command_line")
CANNOT = {
    # It exports other bytes each time.
    "openvino": {"deterministic": False, "weight_sharing": False},
    "ort_cpu": {"weight_sharing": False},
    "command_line": {"share_groups": False, "in_process": False},
}
"""Requirements that they declare not to meet."""
SAMPLE = {
    "openvino": ("signatures", "claims", "nodes", "sharing", "payloads"),
    "ort_cpu": ("signatures", "claims", "nodes", "sharing", "payloads"),
    # Each compile starts a program.
    "command_line": ("signatures", "claims", "partitions"),
}
"""Groups of checks; the first two run with every suite."""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    """Give the path of a compiler; it writes the file `started` beside it when it hangs
    on a Tan.
    """
    return npuc.install(tmp_path_factory.mktemp("npuc"))


@pytest.fixture(scope="module")
def harness_of(compiler):
    """Make harnesses by the EP's short name."""

    def make(ep):
        if ep == "openvino":
            return Harness(provider=OpenVinoPackageProvider)
        if ep == "ort_cpu":
            return Harness(provider=OrtPluginProvider)
        return Harness(
            provider=CommandLineProvider, options={"compiler": str(compiler)}
        )

    return make


@pytest.fixture(params=EPS)
def harness(request, harness_of):
    return harness_of(request.param)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Give a model file, inputs and onnxruntime's results."""
    path = tmp_path_factory.mktemp("example") / "net.onnx"
    onnx.save(convolutional_network(), path)
    x = np.random.Generator(np.random.PCG64(1)).standard_normal(
        (2, 3, 8, 8), dtype=np.float32
    )
    return path, {"x": x}, run_onnxruntime(path, {"x": x})


@pytest.fixture
def model(example, tmp_path):
    """Give a test's own copy of the model."""
    return Path(shutil.copy(example[0], tmp_path))


def test_a_session_compiles_and_runs_both_pieces(harness, example, model):
    _, inputs, reference = example

    results = harness.run(model, inputs)

    assert worst_relative_error(results, reference) < TOLERANCE


def test_a_real_network_gives_onnxruntimes_results(harness, network):
    resnet = network("resnet")

    results = harness.run(resnet.path, resnet.inputs)

    assert worst_relative_error(results, resnet.reference) < TOLERANCE


def test_a_compiled_network_runs_without_being_compiled_again(harness, network):
    resnet = network("resnet")
    context, _ = harness.compile(resnet.path)
    resnet.path.unlink()

    results = harness.run(context, resnet.inputs)

    assert worst_relative_error(results, resnet.reference) < TOLERANCE


def test_both_pieces_share_one_binary(harness, example, model):
    context, report = harness.compile(model)

    results = harness.run(context, example[1])

    operators = [p.operators for p in report.partitions]
    assert operators == [("Conv", "Relu"), ("GlobalAveragePool", "Flatten", "Gemm")]
    assert len(report.outputs) == 2
    assert worst_relative_error(results, example[2]) < TOLERANCE


def test_payloads_inside_the_model_need_no_file(harness, example, model):
    context, _ = harness.compile(model, embed=True)

    results = harness.run(context.read_bytes(), example[1])

    assert sorted(p.name for p in model.parent.iterdir()) == [
        "net.onnx",
        "net_ctx.onnx",
    ]
    assert worst_relative_error(results, example[2]) < TOLERANCE


def test_a_moved_folder_loads_in_another_process(harness, example, tmp_path):
    built, moved = tmp_path / "built", tmp_path / "moved"
    built.mkdir()
    context, _ = harness.compile(Path(shutil.copy(example[0], built)))
    (built / "net.onnx").unlink()
    built.rename(moved)

    results = harness.run_in_other_process(moved / context.name, example[1], tmp_path)

    assert worst_relative_error(results, example[2]) < TOLERANCE


def test_an_instance_that_is_asked_twice_saves_the_partitions_of_both_calls(
    harness, example, model
):
    stepwise, calls = one_at_a_time(harness)
    context, _ = stepwise.compile(model)

    results = harness.run(context, example[1])

    assert len(calls) == 2
    assert len({id(call.provider) for call in calls}) == 1
    assert worst_relative_error(results, example[2]) < TOLERANCE


def test_given_outputs_are_written_in_place(harness, example, model):
    stepwise, calls = one_at_a_time(harness)
    x = example[1]["x"].copy()
    x.setflags(write=False)

    with stepwise.session(model):
        call = calls[0]
        given = [
            np.full(value.shape, np.nan, value.dtype)
            for value in call.partition.outputs
        ]
        fresh, results = call.compiled.run([x], None), call.compiled.run([x], given)

    assert results[0] is given[0]
    assert worst_relative_error(given, [example[2][1]]) < TOLERANCE
    assert worst_relative_error(fresh, [example[2][1]]) < TOLERANCE
    assert not np.shares_memory(fresh[0], given[0])


def test_a_session_runs_from_many_threads(harness, example, model):
    _, inputs, _ = example
    feeds = [{"x": inputs["x"] * scale} for scale in range(8)]

    with harness.session(model) as session, ThreadPoolExecutor(4) as threads:
        expected = [session.run(None, feed) for feed in feeds]
        results = list(threads.map(lambda feed: session.run(None, feed), feeds * 4))

    for place, result in enumerate(results):
        assert worst_relative_error(result, expected[place % 8]) < TOLERANCE


@pytest.mark.parametrize(
    "shape", [(2, 3), (), (0, 3)], ids=["matrix", "scalar", "empty"]
)
@pytest.mark.parametrize(
    "elem_type", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16]
)
@pytest.mark.parametrize("ep", ["openvino", "ort_cpu", "command_line"])
def test_every_type_and_shape_passes_the_boundary(ep, elem_type, shape, harness_of):
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    x = (
        np.arange(np.prod(shape, dtype=int), dtype=np.float32)
        .reshape(shape)
        .astype(dtype)
    )

    stepwise, calls = one_at_a_time(harness_of(ep))

    (y,) = stepwise.run(negation(elem_type, shape), {"x": x})

    assert len(calls) == ((ep, elem_type) != ("ort_cpu", TensorProto.BFLOAT16))
    assert y.dtype == dtype
    assert y.shape == shape
    np.testing.assert_array_equal(y.astype(np.float32), -x.astype(np.float32))


@pytest.mark.parametrize("ep", ["openvino", "command_line"])
@pytest.mark.parametrize("batch", [1, 3])
def test_open_dimensions_are_filled_at_run_time(ep, batch, harness_of):
    stepwise, calls = one_at_a_time(harness_of(ep))
    x = np.arange(batch * 2, dtype=np.float32).reshape(batch, 2)

    (y,) = stepwise.run(negation(TensorProto.FLOAT, ["batch", 2]), {"x": x})

    assert len(calls) == 1
    np.testing.assert_array_equal(y, -x)


def test_a_node_whose_graph_is_not_in_its_payload_is_refused(harness, model):
    context, _ = harness.compile(model)
    proto = onnx.load(context)
    node = proto.graph.node[-1]
    for attribute in node.attribute:
        if attribute.name == "offset":
            attribute.i += 1 << 40
        if attribute.name == "partition_name":
            attribute.s += b" of another"
    onnx.save(proto, context)

    with pytest.raises(epctx.InvalidGraph, match=node.name) as caught:
        harness.session(context)

    assert caught.value.ep == harness.provider.name


@pytest.mark.parametrize(
    "count", [2, pytest.param(None, marks=pytest.mark.stress)], ids=["few", "more"]
)
@pytest.mark.parametrize("ep", EPS)
def test_each_of_the_three_passes_a_sample_of_the_conformance_kit(
    ep, count, harness_of
):
    harness = harness_of(ep)

    report = check_provider(
        harness.provider,
        requirements=Requirements(**CANNOT[ep]),
        options=harness.options,
        only=SAMPLE[ep][:count],
    )

    assert report.ok, report.text()


def test_memory_that_the_ep_allocates_is_as_good_as_any(harness_of, example, model):
    stepwise, calls = one_at_a_time(harness_of("openvino"))

    with stepwise.session(model):
        call = calls[0]
        values = (*call.partition.inputs, *call.partition.outputs)
        x, y = (call.provider.allocate(value.shape, value.dtype) for value in values)
        x[...] = example[1]["x"]
        call.compiled.run([x], [y])

    assert worst_relative_error([y], [example[2][1]]) < TOLERANCE


def test_a_failing_compiler_is_quoted(harness_of, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(one_operator("Softmax", name="attention"))

    with pytest.raises(
        epctx.EPFail, match=r"no pattern matches attention \(Softmax\)"
    ) as caught:
        harness_of("command_line").compile(path)

    assert (caught.value.ep, caught.value.node) == (
        "CommandLineExecutionProvider",
        "attention",
    )
    assert list(tmp_path.iterdir()) == [path]


def test_a_running_compiler_is_killed_when_the_host_cancels(
    harness_of, compiler, tmp_path
):
    path = tmp_path / "net.onnx"
    path.write_bytes(one_operator("Tan", name="slow"))
    harness = harness_of("command_line")
    options = harness.session_options()
    started = compiler.with_name("started")

    def cancel_when_it_runs():
        while not started.exists():
            time.sleep(0.01)
        options.set_load_cancellation_flag(True)

    thread = threading.Thread(target=cancel_when_it_runs)
    thread.start()
    with pytest.raises(epctx.ModelLoadCanceled):
        epctx.ModelCompiler(options, path, registry=harness.registry).compile_to_file()
    thread.join()

    assert list(tmp_path.iterdir()) == [path]


def test_a_compiler_that_is_not_there_is_named(model):
    harness = Harness(
        provider=CommandLineProvider, options={"compiler": "no-such-npuc"}
    )

    with pytest.raises(epctx.InvalidArgument, match="no-such-npuc"):
        harness.compile(model)


def test_a_library_that_is_none_is_named(model, tmp_path):
    library = tmp_path / "vendor.so"
    library.write_bytes(b"not a library")
    harness = Harness(
        provider=OrtPluginProvider,
        options={"library": str(library), "ep_name": "VendorEP"},
    )

    with pytest.raises(epctx.InvalidArgument, match=r"vendor\.so"):
        harness.compile(model)


def one_operator(op_type, *, name):
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], name=name)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    return model.SerializeToString()


SIGNALLED = """
import signal, sys
from contract.openvino_package import OpenVinoPackageProvider
import epctx_core as epctx

signal.signal(signal.SIGINT, lambda number, frame: print("heard"))
registry = epctx.Registry(entry_points=False)
registry.register(OpenVinoPackageProvider)
options = epctx.SessionOptions()
options.add_provider(OpenVinoPackageProvider.name)
first, second = (epctx.InferenceSession(sys.argv[1], options, registry=registry) for _ in range(2))
first.close()
del first
second.close()
del second
signal.raise_signal(signal.SIGINT)
"""


def test_a_signal_after_sessions_of_a_native_library_reaches_the_host(model):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, model],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "heard\n", "")
