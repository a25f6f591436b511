"""What the table of operators takes, and the reason for each refusal."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from epctx_sim_vitisai import VitisAIProvider
from epctx_sim_vitisai.operators import FOLLOWING, OPERATORS
from onnx import TensorProto, helper

import epctx_core as epctx
from epctx_core.plugin import (
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    hookimpl,
    supported_partitions,
)

pytestmark = pytest.mark.internal

QUIET = "no operator that this EP takes"


def answer(bench, model):
    """How many nodes are taken, and the refused operators by reason, without what only
    quantises.
    """
    _, report = bench.compile(model)
    reasons = {
        refusal.reason for refusal in report.refusals if QUIET not in refusal.reason
    }
    return sum(partition.nodes for partition in report.partitions), reasons


def layer(bench, op_type, *others, shape=(1, 4, 8, 8), **attributes):
    """A network of one operator that computes on a quantised x, and constants as they
    are given.
    """
    net = bench.net(shape=shape)
    names = [other if isinstance(other, str) else net.weight(other) for other in others]
    result = net.node(op_type, net.quantised("x"), *names, **attributes)
    return net.model(net.quantised(result))


def test_a_convolution_is_taken_with_what_quantizes_around_it(bench):
    net = bench.net()
    taken, refused = answer(bench, net.model(net.conv(net.quantised("x"))))

    # Three DequantizeLinear, Conv, QuantizeLinear; x's QuantizeLinear and the last
    # DequantizeLinear stay.
    assert taken == 5
    assert refused == set()


def test_int8_flows_into_and_out_of_what_is_compiled(bench):
    net = bench.net()
    path, _ = bench.compile(net.model(net.conv(net.quantised("x"))))

    model = onnx.load(path)

    assert [node.op_type for node in model.graph.node] == [
        "QuantizeLinear",
        "EPContext",
        "DequantizeLinear",
    ]
    (declared,) = (
        v for v in model.graph.value_info if v.name == model.graph.node[1].output[0]
    )
    assert declared.type.tensor_type.elem_type == TensorProto.INT8


@pytest.mark.parametrize("activation", sorted(FOLLOWING))
def test_an_activation_behind_a_layer_is_taken_with_it(bench, activation):
    net = bench.net()
    weight = net.constant(net.random(4, 4, 3, 3))
    result = net.node("Conv", net.quantised("x"), weight)
    limits = (
        [net.weight(np.float32(0)), net.weight(np.float32(6))]
        if activation == "Clip"
        else []
    )
    model = net.model(net.quantised(net.node(activation, result, *limits)))

    taken, refused = answer(bench, model)

    assert taken == 5
    assert refused == set()


ONE_INPUT = [
    ("MaxPool", {"kernel_shape": [2, 2]}),
    ("AveragePool", {"kernel_shape": [2, 2]}),
    ("GlobalAveragePool", {}),
    ("GlobalMaxPool", {}),
    ("Relu", {}),
    ("LeakyRelu", {}),
    ("Sigmoid", {}),
    ("Tanh", {}),
    ("HardSigmoid", {}),
    ("HardSwish", {}),
    ("Identity", {}),
    ("Flatten", {}),
    ("Transpose", {"perm": [0, 2, 3, 1]}),
    ("DepthToSpace", {"blocksize": 2}),
    ("Softmax", {}),
    ("Clip", {}),
]


@pytest.mark.parametrize(
    ("op_type", "attributes"), ONE_INPUT, ids=[name for name, _ in ONE_INPUT]
)
def test_operators_of_one_value_are_taken_and_compute_what_onnxruntime_does(
    bench, op_type, attributes
):
    model = layer(bench, op_type, **attributes)
    path, report = bench.compile(model)

    assert [partition.nodes for partition in report.partitions] == [3]
    assert np.array_equal(
        bench.run(path, bench.x_for(model))[0], reference(model, bench.x_for(model))
    )


def reference(model, inputs):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)[0]


WITH_CONSTANTS = [
    ("Reshape", [np.array([1, -1])], {}),
    ("Squeeze", [np.array([0])], {}),
    ("Unsqueeze", [np.array([0])], {}),
    ("Slice", [np.array([0]), np.array([2]), np.array([1])], {}),
    ("Pad", [np.array([0, 0, 1, 1, 0, 0, 1, 1])], {}),
    ("Resize", ["", np.array([1, 1, 2, 2], np.float32)], {"mode": "nearest"}),
    ("Resize", ["x", np.array([1, 1, 2, 2], np.float32)], {"mode": "nearest"}),
    ("ReduceMean", [], {"axes": [2, 3]}),
]


@pytest.mark.parametrize(
    ("op_type", "others", "attributes"),
    WITH_CONSTANTS,
    ids=[f"{name} {inputs[:1]}" for name, inputs, _ in WITH_CONSTANTS],
)
def test_operators_with_constants_are_taken(bench, op_type, others, attributes):
    assert answer(bench, layer(bench, op_type, *others, **attributes)) == (3, set())


@pytest.mark.parametrize(
    "op_type", ["Add", "Mul", "Sub", "Div", "Max", "Min", "Concat"]
)
def test_operators_of_two_values_take_both_quantised(bench, op_type):
    net = bench.net()
    value = net.quantised("x")
    other = net.constant(net.random(1, 4, 8, 8))
    attributes = {"axis": 1} if op_type == "Concat" else {}
    taken, refused = answer(
        bench, net.model(net.quantised(net.node(op_type, value, other, **attributes)))
    )

    assert (taken, refused) == (4, set())


def test_layers_of_vectors_are_taken(bench):
    net = bench.net(shape=(2, 16))
    first = net.node(
        "Gemm", net.quantised("x"), net.constant(net.random(16, 16)), transB=1
    )
    second = net.node("MatMul", net.quantised(first), net.constant(net.random(16, 16)))

    assert answer(bench, net.model(net.quantised(second))) == (8, set())


def test_every_row_of_the_table_is_an_operator_of_onnx():
    assert all(onnx.defs.has(name) for name in OPERATORS)
    assert set(OPERATORS) >= FOLLOWING


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16])
def test_activations_are_signed_or_not_and_quantised_by_either_domain(
    bench, kind, domain
):
    net = bench.net(opset=21)  # from which ONNX's own quantisers have 16 bits
    value = net.quantised("x", kind=kind, domain=domain)
    model = net.model(net.quantised(net.node("Relu", value), kind=kind, domain=domain))

    assert answer(bench, model) == (3, set())


def test_weights_may_have_a_scale_for_each_channel(bench):
    net = bench.net()
    weight = net.weight(net.random(4, 4, 3, 3))
    scales, zeros = (
        net.weight(np.full(4, 0.5, np.float32)),
        net.weight(np.zeros(4, np.int8)),
    )
    dequantised = net.node("DequantizeLinear", weight, scales, zeros, axis=0)
    model = net.model(net.quantised(net.node("Conv", net.quantised("x"), dequantised)))

    assert answer(bench, model) == (4, set())


@pytest.mark.parametrize("kind", [np.int8, np.uint16])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_convolutions_of_lines_images_and_volumes_are_taken(bench, op_type, rank, kind):
    net = bench.net(shape=(1, 4, *[6] * rank))
    weight = net.constant(net.random(4, 4, *[3] * rank))
    value = net.quantised("x", kind=kind, domain="com.microsoft")
    result = net.node(op_type, value, weight, kernel_shape=[3] * rank)
    model = net.model(net.quantised(result, kind=kind, domain="com.microsoft"))

    assert answer(bench, model) == (4, set())


@pytest.mark.parametrize(
    "attributes",
    [{"alpha": 0.5}, {"beta": 0.5}, {"transA": 1}, {"transA": 1, "transB": 1}],
)
def test_a_gemm_is_taken_with_all_its_attributes_and_computes_what_onnxruntime_does(
    bench, attributes
):
    net = bench.net(shape=(4, 4))
    bias = net.constant(np.arange(4, dtype=np.int32), scale=2.0**-8)
    result = net.node(
        "Gemm", net.quantised("x"), net.constant(net.random(4, 4)), bias, **attributes
    )
    model = net.model(net.quantised(result))
    path, report = bench.compile(model)

    assert [partition.nodes for partition in report.partitions] == [5]
    inputs = bench.x_for(model)
    assert np.array_equal(bench.run(path, inputs)[0], unoptimised(model, inputs))


@pytest.mark.parametrize("other", [(8,), (8, 3), (2, 8, 3)])
def test_a_vector_is_multiplied_with_vectors_and_matrices(bench, other):
    net = bench.net(shape=(8,))
    result = net.node("MatMul", net.quantised("x"), net.constant(net.random(*other)))

    assert answer(bench, net.model(net.quantised(result))) == (4, set())


def unoptimised(model, inputs):
    """What onnxruntime gives without optimisations: its Gemm over integers has no
    beta.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    return session.run(None, inputs)[0]


