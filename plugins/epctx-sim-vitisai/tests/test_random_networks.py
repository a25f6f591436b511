"""Random networks of layers that are taken and layers that are not, joined anyhow."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import epctx_core as epctx


def grown(net, steps):
    """A network of one shape throughout; each step reads earlier values by their
    distance from the end.
    """
    values = [net.quantised("x")]
    for layer, first, second in steps:
        one, other = values[-1 - first % len(values)], values[-1 - second % len(values)]
        values.append(ADDED[layer](net, one, other))
    return net.model(values[-1], values[len(values) // 2])


def sliced(net, one, other):
    both = net.quantised(net.node("Concat", one, other, axis=1))
    bounds = [net.weight(np.array([number])) for number in (2, 6, 1)]
    return net.quantised(net.node("Slice", both, *bounds))


def float_sum(net, one, other):
    # The sum is read in float as well, so that it is no unit.
    total = net.node("Add", one, other)
    return net.quantised(net.node("Mul", total, net.node("Floor", total)))


ADDED = {
    "conv": lambda net, one, _: net.conv(one),
    "conv and relu": lambda net, one, _: net.conv(one, relu=True),
    "add": lambda net, one, other: net.quantised(net.node("Add", one, other)),
    "max pool": lambda net, one, _: net.quantised(
        net.node("MaxPool", one, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    ),
    "concat and slice": sliced,
    "float sum": float_sum,
    "erf": lambda net, one, _: net.quantised(net.node("Erf", one)),
    "requantised": lambda net, one, _: net.quantised(one),
}


def reference(model, inputs):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    return session.run(None, inputs)


STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(ADDED)), st.integers(0, 3), st.integers(0, 3)),
    min_size=1,
    max_size=10,
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS, embed=st.booleans())
@example(steps=[("add", 0, 0)] * 4 + [("conv", 0, 0)] * 2, embed=False)
def test_original_compiled_and_loaded_agree_whatever_is_taken(bench, steps, embed):
    model = grown(bench.net(), steps)
    inputs = bench.x_for(model)
    path, report = bench.compile(model, embed=embed)
    onnx.save(model, bench.folder / "plain.onnx")

    loaded = bench.run(path, inputs)
    compiled = bench.run(bench.folder / "plain.onnx", inputs)

    for wanted, *found in zip(reference(model, inputs), loaded, compiled, strict=True):
        assert all(np.array_equal(result, wanted) for result in found)
    names = [layer for layer, _, _ in steps]
    assert report.partitions or not {"conv", "conv and relu", "add", "max pool"} & set(
        names
    )
    left = [node.op_type for node in onnx.load(path).graph.node]
    assert not {"Conv", "MaxPool", "Slice", "Concat"} & set(left)


def test_a_deep_network_with_shortcuts_is_one_partition(bench):
    net = bench.net()
    value = net.quantised("x")
    for _ in range(30):
        value = net.quantised(net.node("Add", net.conv(value, relu=True), value))

    _, report = bench.compile(net.model(value))

    assert len(report.partitions) == 1
    assert report.assignments["CPUExecutionProvider"] == 2
    assert isinstance(report, epctx.CompileReport)
