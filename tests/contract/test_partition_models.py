"""Input of a vendor's tools: models, files of weights, types, and a way to wait."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from contract.ort_plugin_ep import OrtPluginProvider
from support.contract_eps import Harness, convolutional_network, negation
from support.graph_models import INT64, model, node, tensor, value
from support.graph_reading import indexed, opened
from support.networks.catalog import run_onnxruntime

import epctx_core as epctx
from epctx_core.context.paths import ModelFolder
from epctx_core.graph.extraction import GraphPartition, GraphSlice
from epctx_core.graph.mapping import CHUNK
from epctx_core.graph.partition import Partitioner
from epctx_core.graph.weights import is_detached
from epctx_core.options import CancellationFlag
from epctx_core.plugin import UNKNOWN_TYPE, hookimpl

pytestmark = pytest.mark.internal

MEMORY_COUNTERS = Path("/proc/self/clear_refs")
X = np.random.Generator(np.random.PCG64(3)).standard_normal(
    (2, 3, 8, 8), dtype=np.float32
)


def partition_of(source, *, keep_initializers=False):
    """The whole of a model as one partition."""
    graph = indexed(source)
    nodes = range(len(graph.nodes))
    return GraphPartition(
        graph, nodes, ep="TestExecutionProvider", keep_initializers=keep_initializers
    )


def outputs_of(partition, results):
    return dict(zip((value.name for value in partition.outputs), results, strict=True))


@pytest.fixture
def reference(tmp_path):
    """The results of the convolutional network as it was before anything took it apart,
    by name.
    """
    path = tmp_path / "reference.onnx"
    onnx.save(convolutional_network(), path)
    return dict(
        zip(("scores", "features"), run_onnxruntime(path, {"x": X}), strict=True)
    )


def assert_equal(results, reference):
    assert results.keys() == reference.keys()
    for name, result in results.items():
        np.testing.assert_allclose(result, reference[name], rtol=1e-5, atol=1e-6)


def test_a_saved_model_is_valid_and_gives_the_same_results(tmp_path, reference):
    partition = partition_of(convolutional_network())

    partition.save(tmp_path / "saved.onnx")

    onnx.checker.check_model(str(tmp_path / "saved.onnx"), full_check=True)
    results = run_onnxruntime(tmp_path / "saved.onnx", {"x": X})
    assert_equal(outputs_of(partition, results), reference)


def test_a_saved_model_finds_its_weights_after_both_moved(tmp_path, reference):
    partition = partition_of(convolutional_network())
    built, moved = tmp_path / "built", tmp_path / "moved"
    built.mkdir()

    partition.save(str(built / "saved.v2.onnx"))
    built.rename(moved)

    assert sorted(path.name for path in moved.iterdir()) == [
        "saved.v2.onnx",
        "saved.v2.weights",
    ]
    results = run_onnxruntime(moved / "saved.v2.onnx", {"x": X})
    assert_equal(outputs_of(partition, results), reference)


def test_large_weights_are_saved_beside_the_model_and_small_ones_in_it(tmp_path):
    partition = partition_of(convolutional_network())
    raw = {t.name: t.raw_data for t in convolutional_network().graph.initializer}

    partition.save(tmp_path / "saved.onnx")

    saved = onnx.load(
        tmp_path / "saved.onnx", load_external_data=False
    ).graph.initializer
    weights = (tmp_path / "saved.weights").read_bytes()
    places = {t.name: {e.key: e.value for e in t.external_data} for t in saved}
    found = {
        name: weights[int(place["offset"]) :][: int(place["length"])]
        for name, place in places.items()
        if place
    }
    assert found == {"w1": raw["w1"], "w2": raw["w2"]}
    assert len(weights) == len(raw["w1"]) + len(raw["w2"])
    assert {t.name: t.raw_data for t in saved if t.name not in found} == {
        "b1": raw["b1"],
        "b2": raw["b2"],
    }


def test_a_partition_without_large_weights_can_be_saved_too(tmp_path):
    partition = partition_of(
        onnx.load_from_string(negation(onnx.TensorProto.FLOAT, [2, 3]))
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    partition.save(tmp_path / "saved.onnx")

    (y,) = run_onnxruntime(tmp_path / "saved.onnx", {"x": x})
    np.testing.assert_array_equal(y, -x)


def with_weights_file(folder, *, rows, columns=1024):
    """y = x @ w, where w lies in a file that holds nothing but a one at its very
    end.
    """
    made = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", shape=[1, rows])],
        [value("y", shape=[1, columns])],
    )
    weight = made.graph.initializer.add(
        name="w", data_type=onnx.TensorProto.FLOAT, dims=[rows, columns]
    )
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    with (folder / "w.bin").open("wb") as file:
        file.truncate(4 * rows * columns - 4)
        file.seek(0, 2)
        file.write(np.float32(1).tobytes())
    inside = ModelFolder(folder)
    return opened(
        made,
        lambda location, name: inside.open(
            location, what="the weights file", node=name
        ),
    )


def memory(counter):
    """Bytes resident now (`VmRSS`) or at the most (`VmHWM`) since the counters were
    cleared.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(
        int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{counter}:")
    )


