"""The optimised form in the container: what it saves, what it costs, and where it stays
away.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from epctx_onnxruntime.versions import block_size
from epctx_sim_sdk import compiler
from epctx_sim_sdk.compiler import (
    MOST_OPTIMIZED,
    SimCompiler,
    compile_partition,
)
from epctx_sim_sdk.device import LAYOUT_MARK, Device, GraphReader
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from epctx_core.errors import InvalidGraph

EP = "SimExecutionProvider"


def drawn(name, *shape):
    generator = np.random.default_rng([*map(ord, name)])
    return numpy_helper.from_array(
        generator.standard_normal(shape, np.float32) / 4, name
    )


def convolutions(prefix="", weights=("w", "u")):
    """y = conv(relu(normal(conv(x)))), in all 4 nodes; names begin with the prefix."""
    first, second = weights
    names = [prefix + n for n in ("scale", "bias", "mean", "variance")]
    nodes = [
        helper.make_node(
            "Conv", [f"{prefix}x", first], [f"{prefix}c"], pads=[1, 1, 1, 1]
        ),
        helper.make_node("BatchNormalization", [f"{prefix}c", *names], [f"{prefix}n"]),
        helper.make_node("Relu", [f"{prefix}n"], [f"{prefix}r"]),
        helper.make_node("Conv", [f"{prefix}r", second], [f"{prefix}y"]),
    ]
    values = [
        numpy_helper.from_array(np.linspace(1, 2, 32, dtype=np.float32), n)
        for n in names
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info(
                f"{prefix}x", TensorProto.FLOAT, [1, 3, 12, 12]
            )
        ],
        [
            helper.make_tensor_value_info(
                f"{prefix}y", TensorProto.FLOAT, [1, 32, 12, 12]
            )
        ],
        [
            drawn_as("w", first, 32, 3, 3, 3),
            drawn_as("u", second, 32, 32, 1, 1),
            *values,
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )


def drawn_as(content, name, *shape):
    tensor = drawn(content, *shape)
    tensor.name = name
    return tensor


def image():
    return np.random.default_rng(1).standard_normal((1, 3, 12, 12), np.float32)


def optimised(scene, model):
    return compile_partition(scene.partition(model), ep=EP, engine=scene.engine())


def operators(content):
    return [n.op_type for n in onnx.ModelProto.FromString(content).graph.node]


def test_a_container_holds_the_optimised_form_and_no_weight_that_it_replaced(scene):
    plain, better = scene.graph(convolutions()), optimised(scene, convolutions())

    assert len(plain.weights) == 2
    assert operators(plain.structure).count("BatchNormalization") == 1
    assert "BatchNormalization" not in operators(better.structure)
    assert len(better.weights) == 2
    assert len(scene.write(better)) <= 1.01 * len(scene.write(plain)) + 4096


def test_what_is_loaded_computes_what_the_plain_graph_does(scene):
    device = Device(engine=scene.engine())
    wanted = device.compile(scene.graph(convolutions())).run([image()])[0]
    better = optimised(scene, convolutions())

    container = scene.open(scene.write(better))
    (entry,) = container.tables.graphs.values()

    scene.same(device.compile(better).run([image()])[0], wanted, 1e-5)
    scene.same(device.load(container, entry).run([image()])[0], wanted, 1e-5)


def test_loading_optimises_nothing(scene, monkeypatch):
    container = scene.open(scene.write(optimised(scene, convolutions())))
    (entry,) = container.tables.graphs.values()
    engine = scene.engine()
    monkeypatch.setattr(engine, "optimize", None)

    Device(engine=engine).load(container, entry).run([image()])


def test_the_same_network_under_other_names_gives_the_same_bytes(scene):
    names = [
        optimised(scene, convolutions(*given))
        for given in ((), ("layer.", ("kernel", "a")), ("z", ("b", "a")))
    ]

    assert len({graph.structure for graph in names}) == 1
    assert (
        len({tuple((n, w.digest) for n, w in graph.weights.items()) for graph in names})
        == 1
    )


@pytest.mark.skipif(
    not block_size(), reason="onnxruntime arranges nothing for this CPU"
)
def test_a_container_made_for_another_cpu_loads_and_computes_the_same(scene):
    device = Device(engine=scene.engine())
    wanted = device.compile(scene.graph(convolutions())).run([image()])[0]
    graph = optimised(scene, convolutions())
    model = graph.model()
    (mark,) = (entry for entry in model.metadata_props if entry.key == LAYOUT_MARK)
    mark.value = f"onnxruntime 0.0 nchwc{block_size()}"
    container = scene.open(
        scene.write(replace(graph, structure=model.SerializeToString()))
    )
    (entry,) = container.tables.graphs.values()

    scene.same(device.load(container, entry).run([image()])[0], wanted, 1e-5)


GELU = {"root": 2**0.5, "one": 1, "half": 0.5}


def scalars(**values):
    return [
        numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in values.items()
    ]


def from_x_to_y(nodes, weights, *, shape=(4, 32), domains=("",)):
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], weights)
    opsets = [helper.make_opsetid(domain, 1 if domain else 17) for domain in domains]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def gelu():
    """y = gelu(x @ w), with Gelu in five operators, as exporters write it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Div", ["m", "root"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["a"]),
        helper.make_node("Mul", ["m", "a"], ["g"]),
        helper.make_node("Mul", ["g", "half"], ["y"]),
    ]
    return from_x_to_y(nodes, [drawn("w", 32, 32), *scalars(**GELU)])