def layer_of_int32(bench):
    """A Conv of a dequantised INT32."""
    net = bench.net()
    value = net.node("DequantizeLinear", "x", net.weight(np.float32(0.5)))
    result = net.node("Conv", value, net.constant(net.random(4, 4, 3, 3)))
    return net.model(net.quantised(result), kind=TensorProto.INT32)


def conv_with(bench, *, weight=None, **quantised):
    net = bench.net()
    given = net.constant(net.random(4, 4, 3, 3)) if weight is None else weight(net)
    result = net.node("Conv", net.quantised("x", **quantised), given)
    return net.model(net.quantised(result))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            layer_of_int32,
            "Conv: its input 0 is INT32 before DequantizeLinear, not of 8 or 16 bits",
        ),
        (
            lambda b: conv_with(
                b, weight=lambda n: n.constant(n.random(4, 4, 3, 3).astype(np.uint8))
            ),
            "Conv: its weight is UINT8 before DequantizeLinear",
        ),
        (
            lambda b: conv_with(
                b, weight=lambda n: n.constant(n.random(4, 4, 3, 3), zero_point=3)
            ),
            "Conv: its weight has a zero point other than 0",
        ),
        (
            lambda b: conv_with(
                b, weight=lambda n: n.weight(np.zeros((4, 4, 3, 3), np.float32))
            ),
            (
                "Conv: its input 1 comes from no DequantizeLinear, and this EP "
                "computes in integers"
            ),
        ),
        (lambda b: layer(b, "Erf"), "Erf: not among the operators that this EP takes"),
        (
            lambda b: layer(b, "Softmax", axis=1),
            "Softmax: this EP takes the last axis only",
        ),
        (
            lambda b: layer(
                b, "Pad", np.array([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect"
            ),
            "Pad: this EP does not take the mode reflect",
        ),
        (
            lambda b: layer(
                b, "Resize", "", np.array([1, 1, 2, 2], np.float32), mode="cubic"
            ),
            "Resize: this EP does not take the mode cubic",
        ),
        (
            lambda b: layer(b, "MaxPool", shape=(1, 4, 8), kernel_shape=[2]),
            "MaxPool: not taken with rank 3",
        ),
        (
            lambda b: layer(b, "Relu", shape=("n", 4)),
            (
                "Relu: a dimension of its input 0 is open, and this EP takes static "
                "shapes only"
            ),
        ),
        (lambda b: layer(b, "Relu", shape=(0, 4)), "Relu: its input 0 is empty"),
    ],
    ids=range(11),
)
def test_a_refusal_says_why(bench, model, reason):
    assert answer(bench, model(bench)) == (0, {reason})