@pytest.mark.skipif(
    not MEMORY_COUNTERS.exists(),
    reason="the peak of memory can be cleared on Linux only",
)
def test_weights_are_saved_piece_by_piece(tmp_path):
    partition = partition_of(with_weights_file(tmp_path, rows=48 * 1024))
    size = partition.weights["w"].nbytes
    MEMORY_COUNTERS.write_text("5")
    before = memory("VmRSS")

    partition.save(tmp_path / "saved.onnx")

    assert memory("VmHWM") - before < 3 * CHUNK < size / 3
    assert (tmp_path / "saved.weights").stat().st_size == size
    assert (tmp_path / "saved.onnx").stat().st_size < 1024
    x = np.zeros((1, 48 * 1024), np.float32)
    x[0, -1] = 5
    (y,) = run_onnxruntime(tmp_path / "saved.onnx", {"x": x})
    assert (y[0, -1], np.count_nonzero(y)) == (5, 1)


def test_an_inline_model_needs_nothing_beside_it(tmp_path, reference):
    onnx.save(
        convolutional_network(),
        tmp_path / "net.onnx",
        save_as_external_data=True,
        location="net.data",
        size_threshold=0,
    )
    inside = ModelFolder(tmp_path)
    stored = onnx.load(tmp_path / "net.onnx", load_external_data=False)
    source = opened(
        stored, lambda name, node: inside.open(name, what="the weights file", node=node)
    )
    partition = partition_of(source)

    complete = partition.model(inline_weights=True)
    (tmp_path / "net.data").unlink()

    assert not any(is_detached(t) for t in complete.graph.initializer)
    onnx.checker.check_model(complete, full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    session = onnxruntime.InferenceSession(complete.SerializeToString(), options)
    assert_equal(outputs_of(partition, session.run(None, {"x": X})), reference)


def test_an_inline_model_leaves_the_next_one_without_data():
    partition = partition_of(convolutional_network())

    partition.model(inline_weights=True)

    assert [t.name for t in partition.model().graph.initializer if is_detached(t)] == [
        "w1",
        "w2",
    ]


def test_kept_initializers_are_fed_from_the_weights(tmp_path, reference):
    partition = partition_of(convolutional_network(), keep_initializers=True)

    partition.save(tmp_path / "saved.onnx")

    assert set(partition.weights) == {"w1", "b1", "w2", "b2"}
    assert list(partition.model(inline_weights=True).graph.initializer) == []
    feeds = {
        "x": X,
        **{name: weight.array() for name, weight in partition.weights.items()},
    }
    results = run_onnxruntime(tmp_path / "saved.onnx", feeds)
    assert_equal(outputs_of(partition, results), reference)


def test_a_partition_knows_the_types_of_its_inner_values():
    partition = partition_of(convolutional_network())

    shown = {
        name: str(partition.value(name).type)
        for name in ("x", "c", "flat", "scores", "w2")
    }

    assert {v.name for v in (*partition.inputs, *partition.outputs)}.isdisjoint(
        {"c", "flat", "w2"}
    )
    assert shown == {
        "x": "float[2,3,8,8]",
        "c": "float[2,16,8,8]",
        "flat": "float[2,16]",
        "scores": "float[2,32]",
        "w2": "float[16,32]",
    }
    assert partition.value("nothing").type is UNKNOWN_TYPE


def sliced(source, taken=()):
    """A graph as the EP sees it that is asked after another one took some nodes."""
    graph = indexed(source)
    partitioner = Partitioner(graph.predecessors)
    partitioner.take([[i] for i in taken])
    return GraphSlice(graph, partitioner, [i in taken for i in range(len(graph.nodes))])


def reshaped():
    """A network whose inner shapes follow from the value of a small weight."""
    return model(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Reshape", ["m", "s"], ["r"]),
            node("Relu", ["r"], ["y"]),
        ],
        [value("x", shape=[4, 30])],
        [value("y", shape=[2, 60])],
        [tensor("w", np.ones((30, 30))), tensor("s", [2, 60], np.int64)],
    )