def rows():
    return np.random.default_rng(1).standard_normal((4, 32), np.float32)


def for_another_engine(model):
    """The model as a machine with another onnxruntime would have tuned it."""
    (mark,) = (entry for entry in model.metadata_props if entry.key == LAYOUT_MARK)
    mark.value = "onnxruntime 0.0 nchwc16"


def test_a_form_with_the_engines_own_operators_stands_beside_the_common_one(scene):
    graph = optimised(scene, gelu())
    content = scene.write(graph)
    (entry,) = scene.open(content).tables.graphs.values()

    assert "Erf" in operators(graph.structure)
    assert "Gelu" in operators(graph.tuned.structure)
    # One weight, and its bytes once.
    assert entry.weights == entry.tuned.weights == (("w0", 0),)
    assert len(content) < 1.1 * 32 * 32 * 4 + 4096


def test_a_graph_that_has_no_use_for_such_operators_has_one_form(scene):
    assert optimised(scene, convolutions()).tuned is None


def test_an_engine_runs_its_own_form_and_another_the_common_one(scene):
    prepared = []

    class Watching(Device):
        def _prepare(self, model, arrays, *, heavy):
            prepared.append([node.op_type for node in model.graph.node])
            return super()._prepare(model, arrays, heavy=heavy)

    wanted = Device(engine=scene.engine()).compile(scene.graph(gelu())).run([rows()])[0]
    for graph, common in (
        (optimised(scene, gelu()), []),
        (changed(optimised(scene, gelu()), for_another_engine), ["Erf"]),
    ):
        prepared.clear()
        loaded = load(scene, Watching(engine=scene.engine()), graph)

        scene.same(loaded.run([rows()])[0], wanted, 1e-5)
        assert [op for ops in prepared for op in ops if op == "Erf"] == common


def rms_norm():
    """y = x / sqrt(mean(x²) + 1e-5) * w: onnxruntime makes one operator of it, which it
    has in ONNX's own domain.
    """
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["p"]),
        helper.make_node("ReduceMean", ["p"], ["m"], axes=[-1], keepdims=1),
        helper.make_node("Add", ["m", "tiny"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["s"]),
        helper.make_node("Div", ["x", "s"], ["d"]),
        helper.make_node("Mul", ["d", "w"], ["y"]),
    ]
    return from_x_to_y(nodes, [drawn("w", 32), *scalars(two=2, tiny=1e-5)])


def microsofts_gelu():
    """y = gelu(x) @ w * 2, with Gelu as an operator of the source's own."""
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft"),
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["g", "t"], ["m"]),
        helper.make_node("Mul", ["m", "two"], ["y"]),
    ]
    weights = [drawn("w", 32, 32), *scalars(two=2)]
    return from_x_to_y(nodes, weights, domains=("", "com.microsoft"))


@pytest.mark.parametrize("network", [gelu, rms_norm, microsofts_gelu])
def test_the_common_form_has_no_operators_but_onnxs_and_those_of_the_source(
    scene, network
):
    source = network()
    imported = {opset.domain: opset.version for opset in source.opset_import}
    own = {(n.domain, n.op_type) for n in source.graph.node}

    common = optimised(scene, network()).model()

    for node in common.graph.node:
        assert (node.domain, node.op_type) in own or onnx.defs.has(
            node.op_type, imported[""], node.domain
        )
    assert not common.metadata_props


