"""Operators without a kernel in onnxruntime run on the reference, and nothing beside
them does.
"""

from __future__ import annotations

import logging
import weakref

import numpy as np
import onnx
import pytest
from epctx_onnxruntime.engine import OnnxRuntimeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from support.graph_models import model, node, tensor, value
from support.models_for_engines import SIZE

from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.engines.splitting import run_in_order, split
from epctx_core.errors import NotImplementedByProvider
from epctx_core.plugin import EnginePolicy

pytestmark = pytest.mark.internal

INT16 = TensorProto.INT16
ENGINE = OnnxRuntimeEngine(EnginePolicy())
"""It has no maximum of numbers of 16 bits; onnx.reference does."""


def short_value(name, shape=(4,)):
    return value(name, INT16, shape)


def diamond():
    """x goes through a chain in which Max lacks a kernel, and around it."""
    return model(
        [
            node("Relu", ["f"], ["r"]),
            node("Cast", ["r"], ["b"], to=INT16),
            node("Max", ["b", "top"], ["s"]),
            node("Cast", ["s"], ["c"], to=TensorProto.FLOAT),
            node("Sub", ["c", "r"], ["y"]),
        ],
        [value("f", shape=(4,))],
        [value("y", shape=(4,)), short_value("s")],
        [tensor("top", 2, np.int16)],
    )


FEED = np.array([1.5, 2, -3, 7], np.float32)


def parts_of(made):
    return [
        ([n.op_type for n in part.nodes], is_fast)
        for part, is_fast in split(made, ENGINE)
    ]


def test_only_the_node_without_a_kernel_is_slow():
    assert parts_of(diamond()) == [
        (["Relu", "Cast"], True),
        (["Max"], False),
        (["Cast", "Sub"], True),
    ]


def test_a_split_group_computes_what_the_whole_says():
    made = diamond()

    results = CpuEngine(EnginePolicy()).prepare(made).run([FEED])

    for result, expected in zip(
        results, ReferenceEvaluator(made).run(None, {"f": FEED}), strict=True
    ):
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == expected.dtype


def test_a_split_group_says_once_what_is_slow(caplog):
    with caplog.at_level(logging.WARNING, "epctx"):
        CpuEngine(EnginePolicy()).prepare(diamond())

    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(
        "1 of the 5 nodes of a group run on onnx.reference"
    )
    assert caplog.messages[0].endswith(": Max")


def test_a_group_that_onnxruntime_runs_is_not_looked_into(monkeypatch):
    monkeypatch.setattr(
        OnnxRuntimeEngine, "has_kernels", lambda *_: pytest.fail("asked for a kernel")
    )

    prepared = CpuEngine(EnginePolicy()).prepare(
        model([node("Neg", ["x"], ["y"])], ["x"], ["y"])
    )

    assert prepared.run([np.ones(2, np.float32)])[0].tolist() == [-1, -1]


def test_large_weights_are_found_by_both_engines():
    made = model(
        [
            node("Max", ["b", "w"], ["s"]),
            node("Cast", ["s"], ["f"], to=1),
            node("Add", ["f", "v"], ["y"]),
        ],
        [short_value("b", (SIZE,))],
        [value("y", shape=(SIZE,))],
    )
    for name, kind in (("w", INT16), ("v", TensorProto.FLOAT)):
        weight = made.graph.initializer.add(name=name, data_type=kind, dims=[SIZE])
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="epctx-weight")
    w, v = np.arange(SIZE).astype(np.int16), np.arange(SIZE, dtype=np.float32)

    (result,) = CpuEngine(EnginePolicy()).prepare(made, {"w": w, "v": v}).run([w])

    np.testing.assert_array_equal(result, w.astype(np.float32) + v)


def test_values_that_cannot_enter_onnxruntime_stay_with_the_reference():
    made = model(
        [
            node("DequantizeLinear", ["q", "scale"], ["f"]),
            node("Relu", ["f"], ["r"]),
            node("Exp", ["r"], ["y"]),
        ],
        [value("q", TensorProto.INT4, (4,))],
        [value("y", shape=(4,))],
        [tensor("scale", 0.5)],
    )

    assert parts_of(made) == [(["DequantizeLinear"], False), (["Relu", "Exp"], True)]


def test_given_outputs_are_written_in_place():
    target = [np.empty(4, np.float32), np.empty(4, np.int16)]

    results = CpuEngine(EnginePolicy()).prepare(diamond()).run([FEED], target)

    assert all(a is b for a, b in zip(results, target, strict=True))
    assert target[1].tolist() == [2, 2, 2, 7]


def test_an_operator_that_no_engine_has_is_named():
    made = model(
        [
            node("Relu", ["x"], ["r"]),
            helper.make_node("Nowhere", ["r"], ["y"], name="odd", domain="made.up"),
        ],
        ["x"],
        ["y"],
        opsets=(("", 21), ("made.up", 1)),
    )

    with pytest.raises(
        NotImplementedByProvider, match=r"'odd' \(made\.up::Nowhere\)"
    ) as caught:
        CpuEngine(EnginePolicy()).prepare(made)

    assert caught.value.node == "odd"


def test_a_value_is_let_go_after_its_last_reader():
    made = diamond()
    alive, seen = {}, []

    def watched(names):
        def run(inputs, _outputs):
            seen.append((len(inputs), {n for n in alive if alive[n]() is not None}))
            results = [np.zeros(4) for _ in names]
            alive.update(zip(names, map(weakref.ref, results), strict=True))
            return results

        return run

    whole = run_in_order(
        made, [(part, watched(part.output_names)) for part, _ in split(made, ENGINE)]
    )
    whole([FEED])

    assert seen == [(1, set()), (1, {"r", "b"}), (2, {"r", "s"})]


@st.composite
def typed_graphs(draw):
    """Random graphs in which some operators have kernels and others have not."""
    count = draw(st.integers(2, 9))
    nodes, names = [], ["x"]
    for number in range(count):
        op = draw(st.sampled_from(["Add", "Abs", "Identity", "Max", "Sub", "Min"]))
        arity = 1 if op in {"Identity", "Abs"} else 2
        inputs = [draw(st.sampled_from(names)) for _ in range(arity)]
        nodes.append(node(op, inputs, [f"v{number}"]))
        names.append(f"v{number}")
    outputs = draw(st.lists(st.sampled_from(names[1:]), min_size=1, unique=True))
    read = {name for n in nodes for name in n.input}
    outputs += [name for name in names[1:] if name not in read and name not in outputs]
    return model(nodes, [short_value("x")], [short_value(name) for name in outputs])


@settings(max_examples=60, deadline=None)
@given(typed_graphs())
def test_any_split_computes_what_the_whole_says(made):
    feed = np.array([1, 3, -200, 77], np.int16)
    onnx.checker.check_model(made)

    results = CpuEngine(EnginePolicy()).prepare(made).run([feed])

    for result, expected in zip(
        results, ReferenceEvaluator(made).run(None, {"x": feed}), strict=True
    ):
        np.testing.assert_array_equal(result, expected)