def test_float_networks_are_left_alone(bench):
    net = bench.net()
    weight = net.weight(np.zeros((4, 4, 3, 3), np.float32))

    taken, refused = answer(bench, net.model(net.node("Conv", "x", weight)))

    assert taken == 0
    assert refused == {
        (
            "Conv: its input 0 comes from no DequantizeLinear, and this EP computes "
            "in integers"
        )
    }


def test_a_result_that_is_also_read_in_float_leaves_its_operator_on_the_cpu(bench):
    net = bench.net()
    result = net.node("Relu", net.quantised("x"))
    other = net.node("Erf", result)

    taken, refused = answer(bench, net.model(net.quantised(result), other))

    assert taken == 0
    assert "Relu: its result is read by Erf, not by a QuantizeLinear" in refused


def test_a_result_that_leaves_the_network_in_float_leaves_its_operator_on_the_cpu(
    bench,
):
    net = bench.net()

    taken, refused = answer(bench, net.model(net.node("Relu", net.quantised("x"))))

    assert (taken, refused) == (
        0,
        {"Relu: its result leaves the network without a QuantizeLinear"},
    )


def test_a_dequantised_value_that_another_node_reads_too_flows_out(bench):
    net = bench.net()
    value = net.conv(net.quantised("x"))
    model = net.model(net.conv(value), net.node("Erf", value))
    path, report = bench.compile(model)

    first, second = bench.run(path, bench.x_for(model))

    assert len(report.partitions) == 1
    assert first.shape == second.shape == (1, 4, 8, 8)
    assert np.array_equal(first, reference(model, bench.x_for(model)))