def quantised():
    """y = x + w, each value of it quantised."""
    constants = [
        numpy_helper.from_array(np.array(0.05, np.float32), "s"),
        numpy_helper.from_array(np.array(3, np.uint8), "z"),
        numpy_helper.from_array(np.arange(32, dtype=np.uint8), "w"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"]),
        helper.make_node("Add", ["xd", "wd"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "s", "z"], ["aq"]),
        helper.make_node("DequantizeLinear", ["aq", "s", "z"], ["y"]),
    ]
    return from_x_to_y(nodes, constants)


def test_quantised_arithmetic_gives_what_onnxruntime_gives_for_the_source(scene):
    graph = optimised(scene, quantised())
    assert "QLinearAdd" in operators(graph.tuned.structure)
    source = InferenceSession(quantised().SerializeToString())

    loaded = load(scene, Device(engine=scene.engine()), graph)

    np.testing.assert_array_equal(
        loaded.run([rows()])[0], source.run(None, {"x": rows()})[0]
    )


@pytest.mark.parametrize("channels", [64, 72, 20])
def test_both_forms_of_a_large_graph_use_the_same_weights_whatever_fits_into_blocks(
    scene, channels, monkeypatch
):
    monkeypatch.setattr(compiler, "MOST_REPEATED", 0)
    side, half = [1, channels, 8, 8], [channels, channels, 3, 3]
    conv = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["c"], **conv),
        helper.make_node("Div", ["c", "root"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["a"]),
        helper.make_node("Mul", ["c", "a"], ["g"]),
        helper.make_node("Mul", ["g", "half"], ["h"]),
        helper.make_node("Conv", ["h", "w"], ["y"], **conv),
    ]
    weights = [drawn("v", *half), drawn("w", *half), *scalars(**GELU)]
    model = from_x_to_y(nodes, weights, shape=side)

    content = scene.write(optimised(scene, model))

    (entry,) = scene.open(content).tables.graphs.values()
    assert entry.tuned is not None
    assert len(content) < 1.1 * sum(len(w.raw_data) for w in weights) + 16384


def test_a_tuned_form_that_does_not_fit_its_tables_is_refused_also_where_none_is_run(
    scene,
):
    graph = optimised(scene, gelu())
    broken = replace(graph, tuned=replace(graph.tuned, structure=b"\xff\xff"))

    for device in devices(scene):
        with pytest.raises(InvalidGraph, match="no ONNX model"):
            load(scene, device, broken)


def devices(scene):
    """A device, and what reads for a verification."""
    return Device(engine=scene.engine()), GraphReader(scene.engine(), prepares=True)


def load(scene, device, graph):
    container = scene.open(scene.write(graph))
    (entry,) = container.tables.graphs.values()
    return device.load(container, entry)


def changed(graph, change):
    """The graph with another tuned form."""
    model = graph.tuned.model()
    change(model)
    tuned = replace(graph.tuned, structure=model.SerializeToString())
    return replace(graph, tuned=tuned)


def rename_operators(model):
    for node in model.graph.node:
        node.op_type = "Nowhere"


def drop_inputs(model):
    for node in model.graph.node:
        del node.input[:]


def test_a_verification_refuses_the_tuned_form_that_a_load_refuses(scene):
    for change in (drop_inputs, lambda model: model.ClearField("metadata_props")):
        graph = changed(optimised(scene, gelu()), change)
        for device in devices(scene):
            with pytest.raises(InvalidGraph):
                load(scene, device, graph)


def test_a_kernel_that_this_build_lacks_leaves_the_common_form(scene):
    graph = changed(optimised(scene, gelu()), rename_operators)
    wanted = Device(engine=scene.engine()).compile(scene.graph(gelu())).run([rows()])[0]

    for device in devices(scene):
        loaded = load(scene, device, graph)
        if loaded.run is not None:
            scene.same(loaded.run([rows()])[0], wanted, 1e-5)


def test_activations_are_planned_for_the_networks_own_operators(scene):
    assert (
        optimised(scene, convolutions()).activation_bytes
        == scene.graph(convolutions()).activation_bytes
        > 0
    )


def test_half_precision_stays_half(scene):
    compiler = SimCompiler(EP, fp16=True, engine=scene.engine())

    graph = compiler.compile(scene.partition(convolutions()))

    assert graph.structure == scene.graph(convolutions(), fp16=True).structure


class Counting:
    """An engine that counts what it is asked to optimise, and optimises nothing."""

    def __init__(self):
        self.asked = 0

    def optimize(self, model, weights, *, contrib=False, layouts=False):
        self.asked += not contrib


def test_small_graphs_without_heavy_operators_are_not_worth_it(scene):
    engine = Counting()
    nodes = [
        helper.make_node(op, [i], [o])
        for op, i, o in (("Relu", "x", "a"), ("Neg", "a", "y"))
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )

    SimCompiler(EP, engine=engine).compile(scene.partition(model))

    assert engine.asked == 0


def test_a_network_in_very_many_pieces_is_optimised_up_to_a_limit(scene):
    engine = Counting()
    compiler = SimCompiler(EP, engine=engine)
    partition = scene.partition(scene.dense())

    for _ in range(MOST_OPTIMIZED + 10):
        compiler.compile(partition)

    assert engine.asked == MOST_OPTIMIZED
