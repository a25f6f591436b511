"""Constant nodes: what they give is known to whoever reads it, wherever the graph is
cut.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import pytest
from support.engine_eps import EngineProvider
from support.small_models import saved

import epctx_core as epctx
from epctx_core.plugin import hookimpl

SCAN = """<ir_version: 10, opset_import: ["" : 21]> g (float[2,3,4] x) => (float[3,4] last, float[2,4,3] all) {
    axis = Constant <value = int64[1] {0}> ()
    shape = Constant <value_ints = [2, 3, 4]> ()
    state = Constant <value = float[1,3,4] {0,0,0,0,0,0,0,0,0,0,0,0}> ()
    rows = Reshape (x, shape)
    begin = Squeeze (state, axis)
    last, all = Scan <num_scan_inputs = 1, body = b (before, row) => (after, turned) {
        high = Unsqueeze (row, axis)
        flat = Squeeze (high, axis)
        after = Add (before, flat)
        turned = Transpose (after)
    }> (begin, rows)
}"""
SEVERAL = """<ir_version: 10, opset_import: ["" : 21]> g (float[4] x) => (float[4] y, float two, float[4] z) {
    two = Constant <value_float = 2.0> ()
    ramp = Constant <value = float[4] {1,2,3,4}> ()
    a = Mul (x, two)
    b = Add (a, ramp)
    c = Neg (b)
    y = Mul (c, ramp)
    z = Abs (y)
}"""


class Outer(EngineProvider):
    """Takes nodes of the main graph, but Scan and Neg."""

    name = "OuterExecutionProvider"
    operators = frozenset({"Reshape", "Squeeze", "Mul", "Add", "Abs"})

    @hookimpl
    def get_capability(self, graph):
        return super().get_capability(graph) if graph.parent_node is None else []


class Greedy(Outer):
    """Takes Constant nodes as well."""

    name = "GreedyExecutionProvider"
    operators = Outer.operators | {"Constant"}


@pytest.fixture(params=[Outer, Greedy], ids=["constants left over", "constants taken"])
def compiled(request, tmp_path):
    """Return a function that compiles a model by text: its context model, and results
    of both by name.
    """

    def compile_text(text, **inputs):
        registry = epctx.Registry(entry_points=False)
        registry.register(request.param)
        options = epctx.SessionOptions()
        options.add_provider(request.param.name)
        # Of the Scan only its constants are free.
        options.add_session_config_entry("ep.partition_without_computation", "keep")
        model = onnx.parser.parse_model(text)
        source = saved(model, tmp_path / "m.onnx")

        report = epctx.ModelCompiler(
            options, source, registry=registry
        ).compile_to_file()

        wanted = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
        for path in (source, report.output):
            with epctx.InferenceSession(path, options, registry=registry) as session:
                for result, expected in zip(
                    session.run(None, inputs), wanted, strict=True
                ):
                    np.testing.assert_allclose(result, expected, rtol=1e-6)
        return report, onnx.load(report.output)

    return compile_text


def test_a_scan_whose_shapes_hang_on_constants_outside_runs_when_an_ep_takes_the_rest(
    compiled,
):
    report, _ = compiled(SCAN, x=np.arange(24, dtype=np.float32).reshape(2, 3, 4))

    assert report.partitions


def test_a_constant_may_be_read_by_eps_by_the_cpu_and_be_a_result(compiled):
    report, model = compiled(SEVERAL, x=np.array([1, -2, 3, -4], np.float32))

    onnx.checker.check_model(model)
    assert len(report.partitions) == 2
    crossing = {
        name
        for node in model.graph.node
        if node.op_type == "EPContext"
        for name in node.input
    }
    assert not crossing & {"two", "ramp"}


def test_a_taken_constant_that_others_read_stays_as_an_initializer(tmp_path):
    text = SEVERAL.replace("c = Neg (b)", "d = Neg (b) c = Max (d, ramp)")
    registry = epctx.Registry(entry_points=False)
    registry.register(Greedy)
    options = epctx.SessionOptions()
    options.add_provider("Greedy")
    source = saved(onnx.parser.parse_model(text), tmp_path / "m.onnx")

    report = epctx.ModelCompiler(options, source, registry=registry).compile_to_file()

    model = onnx.load(report.output)
    onnx.checker.check_model(model)
    assert [tensor.name for tensor in model.graph.initializer] == ["ramp"]
    assert "Constant" not in {node.op_type for node in model.graph.node}


def test_an_ep_reads_a_constant_nodes_value_as_a_weight(tmp_path):
    seen = {}

    class Curious(Outer):
        name = "CuriousExecutionProvider"

        @hookimpl
        def compile(self, partitions):
            for partition in partitions:
                seen.update(
                    {
                        name: view.array().tolist()
                        for name, view in partition.weights.items()
                    }
                )
            return super().compile(partitions)

    registry = epctx.Registry(entry_points=False)
    registry.register(Curious)
    options = epctx.SessionOptions()
    options.add_provider("Curious")

    with epctx.InferenceSession(
        saved(onnx.parser.parse_model(SEVERAL), tmp_path / "m.onnx"),
        options,
        registry=registry,
    ):
        pass

    assert seen == {"two": 2.0, "ramp": [1, 2, 3, 4]}


def test_nothing_runs_a_constant_node(tmp_path):
    text = SEVERAL.replace("float[4] z", "float[4] z, float[4] ramp")
    source = saved(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    options = epctx.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    all_but_constants = type(
        "AllExecutionProvider",
        (Outer,),
        {"name": "AllExecutionProvider", "operators": Outer.operators | {"Neg"}},
    )
    registry = epctx.Registry(entry_points=False)
    registry.register(all_but_constants)
    options.add_provider("All")

    with epctx.InferenceSession(source, options, registry=registry) as session:
        *_, ramp = session.run(None, {"x": np.ones(4, np.float32)})

    np.testing.assert_array_equal(ramp, [1, 2, 3, 4])