def test_two_joined_layers_are_one_partition(bench):
    net = bench.net()
    value = net.conv(net.quantised("x"), relu=True)
    joined = net.quantised(net.node("Add", net.conv(value), value))

    _, report = bench.compile(net.model(net.conv(joined)))

    assert len(report.partitions) == 1


class TakesRelu(ExecutionProvider):
    """An EP that takes the activation between a layer and its QuantizeLinear."""

    name = "ReluExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type == "Relu")

    @hookimpl
    def compile(self, partitions):
        self.partition = partitions[0]
        return [CompiledPartition(None)]

    @hookimpl
    def get_ep_context_nodes(self, writer):
        payload = writer.payload()
        payload.write(b"relu")
        return [EPContextNode(self.partition, payload)]

    @hookimpl
    def load_context(self, nodes, reader):
        raise AssertionError("only compiled here")


def test_a_layer_whose_activation_another_ep_took_is_left(bench):
    net = bench.net()
    onnx.save(
        net.model(net.conv(net.quantised("x"), relu=True)), bench.folder / "net.onnx"
    )
    registry, options = epctx.Registry(entry_points=False), epctx.SessionOptions()
    for ep in (TakesRelu, VitisAIProvider):
        registry.register(ep)
        options.add_provider(ep.name)

    report = epctx.ModelCompiler(
        options, bench.folder / "net.onnx", registry=registry
    ).compile_to_file()

    assert [partition.ep for partition in report.partitions] == [
        "ReluExecutionProvider"
    ]
    reasons = [
        refusal.reason
        for refusal in report.refusals
        if refusal.ep == VitisAIProvider.name
    ]
    assert "Conv: another EP has part of what quantises around it" in reasons


def test_bodies_of_control_flow_stay(bench):
    net = bench.net()
    scale, zero = net.weight(np.float32(0.5)), net.weight(np.int8(0))
    stored = helper.make_node("QuantizeLinear", ["x", scale, zero], ["q"])
    body = [
        stored,
        helper.make_node("DequantizeLinear", ["q", scale, zero], ["d"]),
        helper.make_node("Relu", ["d"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", scale, zero], ["p"]),
        helper.make_node("DequantizeLinear", ["p", scale, zero], ["out"]),
    ]
    graph = helper.make_graph(
        body, "b", [], [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
    )
    total = net.node("ReduceSum", "x", keepdims=0)
    condition = net.node("Cast", total, to=TensorProto.BOOL)
    result = net.node("If", condition, then_branch=graph, else_branch=graph)

    _, report = bench.compile(net.model(result))

    assert report.partitions == ()
    assert any("main graph only" in refusal.reason for refusal in report.refusals)


def test_refusals_explain_for_each_node_once(bench):
    _, report = bench.compile(bench.two_partitions())

    named = [name for refusal in report.refusals for name in refusal.nodes]
    assert len(named) == len(set(named)) == report.assignments["CPUExecutionProvider"]
