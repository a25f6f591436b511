"""`InferenceSession.placement`: the EP of each node, counted in subgraphs and functions,
and the reasons of what is left to the CPU EP.
"""

from __future__ import annotations

import json
import re

import epctx_onnxruntime as ort
import numpy as np
import onnx
import pytest
from epctx_kernels import KernelDef
from onnx import helper
from support.acme import kernel_ep
from support.agreement_of_routes import model_of
from support.engine_eps import Alpha, Beta, EngineProvider, Fragile, scripted
from support.small_models import chain, saved
from support.special_models import made, node, value
from support.taker import Taker
from support.validating_eps import compiled, session

import epctx_core as epctx
from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    Purpose,
    Refusal,
    hookimpl,
)

CPU = "CPUExecutionProvider"
WEIGHT = 2 * 3 * 4
"""Bytes of a weight of `chain`."""
NESTED = """
g (float[2, 3] x, bool c) => (float[2, 3] y)
{
  a = Relu(x)
  b = If (c) <
    then_branch = then () => (float[2, 3] t)
      <float[3] w = {1.0, 2.0, 3.0}>
    {
      t0 = Add(a, w)
      t1 = Tanh(t0)
      t = If (c) <
        then_branch = inner () => (float[2, 3] i) { i = Sin(t1) },
        else_branch = other () => (float[2, 3] o) { o = Neg(t1) }
      >
    },
    else_branch = other () => (float[2, 3] e) { e = Exp(a) }
  >
  y = Tanh(b)
}
"""
"""Nine nodes: three in the main graph, four and two in subgraphs."""
NESTED_NODES = 9


class Nothing(EngineProvider):
    """Takes no node, gives no reason for Sin, and twice the one for If."""

    name = "NothingExecutionProvider"
    binary_suffix = "nothing"

    @hookimpl
    def get_capability(self, graph):
        def nodes(*operators):
            return [n for n in graph.nodes if n.op_type in operators]

        return [
            Refusal("it has control flow", nodes("If")),
            Refusal("it has control flow", nodes("If")),
            *(
                Refusal(f"{operator}: its shape is open", nodes(operator))
                for operator in ("Relu", "Add", "Exp", "Tanh", "Neg")
            ),
        ]


@pytest.fixture
def nested(tmp_path):
    return saved(model_of(NESTED), tmp_path / "nested.onnx")


def placed(model, *eps):
    with session(model, *eps) as made_session:
        return made_session.placement()


def nodes_of(placement):
    return {each["ep"]: each["nodes"] for each in placement.eps}


def operators_of(placement, ep):
    return next(dict(each["operators"]) for each in placement.eps if each["ep"] == ep)


def test_nodes_operators_and_weights_are_counted_by_ep_and_the_cpu_ep_is_last(tmp_path):
    model = saved(chain(["Add", "Relu", "Sin", "Mul", "Add"]), tmp_path / "m.onnx")

    placement = placed(model, Alpha, Beta)

    assert [
        (each["ep"], each["nodes"], each["operators"], each["weight_bytes"])
        for each in placement.eps
    ] == [
        (Alpha.name, 3, {"Add": 2, "Relu": 1}, 2 * WEIGHT),
        (Beta.name, 1, {"Mul": 1}, WEIGHT),
        (CPU, 1, {"Sin": 1}, 0),
    ]
    assert placement.nodes == 5


def test_a_node_that_is_left_counts_with_all_nodes_inside_it(nested):
    placement = placed(nested, Nothing)

    assert placement.nodes == NESTED_NODES
    assert nodes_of(placement) == {Nothing.name: 0, CPU: NESTED_NODES}
    assert operators_of(placement, CPU) == {
        "If": 2, "Tanh": 2, "Relu": 1, "Add": 1, "Sin": 1, "Neg": 1, "Exp": 1,
    }  # fmt: skip


def test_the_nodes_of_a_subgraph_that_eps_share_count_once_each(nested):
    placement = placed(nested, Alpha, Beta)

    assert nodes_of(placement) == {Alpha.name: 2, Beta.name: 1, CPU: NESTED_NODES - 3}
    assert operators_of(placement, Alpha.name) == {"Relu": 1, "Add": 1}
    assert placement.eps[0]["weight_bytes"] == 3 * 4


