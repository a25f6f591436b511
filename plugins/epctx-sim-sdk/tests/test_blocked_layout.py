"""Models whose weights are arranged for this machine's CPU, on this machine and
elsewhere.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest
from engines.models_for_engines import on_the_reference, session_engine
from engines.networks import drawn
from epctx_onnxruntime.versions import block_size
from epctx_sim_sdk.blocked_layout import DOMAIN
from epctx_sim_sdk.compiler import compile_partition
from epctx_sim_sdk.device import LAYOUT_MARK, Device, read_mark
from graph.making import model, node, value
from graph.reading import opened

from epctx_core.errors import InvalidGraph

pytestmark = pytest.mark.skipif(
    not block_size(),
    reason=(
        "onnxruntime arranges nothing for this CPU, so there is nothing to arrange back"
    ),
)
SHAPE = (1, 3, 20, 20)


def network(opset=13, activation="Relu", channels=32, **attributes):
    """A stem on three channels, a depthwise convolution, a residual sum, both kinds of
    pools.
    """
    weights = [
        drawn("stem", channels, 3, 3, 3),
        drawn("stem_bias", channels),
        drawn("depth", channels, 1, 3, 3),
        drawn("point", channels, channels, 1, 1),
        drawn("last", 20, channels, 1, 1),
    ]
    nodes = [
        node(
            "Conv", ["x", "stem", "stem_bias"], ["a"], strides=[1, 1], pads=[1, 1, 1, 1]
        ),
        node(activation, ["a"], ["b"], **attributes),
        node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["c", "depth"], ["d"], group=channels, pads=[1, 1, 1, 1]),
        node("Conv", ["d", "point"], ["e"]),
        node("Add", ["e", "c"], ["f"]),
        node("Relu", ["f"], ["g"]),
        node(
            "AveragePool",
            ["g"],
            ["h"],
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            count_include_pad=1,
        ),
        node("Conv", ["h", "last"], ["i"]),
        node("GlobalAveragePool", ["i"], ["y"]),
    ]
    return model(
        nodes, [value("x", shape=SHAPE)], [value("y", shape=[1, 20, 1, 1])], weights,
        opsets=[("", opset)], ir_version=8,
    )  # fmt: skip


def arrays(weights):
    return {name: weight.array() for name, weight in weights.items()}


def image():
    return np.random.default_rng(3).standard_normal(SHAPE, np.float32)


@pytest.fixture
def engine(scene):
    return scene.engine()


def optimised(engine, made):
    source = opened(made)
    found = engine.optimize(source.proto, source.weights, layouts=True)
    plain = engine.prepare(source.proto, arrays(source.weights)).run([image()])[0]
    return found, plain


def prepared(engine, found):
    return Device(engine=engine)._prepare(
        found.model, arrays(found.weights), heavy=None
    )


def close(found, wanted):
    return np.max(np.abs(found - wanted)) <= 1e-5 * np.max(np.abs(wanted))


def made_for(model, layout):
    (entry,) = [entry for entry in model.metadata_props if entry.key == LAYOUT_MARK]
    entry.value = layout


def elsewhere():
    return f"onnxruntime 0.0 nchwc{block_size()}"


def test_convolutions_are_arranged_for_this_cpu_and_the_model_says_so(engine):
    found, plain = optimised(engine, network())

    assert DOMAIN in {n.domain for n in found.model.graph.node}
    assert read_mark(found.model).endswith(f"nchwc{block_size()}")
    assert close(
        engine.prepare(found.model, arrays(found.weights)).run([image()])[0], plain
    )


@pytest.mark.parametrize(
    ("opset", "activation", "attributes"),
    [
        *(
            (opset, name, {})
            for opset in (9, 13)
            for name in ("Relu", "Sigmoid", "Tanh")
        ),
        *((opset, "LeakyRelu", {"alpha": 0.2}) for opset in (9, 13)),
        *((opset, "HardSigmoid", {"alpha": 0.3, "beta": 0.4}) for opset in (9, 13)),
        (14, "HardSwish", {}),
    ],
)
def test_elsewhere_the_model_is_arranged_back_and_computes_the_same(
    engine, caplog, opset, activation, attributes
):
    found, plain = optimised(engine, network(opset, activation, **attributes))
    made_for(found.model, elsewhere())

    with caplog.at_level(logging.INFO, logger="epctx.sim"):
        result = prepared(engine, found).run([image()])[0]

    assert "Compiling again would make it faster" in caplog.text
    assert close(result, plain)


def test_on_the_reference_the_model_is_arranged_back(engine):
    found, plain = optimised(engine, network())
    reference = session_engine(on_the_reference())

    with pytest.raises(
        InvalidGraph,
        match=r"was optimised for onnxruntime .*; the engine here is onnx\.reference",
    ):
        reference.prepare(found.model, arrays(found.weights))

    assert close(prepared(reference, found).run([image()])[0], plain)


def test_a_model_whose_channels_do_not_fill_blocks_is_compiled_with_onnxs_operators(
    engine, scene
):
    source = network(channels=20)
    assert DOMAIN in {n.domain for n in optimised(engine, source)[0].model.graph.node}

    compiled = compile_partition(
        scene.partition(source), ep=scene.ep, engine=engine
    ).model()

    assert {n.domain for n in compiled.graph.node} == {""}
    assert read_mark(compiled) is None


@pytest.mark.parametrize(
    "layout", ["onnxruntime 1.31.1 nchwc0", "somebody", "onnxruntime 1 nchwc7"]
)
def test_a_layout_that_cannot_be_is_refused(engine, layout):
    found, _ = optimised(engine, network())
    made_for(found.model, layout)

    with pytest.raises(
        InvalidGraph, match=r"was optimised for .* cannot be rewritten"
    ) as caught:
        prepared(engine, found)

    assert "Compile the source model again" in caught.value.hint


def test_a_weight_that_is_missing_is_refused(engine):
    found, _ = optimised(engine, network())
    made_for(found.model, elsewhere())

    with pytest.raises(InvalidGraph, match=r"the weight .* is missing"):
        prepared(engine, found._replace(weights={}))