def test_onnx_infers_all_shapes_of_a_graphs_model_from_it_alone():
    view = sliced(reshaped())

    copy = view.model()

    inferred = onnx.shape_inference.infer_shapes(
        copy, check_type=True, strict_mode=True
    )
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in inferred.graph.value_info
    }
    assert shapes == {"m": [4, 30], "r": [2, 60]}
    assert [t.name for t in copy.graph.initializer if is_detached(t)] == ["w"]
    assert copy.graph.initializer[0].ByteSize() < 100


def test_a_graphs_model_shows_what_other_eps_took_as_well():
    view = sliced(reshaped(), taken=[0])

    assert [n.op_type for n in view.nodes] == ["Reshape", "Relu"]
    assert [n.op_type for n in view.model().graph.node] == ["MatMul", "Reshape", "Relu"]


def spoil(proto):
    for node_ in proto.graph.node:
        node_.op_type = "Sin"
        del node_.attribute[:]
    for tensor_ in proto.graph.initializer:
        tensor_.raw_data = bytes(len(tensor_.raw_data))
    del proto.graph.output[:]


class SpoilingProvider(OrtPluginProvider):
    """Does what vendors' tools do to the models that they are given, and worse."""

    @hookimpl
    def get_capability(self, graph):
        spoil(graph.model())
        return super().get_capability(graph)

    @hookimpl
    def compile(self, partitions):
        for partition in partitions:
            spoil(partition.model())
            spoil(partition.model(inline_weights=True))
        return super().compile(partitions)


def test_an_ep_cannot_change_the_hosts_model(tmp_path, reference):
    path = tmp_path / "net.onnx"
    onnx.save(convolutional_network(), path)

    with Harness(provider=SpoilingProvider).session(path) as session:
        results = session.run(["scores", "features"], {"x": X})

    for result, name in zip(results, ("scores", "features"), strict=True):
        np.testing.assert_allclose(result, reference[name], rtol=1e-5, atol=1e-5)


def test_integer_weights_are_inline_where_their_values_shape_the_graph():
    shape = sliced(reshaped()).model().graph.initializer[1]

    assert (shape.name, shape.data_type) == ("s", INT64)
    assert onnx.numpy_helper.to_array(shape).tolist() == [2, 60]


def test_a_waiting_ep_is_woken_when_the_host_cancels_from_another_thread():
    waiting, answers = threading.Event(), []

    class Patient(OrtPluginProvider):
        @hookimpl
        def compile(self, partitions):
            waiting.set()
            answers.append(self.context.cancel.wait(60))
            self.context.cancel.raise_if_requested()
            return super().compile(partitions)

    harness = Harness(provider=Patient)
    options = harness.session_options()

    def cancel_when_it_waits():
        waiting.wait(60)
        options.set_load_cancellation_flag(True)

    thread = threading.Thread(target=cancel_when_it_waits)
    start = time.monotonic()
    thread.start()
    with pytest.raises(epctx.ModelLoadCanceled):
        epctx.InferenceSession(
            negation(onnx.TensorProto.FLOAT, [2]), options, registry=harness.registry
        )
    thread.join()

    assert answers == [True]
    assert time.monotonic() - start < 30


def test_a_wait_that_nobody_ends_takes_its_time_and_says_so():
    flag = CancellationFlag()

    start = time.monotonic()
    woken = flag.wait(0.05)

    assert woken is False
    assert time.monotonic() - start >= 0.045


def test_a_wait_after_the_host_cancelled_takes_no_time():
    flag = CancellationFlag()
    flag.set(True)

    start = time.monotonic()

    assert flag.wait(60) is True
    assert time.monotonic() - start < 30
