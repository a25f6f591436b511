"""Operators that onnx does not know, in bodies: onnxruntime says what they make, so EPs
can work around them.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from onnx import helper
from support.agreement_of_routes import agreeing, model_of, registry_of
from support.engine_eps import EngineProvider
from support.models_for_engines import on_the_reference

import epctx_core as epctx
from epctx_core.plugin import ComputeCapability, hookimpl


class Around(EngineProvider):
    """Takes operators of ONNX that stand before and behind those of another domain."""

    name = "AroundExecutionProvider"
    binary_suffix = "around"
    operators = frozenset({"Relu", "Neg", "Abs"})


X = np.array([-1.5, 2.5], np.float32)
FEEDS = [{"c": np.array(c), "n": np.array(2, np.int64), "x": X} for c in (True, False)]

IF = """agraph (bool c, int64 n, float[2] x) => (float[2] y) {
    z = If (c) <
        then_branch = t () => (b) { a = Neg(x) g = com.microsoft.FastGelu(a) b = Relu(g) },
        else_branch = e () => (q) { q = com.microsoft.QuickGelu<alpha = 1.0>(x) }
    >
    y = Abs(z)
}"""
LOOP = """agraph (bool c, int64 n, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    y = Loop (n, , x) <
        body = l (int64 i, bool go, float[2] s) => (bool go, float[2] s2) {
            f = com.microsoft.BiasGelu(s, w)
            s2 = Neg(f)
        }
    >
}"""
SCAN = """agraph (bool c, int64 n, float[2] x) => (float[2] y, float[2] rows) {
    y, rows = Scan (x, x) <
        num_scan_inputs = 1,
        body = s (float[2] state, float one) => (float[2] state2, float row) {
            g = com.microsoft.FastGelu(state)
            state2 = Relu(g)
            row = Neg(one)
        }
    >
}"""
NESTED = """agraph (bool c, int64 n, float[2] x) => (float[2] y) {
    outer = com.microsoft.FastGelu(x)
    y = If (c) <
        then_branch = t () => (b) {
            h = com.microsoft.QuickGelu<alpha = 1.0>(outer)
            b = Loop (n, , h) <
                body = l (int64 i, bool go, s) => (bool go, s2) {
                    f = com.microsoft.FastGelu(h)
                    r = Abs(f)
                    s2 = Add(r, s)
                }
            >
        },
        else_branch = e () => (b) { b = Abs(outer) }
    >
}"""


def foreign_model(text):
    model = model_of(text)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


@pytest.mark.parametrize(
    ("text", "operators"),
    [
        pytest.param(IF, [("Neg",), ("Relu",), ("Abs",)], id="If"),
        pytest.param(LOOP, [("Neg",)], id="Loop"),
        pytest.param(SCAN, [("Relu", "Neg")], id="Scan"),
        pytest.param(NESTED, [("Abs",), ("Abs",)], id="nested"),
    ],
)
def test_what_stands_around_them_in_a_body_is_taken_and_computes_the_same(
    tmp_path, text, operators
):
    report = agreeing(foreign_model(text), FEEDS, tmp_path, [Around])

    assert [partition.operators for partition in report.partitions] == operators


class Shapes(Around):
    """Keeps the shapes of what it is shown."""

    seen: ClassVar[dict[str, object]] = {}

    @hookimpl
    def get_capability(self, graph):
        Shapes.seen |= {
            name: graph.value(name).shape
            for node in graph.nodes
            for name in node.outputs
        }
        return [
            ComputeCapability([node])
            for node in graph.nodes
            if node.op_type in self.operators
        ]


@pytest.mark.parametrize("bits", ["uint8", "uint16"])
def test_behind_its_quantizers_shapes_are_known_that_onnx_computes(tmp_path, bits):
    model = foreign_model(f"""agraph (float[4,6] x) => (float[24] y)
        <float s = {{0.5}}, {bits} z = {{3}}, int64[2] rest = {{2,-1}}, int64[1] flat = {{-1}}> {{
        given = com.microsoft.QuantizeLinear (x, s, z)
        taken = com.microsoft.DequantizeLinear (given, s, z)
        rows = Shape <start = 0, end = 1> (taken)
        target = Concat <axis = 0> (rows, rest)
        r = Reshape (taken, target)
        q = com.microsoft.QuantizeLinear (r, s, z)
        d = com.microsoft.DequantizeLinear (q, s, z)
        a = Relu (d)
        y = Reshape (a, flat)
    }}""")

    agreeing(
        model,
        [{"x": np.arange(24, dtype=np.float32).reshape(4, 6)}],
        tmp_path,
        [Shapes],
    )

    assert {name: Shapes.seen[name] for name in "rqda"} == dict.fromkeys(
        "rqda", (4, 2, 3)
    )


def test_on_the_reference_they_are_left_with_the_reason():
    registry, options = registry_of(Around)
    model = foreign_model(LOOP).SerializeToString()
    compiler = epctx.ModelCompiler(
        on_the_reference(options), model, True, registry=registry
    )

    compiler.compile_to_bytes()

    report = compiler.report

    assert report.partitions == ()
    assert any("'f' is ?[?]" in refusal.reason for refusal in report.refusals)
