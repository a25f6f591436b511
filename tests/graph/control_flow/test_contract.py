"""Subgraphs as EPs see them: claims, and the report of the outcome."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from epctx_kernels import KernelDef, KernelProvider, KernelRegistry
from onnx.reference import ReferenceEvaluator
from support.agreement_of_routes import (
    agreeing,
    compiled,
    context_nodes_of,
    graphs_of,
    model_of,
    registry_of,
)
from support.engine_eps import Alpha, Beta, EngineProvider, scripted
from support.small_models import saved

import epctx_core as epctx
from epctx_core.plugin import (
    ComputeCapability,
    Refusal,
    hookimpl,
)

X = np.array([-1.5, 2.5], np.float32)
FEEDS = [{"c": np.array(c), "n": np.array(2, np.int64), "x": X} for c in (True, False)]

NESTED = """agraph (bool c, int64 n, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    a = Relu(x)
    y = If (c) <
        then_branch = t () => (float[2] b) {
            b = Loop (n, , a) <
                body = l (int64 i, bool go, float[2] s) => (bool go, float[2] s2) { s2 = Add(s, w) }
            >
        },
        else_branch = e () => (float[2] b) { b = Tanh(a) }
    >
}"""


def test_an_ep_is_asked_once_for_each_graph_bodies_first(tmp_path):
    seen = []

    def look(honest, graph):
        parent = graph.parent_node
        seen.append(
            (
                graph.name,
                parent and parent.op_type,
                [node.op_type for node in graph.nodes],
            )
        )
        return honest()

    compiled(model_of(NESTED), tmp_path / "m.onnx", scripted(get_capability=look))

    assert seen == [
        ("l", "Loop", ["Add"]),
        ("t", "If", []),
        ("e", "If", ["Tanh"]),
        ("agraph", None, ["Relu"]),
    ]


def test_a_view_of_a_body_shows_outer_weights_types_and_no_outer_producers(tmp_path):
    seen = {}

    def look(honest, graph):
        if graph.name == "l":
            seen["weight"] = graph.initializer("w").array().tolist()
            seen["types"] = [
                str(graph.value(name).type) for name in ("s", "w", "s2", "a")
            ]
            seen["inputs"] = [value.name for value in graph.inputs]
            seen["outputs"] = [value.name for value in graph.outputs]
            seen["producers"] = (
                graph.producer("w"),
                graph.producer("a"),
                graph.producer("s2").op_type,
            )
            seen["model"] = [t.name for t in graph.model().graph.initializer]
        return honest()

    compiled(model_of(NESTED), tmp_path / "m.onnx", scripted(get_capability=look))

    assert seen == {
        "weight": [1, 2],
        "types": ["float[2]", "float[2]", "float[2]", "float[2]"],
        "inputs": ["i", "go", "s"],
        "outputs": ["go", "s2"],
        "producers": (None, None, "Add"),
        "model": ["w"],
    }


def test_control_flow_without_an_eps_work_stays_whole_and_an_ep_may_take_it(tmp_path):
    class Whole(EngineProvider):
        name = "WholeExecutionProvider"
        binary_suffix = "whole"

        @hookimpl
        def get_capability(self, graph):
            return [
                ComputeCapability([n])
                for n in graph.nodes
                if n.op_type == "If" and not graph.parent_node
            ]

    report = agreeing(model_of(NESTED), FEEDS, tmp_path, [Whole])

    assert [p.operators for p in report.partitions] == [("If",)]
    assert report.assignments == {Whole.name: 4, "CPUExecutionProvider": 1}
    (main,) = graphs_of(tmp_path / "far" / "m_ctx.onnx")
    assert [node.op_type for node in main.node] == ["Relu", "EPContext"]
    assert not main.initializer


def test_bodies_of_a_node_that_one_ep_took_whole_are_not_shown_to_the_next(tmp_path):
    class Whole(EngineProvider):
        name = "WholeExecutionProvider"
        operators = frozenset({"If"})

    seen = []

    def look(honest, graph):
        seen.append(graph.name)
        return honest()

    compiled(
        model_of(NESTED), tmp_path / "m.onnx", Whole, scripted(get_capability=look)
    )

    assert seen == ["agraph"]


def test_control_flow_around_an_eps_work_is_nobodys_to_claim(tmp_path):
    seen = []

    def look(honest, graph):
        seen.extend(node.op_type for node in graph.nodes)
        return (
            [ComputeCapability(graph.nodes)]
            if not graph.parent_node and graph.nodes
            else honest()
        )

    report = compiled(
        model_of(NESTED), tmp_path / "m.onnx", scripted(get_capability=look)
    )

    assert not {"If", "Loop"} & set(seen)
    assert report.assignments == {
        "ScriptedExecutionProvider": 2,
        "CPUExecutionProvider": 3,
    }


def test_a_model_whose_bodies_no_ep_works_in_is_left_as_it_is(tmp_path):
    model = model_of(NESTED)

    class Nothing(EngineProvider):
        name = "NothingExecutionProvider"
        operators = frozenset({"Relu"})

    agreeing(model, FEEDS, tmp_path, [Nothing])

    main = graphs_of(tmp_path / "far" / "m_ctx.onnx")[0]
    assert main.node[1] == model.graph.node[1]
    assert len(main.initializer) == 1


def test_refusals_in_bodies_are_told(tmp_path):
    def refuse(honest, graph):
        if graph.parent_node is None:
            return honest()
        return [Refusal("bodies are not compiled", graph.nodes)]

    model = model_of(NESTED)
    model.graph.node[1].attribute[1].g.node[0].name = "inner"
    report = compiled(model, tmp_path / "m.onnx", scripted(get_capability=refuse))

    assert [p.operators for p in report.partitions] == [("Relu",)]
    assert ("bodies are not compiled", ("inner",)) in [
        (r.reason, r.nodes) for r in report.refusals
    ]


def test_simulated_qnn_takes_nothing_of_a_body_and_says_why(tmp_path):
    options = epctx.SessionOptions()
    options.add_provider("QNN")

    report = epctx.ModelCompiler(
        options, saved(model_of(NESTED), tmp_path / "m.onnx")
    ).compile_to_file()

    assert [p.operators for p in report.partitions] == [("Relu",)]
    assert any("main graph" in r.reason and "Add_0" in r.nodes for r in report.refusals)


def test_an_ep_that_claims_a_node_of_another_graph_breaks_the_contract(tmp_path):
    kept = []

    def mix(_honest, graph):
        kept.extend(graph.nodes)
        return [ComputeCapability([kept[0]])]

    with pytest.raises(
        epctx.PluginError, match="'' \\(Add\\), which is in another graph"
    ):
        compiled(model_of(NESTED), tmp_path / "m.onnx", scripted(get_capability=mix))


def test_kernels_of_an_ep_run_nodes_inside_bodies(tmp_path):
    class Kernels(KernelProvider):
        name = "KernelsExecutionProvider"

        def get_kernel_registry(self):
            add = KernelDef(
                op_type="Add",
                since_version=14,
                create=lambda node: lambda inputs: [inputs[0] + inputs[1] + 1],
            )
            return KernelRegistry([add])

    registry, options = registry_of(Kernels)
    source = saved(model_of(NESTED), tmp_path / "m.onnx")

    with epctx.InferenceSession(source, options, registry=registry) as session:
        (result,) = session.run(None, FEEDS[0])

    np.testing.assert_array_equal(
        result, np.maximum(X, 0) + 2 * np.array([2, 3], np.float32)
    )


class WholeByKernel(KernelProvider):
    """Runs control-flow nodes whole, by a kernel on onnx's reference implementation."""

    name = "WholeByKernelExecutionProvider"

    def get_kernel_registry(self):
        kernels = [
            KernelDef(
                op_type=op_type, since_version=1, end_version=99, create=self._kernel
            )
            for op_type in ("If", "Loop", "Scan")
        ]
        return KernelRegistry(kernels)

    def _kernel(self, node):
        graph = onnx.helper.make_graph(
            [node.proto()],
            "whole",
            [
                onnx.ValueInfoProto(name=name)
                for name in (*node.inputs, *node.implicit_inputs)
                if name
            ],
            [onnx.ValueInfoProto(name=name) for name in node.outputs],
        )
        opset = onnx.helper.make_opsetid("", node.opset_version)
        reference = ReferenceEvaluator(
            onnx.helper.make_model(graph, opset_imports=[opset])
        )
        names = (*node.inputs, *node.implicit_inputs)
        return lambda inputs: reference.run(None, dict(zip(names, inputs, strict=True)))

    @hookimpl
    def get_capability(self, graph):
        kernels = self.match(graph)
        outermost = [
            node
            for node in graph.nodes
            if not graph.parent_node and kernels.lookup(node)
        ]
        return list(map(kernels.claim, outermost))