def test_a_node_that_an_ep_takes_whole_is_the_eps_with_all_nodes_inside_it(nested):
    def whole(_honest, graph):
        taken = [n for n in graph.nodes if n.op_type == "If"]
        return [ComputeCapability(taken)] if not graph.parent_node else []

    placement = placed(nested, scripted(get_capability=whole))

    assert [each["nodes"] for each in placement.eps] == [NESTED_NODES - 2, 2]
    assert placement.eps[0]["weight_bytes"] == 3 * 4


def test_a_call_of_a_function_that_an_ep_keeps_counts_with_the_nodes_of_the_function(
    tmp_path,
):
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    inner = helper.make_function(
        "mine", "Inner", ["a"], ["b"], [node("Sin", ["a"], ["b"])], opsets
    )
    body = [
        node("Inner", ["a"], ["m"], domain="mine"),
        node("Inner", ["m"], ["b"], domain="mine"),
    ]
    outer = helper.make_function("mine", "Scaled", ["a"], ["b"], body, opsets)
    model = made(
        [node("Scaled", ["x"], ["m"], domain="mine"), node("Tanh", ["m"], ["y"])],
        [value("x")],
        [value("y", shape=None)],
        domains=[("mine", 1)],
        functions=[outer, inner],
    )

    class WantsCalls(Taker):
        operators = frozenset({"Scaled"})
        keeps_functions = frozenset({("mine", "Scaled")})

        @hookimpl
        def compile(self, partitions):
            return [
                CompiledPartition(lambda inputs: [np.sin(np.sin(*inputs))])
                for _ in partitions
            ]

    path = saved(model, tmp_path / "m.onnx")

    inlined = placed(path, Taker)
    kept = placed(path, WantsCalls)

    assert operators_of(inlined, CPU) == {"Sin": 2, "Tanh": 1}
    assert operators_of(kept, WantsCalls.name) == {"mine::Scaled": 1}
    assert nodes_of(kept) == {WantsCalls.name: 1 + 2, CPU: 1}


def test_an_epcontext_node_of_a_context_model_is_one_node_of_its_ep(tmp_path):
    source = saved(chain(["Relu", "Add", "Sin", "Add"]), tmp_path / "m.onnx")

    placement = placed(compiled(source, Alpha), Alpha)

    assert operators_of(placement, Alpha.name) == {"com.microsoft::EPContext": 2}
    assert operators_of(placement, CPU) == {"Sin": 1}
    assert (placement.nodes, placement.left) == (3, [])
    assert placement.eps[0]["weight_bytes"] == 0


def test_a_weight_that_several_nodes_read_counts_once_for_each_ep(tmp_path):
    model = chain(["Add", "Relu", "Add", "Mul"])
    for each in model.graph.node:
        each.input[:] = ["w0" if name.startswith("w") else name for name in each.input]
    del model.graph.initializer[1:]

    placement = placed(saved(model, tmp_path / "m.onnx"), Alpha, Beta)

    assert [each["weight_bytes"] for each in placement.eps] == [WEIGHT, WEIGHT, 0]


def test_a_node_that_a_kernel_of_an_ep_runs_is_the_eps(tmp_path):
    model = saved(chain(["Neg", "Sin"]), tmp_path / "m.onnx")

    negative = KernelDef(
        op_type="Neg",
        since_version=13,
        create=lambda _node: lambda inputs: [-inputs[0]],
    )
    ep = kernel_ep(negative, described=())

    placement = placed(model, ep)

    assert operators_of(placement, ep.name) == {"Neg": 1}
    assert operators_of(placement, CPU) == {"Sin": 1}


def test_a_reason_has_one_row_over_operators_and_that_of_the_most_nodes_is_the_first(
    nested,
):
    left = placed(nested, Nothing).left

    assert [(g["ep"], g["reason"], g["nodes"]) for g in left] == [
        (Nothing.name, "its shape is open", NESTED_NODES - 3),
        (Nothing.name, "it has control flow", 2),
    ]
    assert left[1]["operators"] == {"If": 2}


def test_what_another_ep_takes_is_not_left(tmp_path):
    model = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")

    assert placed(model, Nothing, Alpha).left == []


def test_what_an_ep_fails_to_compile_is_the_next_ones_and_its_refusals_count_once(
    tmp_path,
):
    model = saved(chain(["Relu", "Sin", "Add", "Relu", "Sin"]), tmp_path / "m.onnx")

    with session(model, Fragile, Beta, ep__on_compile_failure="next") as made_session:
        placement = made_session.placement()

    assert nodes_of(placement) == {Fragile.name: 1, Beta.name: 1, CPU: 3}
    assert {
        (group["ep"], group["reason"]): group["operators"] for group in placement.left
    }[Beta.name, "Sin is not supported"] == {"Sin": 2}


