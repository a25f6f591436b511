"""The compiler: canonical structure, float16 weights, activation plans, and results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from epctx_sim_sdk.compiler import activation_peak
from epctx_sim_sdk.device import Device
from epctx_sim_sdk.precision import HalfTensor, to_half
from onnx import TensorProto, helper, numpy_helper

from epctx_core.errors import EPFail

pytestmark = pytest.mark.internal


def chain(length, shape):
    """As many Relu nodes, one after the other, of one shape."""
    nodes, name = [], "x"
    for index in range(length):
        nodes.append(helper.make_node("Relu", [name], [f"r{index}"]))
        name = f"r{index}"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


def test_graphs_that_differ_only_in_names_and_notes_get_equal_structures(scene):
    assert (
        scene.graph(scene.dense(names="abc")).structure
        == scene.graph(scene.dense(names="pqr")).structure
    )


def test_graphs_that_differ_in_a_small_weight_get_different_structures(scene):
    assert (
        scene.graph(scene.dense(scale=1.0)).structure
        != scene.graph(scene.dense(scale=2.0)).structure
    )


def test_weights_above_the_limit_stand_outside_the_structure(scene):
    graph = scene.graph(scene.dense())

    outside = [
        t.name
        for t in graph.model().graph.initializer
        if t.data_location == TensorProto.EXTERNAL
    ]
    assert outside == list(graph.weights) == ["w0"]
    assert len(graph.structure) < 1024


def test_weights_carry_the_location_that_the_cores_engines_know(scene):
    (tensor,) = (
        t
        for t in scene.graph(scene.dense()).model().graph.initializer
        if t.external_data
    )

    assert [(e.key, e.value) for e in tensor.external_data] == [
        ("location", "epctx-weight")
    ]


def test_names_inside_bodies_follow_those_outside(scene):
    inner = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "one")],
    )
    other = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["inner2"])],
        "body2",
        [],
        [helper.make_tensor_value_info("inner2", TensorProto.FLOAT, [2])],
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=other)],
        "main",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    compiled = scene.graph(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
    )

    onnx.checker.check_model(compiled.model())
    run = Device(engine=scene.engine()).compile(compiled).run
    x = np.array([-1, 2], np.float32)
    assert run([np.array(True), x], None)[0].tolist() == [0, 3]
    assert run([np.array(False), x], None)[0].tolist() == [0, 2]


def test_a_float16_graph_stores_half_the_bytes_and_rounds_its_weights(scene):
    values = np.random.default_rng(0).standard_normal((400, 4)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((1, 400)).astype(np.float32)
    full, half = (
        scene.graph(scene.dense(weight=values, scale=0.3), fp16=flag)
        for flag in (False, True)
    )

    device = Device(engine=scene.engine())
    exact, rounded = (device.compile(graph).run([x], None)[0] for graph in (full, half))

    bias = np.float32(np.float16(0.3))
    expected = np.maximum(x @ values.astype(np.float16).astype(np.float32) + bias, 0)
    scene.same(rounded, expected)
    assert not np.array_equal(exact, rounded)
    assert half.weights["w0"].nbytes * 2 == full.weights["w0"].nbytes
    assert len(scene.write(half)) < len(scene.write(full))


def test_float16_weights_are_clamped_and_keep_infinities():
    found = to_half(np.array([1e6, -1e6, np.inf, -np.inf, 1e-12, 0.5], np.float32))

    assert found.tolist() == [65504, -65504, np.inf, -np.inf, 0, 0.5]


def test_a_float16_view_gives_the_same_bytes_in_pieces_of_any_length(scene):
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    weight = scene.partition(scene.dense(weight=values.reshape(250, 4))).weights["b"]

    class Uneven:
        name, shape, nbytes, dtype = (
            weight.name,
            weight.shape,
            weight.nbytes,
            weight.dtype,
        )

        def chunks(self):
            raw = memoryview(values.tobytes())
            yield from (raw[start : start + 7] for start in range(0, len(raw), 7))

    whole = b"".join(map(bytes, HalfTensor(weight).chunks()))

    assert (
        b"".join(map(bytes, HalfTensor(Uneven()).chunks()))
        == whole
        == values.astype(np.float16).tobytes()
    )


def test_scalars_and_quantisation_scales_keep_full_precision(scene):
    scale = numpy_helper.from_array(np.array([0.1, 0.2, 0.3], np.float32), "scale")
    zero = numpy_helper.from_array(np.zeros(3, np.int8), "zero")
    epsilon = numpy_helper.from_array(np.array(1e-12, np.float32), "epsilon")
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], axis=0),
            helper.make_node("Add", ["d", "epsilon"], ["y"]),
        ],
        "q",
        [helper.make_tensor_value_info("q", TensorProto.INT8, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [scale, zero, epsilon],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )

    assert scene.graph(model, fp16=True).structure == scene.graph(model).structure


def test_the_plan_of_a_chain_needs_two_activations_at_a_time(scene):
    nbytes = 4 * 1000

    peak = activation_peak(scene.partition(chain(4, [1000])))

    assert peak == 2 * -(-nbytes // 128) * 128


def test_a_value_that_is_read_late_lives_until_then(scene):
    model = chain(3, [1024])
    model.graph.node.append(helper.make_node("Add", ["r2", "x"], ["z"]))
    model.graph.output[0].name = "z"

    assert activation_peak(scene.partition(model)) == 3 * 4096


def test_weights_do_not_count_as_activations(scene):
    full, half = (
        scene.graph(scene.dense(elements=4000), fp16=flag) for flag in (False, True)
    )

    # The input of 16,000 bytes and one result of 16 bytes, each rounded up to 128.
    assert full.activation_bytes == half.activation_bytes == 16_000 + 128


def test_open_dimensions_count_as_nothing(scene):
    assert activation_peak(scene.partition(chain(2, ["n", 4]))) == 0


def test_weights_of_less_than_a_byte_are_refused_by_name(scene):
    packed = helper.make_tensor("w", TensorProto.INT4, [4096], np.zeros(4096, np.int8))
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["x", "f"], ["y"]),
        ],
        "packed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4096])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4096])],
        [packed],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])

    with pytest.raises(EPFail, match=r"'w'.*packed"):
        scene.graph(model)


def with_sparse_weight(places, dims):
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.5, -2.0])
    indices = numpy_helper.from_array(np.array(places), "places")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "sparse",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
        sparse_initializer=[helper.make_sparse_tensor(values, indices, dims)],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_weights_are_written_out(scene, places):
    model = scene.graph(with_sparse_weight(places, [2, 3])).model()

    (weight,) = model.graph.initializer
    assert not model.graph.sparse_initializer
    assert numpy_helper.to_array(weight).tolist() == [[0, 1.5, 0], [0, 0, -2.0]]


def test_a_container_is_hardly_larger_than_the_weights_of_its_graph(scene):
    rows = 1 << 16
    weights = rows * 4 * 4

    content = scene.write(scene.graph(scene.dense(elements=rows)))

    assert weights < len(content) <= 1.1 * weights