def test_a_kernel_of_a_whole_control_flow_node_gets_what_its_bodies_read_outside(
    tmp_path,
):
    # onnx's reference takes a Loop without a condition for one that is false.
    source = saved(model_of(NESTED.replace("n, , a", "n, c, a")), tmp_path / "m.onnx")
    registry, options = registry_of(WholeByKernel)

    with (
        epctx.InferenceSession(source) as alone,
        epctx.InferenceSession(source, options, registry=registry) as session,
    ):
        for feeds in FEEDS:
            np.testing.assert_allclose(
                session.run(None, feeds)[0], alone.run(None, feeds)[0], rtol=1e-6
            )


def test_a_node_says_what_its_bodies_read_outside_in_the_order_of_first_use(tmp_path):
    seen = {}

    def look(honest, graph):
        seen.update(
            {node.op_type: (node.inputs, node.implicit_inputs) for node in graph.nodes}
        )
        return [Refusal("only looking", graph.nodes)]

    compiled(model_of(NESTED), tmp_path / "m.onnx", scripted(get_capability=look))

    assert seen["If"] == (("c",), ("n", "a", "w"))
    assert seen["Loop"] == (("n", "", "a"), ("w",))
    assert seen["Relu"] == (("x",), ())


def test_the_same_model_gives_the_same_names_and_bytes_and_names_are_unique(tmp_path):
    model = model_of(NESTED)
    outputs = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        report = compiled(model, tmp_path / place / "m.onnx", Alpha, Beta)
        outputs.append(
            [report.output.read_bytes(), [p.name for p in report.partitions]]
        )

    assert outputs[0] == outputs[1]
    assert len(set(outputs[0][1])) == 2


def test_a_host_that_forbids_the_cpu_ep_hears_of_nodes_in_bodies(tmp_path):
    registry, options = registry_of(Alpha)
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")

    with pytest.raises(epctx.Fail, match="node 'Tanh_0' \\(Tanh\\) is left"):
        epctx.InferenceSession(
            saved(model_of(NESTED), tmp_path / "m.onnx"), options, registry=registry
        )


def test_bodies_of_equal_work_share_one_name_part_and_differ_in_number(tmp_path):
    model = model_of(
        """agraph (bool c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) { a = Relu(x) },
                else_branch = e () => (float[2] b) { b = Relu(x) }
            >
        }"""
    )

    report = compiled(model, tmp_path / "m.onnx")

    first, second = (p.name.rpartition("_") for p in report.partitions)
    assert first[0] == second[0]
    assert (first[2], second[2]) == ("0", "1")
    assert (
        len([n for graph in graphs_of(report.output) for n in context_nodes_of(graph)])
        == 2
    )