def test_a_constant_that_only_serves_refused_nodes_is_not_in_the_row_of_a_reason(
    tmp_path,
):
    model = model_of(
        "g (float[n, 3] x) => (float[n, 3] y)"
        "{ w = Constant <value = float[3] {1, 2, 3}> () y = Add(x, w) }"
    )

    (group,) = placed_by_name(saved(model, tmp_path / "m.onnx"), "QNN").left

    assert group["operators"] == {"Add": 1}
    assert "static shapes" in group["reason"]


def placed_by_name(model, *eps):
    options = epctx.SessionOptions()
    for ep in eps:
        options.add_provider(ep)
    with epctx.InferenceSession(model, options) as made_session:
        return made_session.placement()


def test_a_real_network_says_which_eps_are_simulated_and_who_provides_them(network):
    path = network("resnet").path
    total = len(onnx.load(path, load_external_data=False).graph.node)

    placement = placed_by_name(path, "QNN")

    qnn, cpu = placement.eps
    assert (qnn["ep"], qnn["simulated"], qnn["provided_by"]) == (
        "QNNExecutionProvider", True, f"epctx-sim-qnn {epctx.__version__}",
    )  # fmt: skip
    assert (cpu["ep"], cpu["simulated"], cpu["provided_by"]) == (CPU, False, "engine")
    assert qnn["nodes"] == placement.nodes == total
    assert qnn["weight_bytes"] > 0


def test_the_tables_have_the_numbers_of_the_json(nested):
    placement = placed(nested, Nothing, Beta)
    facts = json.loads(json.dumps(placement.as_dict()))

    first, *blocks = str(placement).split("\n\n")

    assert facts["inside_nodes"]
    assert re.findall(r"\d+", first) == [
        str(facts["nodes"]),
        str(facts["inside_nodes"]),
        str(facts["eps"][-1]["nodes"]),
    ]
    for block, rows, keys in zip(
        blocks,
        (facts["eps"], facts["left"]),
        (("ep", "nodes", "weight_bytes"), ("ep", "nodes", "reason")),
        strict=True,
    ):
        lines = block.splitlines()[1:]
        assert len(lines) == len(rows)
        for line, row in zip(lines, rows, strict=True):
            assert all(str(row[key]) in line for key in keys)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (
            "g (float[2] x) => (float[2] y) { y = Relu(x) }",
            "nodes: 1, on the CPU EP: 1",
        ),
        (
            NESTED,
            "nodes: 9, inside subgraphs and functions: 6, on the CPU EP: 9",
        ),
        (
            "g (float[2] x) => (float[2] y) { s = Shape(x) y = Reshape(x, s) }",
            "nodes: 2, folded: 1, on the CPU EP: 1",
        ),
    ],
)
def test_the_text_says_how_many_nodes_are_inside_and_how_many_were_folded(
    text, first, tmp_path
):
    placement = placed(saved(model_of(text), tmp_path / "m.onnx"), Nothing)

    assert str(placement).splitlines()[0] == first


def test_an_explanation_of_a_run_has_the_placement_that_a_session_has(nested, tmp_path):
    context_model = compiled(
        saved(chain(["Relu", "Sin", "Add"]), tmp_path / "m.onnx"), Alpha
    )
    for model in (nested, context_model):
        options = epctx.SessionOptions()
        options.add_provider(Alpha.name)
        registry = epctx.Registry(entry_points=False)
        registry.register(Alpha)

        explained = epctx.explain_model(
            model, options, registry=registry, purpose=Purpose.RUN
        )

        assert explained.placement == placed(model, Alpha)


def test_a_closed_session_has_no_placement(nested):
    made_session = session(nested, Alpha)
    made_session.close()

    with pytest.raises(epctx.RuntimeException, match="closed"):
        made_session.placement()


def test_a_session_of_the_drop_in_has_the_same_placement(nested):
    options = ort.SessionOptions()
    options.log_severity_level = 3

    opened = ort.InferenceSession(str(nested), options, ["QNNExecutionProvider"])

    assert opened.placement() == placed_by_name(nested, "QNN")
